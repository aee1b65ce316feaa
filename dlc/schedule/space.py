"""A tuning space: named knobs, each with a finite list of choices.

It is plain data, so the tuner samples, saves and learns from it without seeing any IR.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod


@dataclass(frozen=True, slots=True)
class Space:
    """Choices per knob."""

    knobs: Mapping[str, tuple[int, ...]]

    def __len__(self) -> int:
        return prod(map(len, self.knobs.values()))

    def points(self) -> Iterator[dict[str, int]]:
        """Every assignment of a choice to each knob."""
        for values in product(*self.knobs.values()):
            yield dict(zip(self.knobs, values, strict=True))
