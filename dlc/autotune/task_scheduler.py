"""Which task to work on next: the one whose next round promises to save most of the model's time.

Source: Zheng et al., Ansor: Generating High-Performance Tensor Programs for Deep Learning
(OSDI 2020), section 6: expected gain from the recent slope, or from what is left to hope for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

_WINDOW = 3  # rounds the slope is taken over
_HOPE = 0.25  # share of a task's time that its second round may save, at most
FLAT_ROUNDS = 4  # without an improvement of `FLAT_GAIN`, after which a task is flat
FLAT_GAIN = 0.01


@dataclass(slots=True)
class Course:
    """How the search of one task went so far.

    Attributes:
        weight_ns: the time its default takes in one run of the model, all calls together.
        best: after each round, the best time relative to the default's, at most 1.
        exhausted: nothing is left to try.
    """

    weight_ns: float
    best: list[float] = field(default_factory=list)
    exhausted: bool = False

    @property
    def is_flat(self) -> bool:
        """Whether the last rounds brought nothing."""
        return self.flatness == 1.0

    @property
    def flatness(self) -> float:
        """From 0 to 1: how many of the rounds without gain are over that make a task flat."""
        if self.exhausted:
            return 1.0
        earlier = self.best[-FLAT_ROUNDS - 1 : -1]
        idle = sum(self.best[-1] > best * (1 - FLAT_GAIN) for best in earlier)
        return idle / FLAT_ROUNDS

    @property
    def expected_gain_ns(self) -> float:
        """What the next round may save in one run of the model."""
        rounds = len(self.best)
        now = self.best[-1] if self.best else 1.0
        hope = now * _HOPE / (rounds + 1)
        first = self.best[-_WINDOW - 1] if rounds > _WINDOW else 1.0
        slope = (first - now) / min(_WINDOW, rounds) if rounds else 0.0
        return self.weight_ns * max(hope, slope)


def next_task(courses: Sequence[Course], *, until_flat: bool) -> int | None:
    """The position of the task to work on; None where no work is left.

    Every task has a first round before any has a second. With `until_flat`, flat tasks rest.
    """
    able = [n for n, c in enumerate(courses) if not c.exhausted]
    if until_flat:
        able = [n for n in able if not courses[n].is_flat]
    fresh = [n for n in able if not courses[n].best]
    return max(fresh or able, key=lambda n: courses[n].expected_gain_ns, default=None)
