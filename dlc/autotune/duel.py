"""Two artefacts that ran in turn, in several processes: which is faster, and is it chance?

Where pages and libraries happen to lie makes one artefact up to a tenth faster than its own copy,
for as long as the process lives. So the runs of one process are one sample, however many they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import fmean, stdev

from dlc.autotune.record import quartile

LEAST_LIVES = 8  # processes
MOST_LIVES = 32
_Z = 1.6449  # of the normal distribution; one chance in twenty


@dataclass(frozen=True, slots=True)
class Duel:
    """Times of single runs in ns: for each process those of the first, and of the second."""

    lives: tuple[tuple[Sequence[int], Sequence[int]], ...]

    @property
    def speedup(self) -> float:
        """How many times faster the second is: the geometric mean over the processes."""
        return exp(fmean(self._logarithms())) if self.lives else 0.0

    @property
    def is_faster(self) -> bool:
        """Whether the second is faster beyond chance."""
        return self._deviations() > 1.0

    @property
    def is_slower(self) -> bool:
        """Whether the second is slower beyond chance."""
        return self._deviations() < -1.0

    def time_ns(self, which: int) -> float:
        """The time of a run of the first (0) or the second (1)."""
        return quartile([t for life in self.lives for t in life[which]])

    def _logarithms(self) -> list[float]:
        return [log(quartile(a) / quartile(b)) for a, b in self.lives]

    def _deviations(self) -> float:
        """The mean gain in units of what chance reaches once in twenty times.

        Source: Student, The Probable Error of a Mean (Biometrika 1908); the quantile of his
        distribution by its expansion, Abramowitz and Stegun, 26.7.5.
        """
        gains, freedom = self._logarithms(), len(self.lives) - 1
        if freedom < 2:
            return 0.0
        quantile = _Z + (_Z**3 + _Z) / 4 / freedom
        quantile += (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / 96 / freedom**2
        least = quantile * max(stdev(gains), 1e-9) / sqrt(len(gains))
        return fmean(gains) / least
