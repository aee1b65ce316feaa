"""One arena for all intermediate tensors: offsets such that what lives together shares no byte.

Buffers of constant size share a region: by decreasing size, each at the lowest offset that is free
during its life. So do those that have so many bytes for each image of a batch, or for each unit of
another kind. What is smaller than some lines of memory for each has regions of its own, reused by
what has the same size.

Source: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference" (2020),
section 5.2 (greedy by size).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from dlc.schedule.program import ALIGNMENT
from dlc.te.expr import ONE, ZERO, Expr
from dlc.te.poly import from_poly
from dlc.te.simplify import canonical, surely_at_most, to_poly

LINES = 4
"""Lines of memory that a buffer has at least for each unit to share a region. There, it has whole
lines of each, a quarter more than it needs at most."""


@dataclass(frozen=True, slots=True)
class Request:
    """Memory for one buffer from step `first` to step `last`, both included.

    Where steps may run side by side, the buffer also lives on some `levels`: steps of one level
    wait for none of their own, only for those of levels below.
    """

    name: str
    size_bytes: Expr
    first: int
    last: int
    levels: tuple[int, int] = (0, -1)


def plan_arena(
    requests: Sequence[Request],
) -> tuple[dict[str, tuple[int, Expr]], tuple[Expr, ...]]:
    """The region of each buffer and its offset there, and the size of each region, in bytes."""
    shared: dict[Expr, list[tuple[int, Request]]] = {}
    reused: dict[Expr, list[Request]] = {}
    for request in requests:
        unit, count = _units(request.size_bytes)
        if unit == ONE or (count >= LINES * ALIGNMENT and surely_at_most(0, unit)):
            shared.setdefault(unit, []).append((count, request))
        else:
            reused.setdefault(canonical(request.size_bytes), []).append(request)
    places: dict[str, tuple[int, Expr]] = {}
    regions: list[Expr] = []
    for unit in sorted(shared, key=lambda u: u != ONE):  # what is constant begins the arena
        placed = _placed(shared[unit])
        places |= {r.name: (len(regions), canonical(unit * begin)) for begin, _, r in placed}
        regions.append(canonical(unit * max(end for _, end, _ in placed)))
    for size, same in reused.items():
        for lives in _in_turns(same):
            places |= {request.name: (len(regions), ZERO) for request in lives}
            regions.append(size)
    return places, tuple(regions)


def _units(size: Expr) -> tuple[Expr, int]:
    """A size as an expression whose terms have no factor in common, and how often that is there."""
    terms = to_poly(size, {})
    count = gcd(*terms.values())
    if not count:
        return ONE, 0
    return from_poly({term: factor // count for term, factor in terms.items()}), count


def _placed(group: Sequence[tuple[int, Request]]) -> list[tuple[int, int, Request]]:
    """Where so many bytes for each request begin and end, in whole lines."""
    placed: list[tuple[int, int, Request]] = []
    for count, request in sorted(group, key=lambda g: (-g[0], g[1].first, g[1].name)):
        size = -(-count // ALIGNMENT) * ALIGNMENT
        begin = 0
        for other_begin, other_end, other in sorted(placed, key=lambda p: p[0]):
            if not _overlap(request, other):
                continue
            if begin + size <= other_begin:
                break
            begin = max(begin, other_end)
        placed.append((begin, begin + size, request))
    return placed


def _in_turns(requests: Sequence[Request]) -> list[list[Request]]:
    """Requests that may have the same memory, one after the other."""
    turns: list[list[Request]] = []
    for request in requests:
        free = (lives for lives in turns if not any(_overlap(request, r) for r in lives))
        lives = next(free, None)
        if lives is None:
            turns.append([request])
        else:
            lives.append(request)
    return turns


def _overlap(a: Request, b: Request) -> bool:
    (a_low, a_high), (b_low, b_high) = a.levels, b.levels
    return (a.first <= b.last and b.first <= a.last) or (a_low <= b_high and b_low <= a_high)
