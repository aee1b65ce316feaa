"""What a recipe is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dlc.testing.draft import Draft


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to add one of some operators to a model; `weight` is how often it is tried."""

    operators: tuple[str, ...]
    add: Callable[[Draft, str], object]
    weight: float = 1.0


def axis_of(draft: Draft, rank: int) -> int:
    """Any axis, counted from either end."""
    return draft.rng.randrange(-rank, rank)


def some_axes(draft: Draft, rank: int) -> list[int]:
    """At least one axis, unless there is none; some counted from the end."""
    found = [a for a in range(rank) if draft.rng.random() < 0.5] or list(range(rank))[:1]
    return [a - rank if draft.rng.random() < 0.3 else a for a in found]
