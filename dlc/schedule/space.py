"""A tuning space: named knobs, each with a finite list of choices, and what may not be combined.

It is plain data, so the tuner samples, saves and learns from it without seeing any IR.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod


@dataclass(frozen=True, slots=True)
class Limit:
    """The product of some knobs is at most `most`: a tile that must fit, code that must not grow.

    A choice below 1 stands for the analytic one, which keeps the limit by itself.
    """

    knobs: tuple[str, ...]
    most: int


@dataclass(frozen=True, slots=True)
class Space:
    """Choices per knob, and limits on their combination."""

    knobs: Mapping[str, tuple[int, ...]]
    limits: tuple[Limit, ...] = ()

    def __len__(self) -> int:
        """The number of points, those beyond a limit included."""
        return prod(map(len, self.knobs.values()))

    def allows(self, point: Mapping[str, int]) -> bool:
        """Whether a point keeps every limit."""
        return all(
            prod(max(1, point[name]) for name in limit.knobs) <= limit.most for limit in self.limits
        )

    def points(self) -> Iterator[dict[str, int]]:
        """Every assignment of a choice to each knob that keeps the limits."""
        for values in product(*self.knobs.values()):
            point = dict(zip(self.knobs, values, strict=True))
            if self.allows(point):
                yield point
