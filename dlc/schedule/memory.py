"""One arena for all intermediate tensors: offsets such that what lives together shares no byte.

Buffers of constant size share the first region: by decreasing size, each at the lowest offset that
is free during its life. Buffers of symbolic size have regions of their own, each reused by buffers
of the same size expression.

Source: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference" (2020),
section 5.2 (greedy by size).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dlc.core.types import INDEX
from dlc.schedule.program import ALIGNMENT
from dlc.te.expr import ZERO, Const, Expr
from dlc.te.simplify import canonical


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


@dataclass
class _Region:
    number: int
    lives: list[Request] = field(default_factory=list)


def plan_arena(
    requests: Sequence[Request],
) -> tuple[dict[str, tuple[int, Expr]], tuple[Expr, ...]]:
    """The region of each buffer and its offset there, and the size of each region, in bytes."""
    places: dict[str, tuple[int, Expr]] = {}
    regions: list[Expr] = []
    static = [r for r in requests if isinstance(r.size_bytes, Const)]
    if static:
        regions.append(Const(_place_static(static, places), INDEX))
    reused: dict[Expr, list[_Region]] = {}
    for request in requests:
        if isinstance(request.size_bytes, Const):
            continue
        size = canonical(request.size_bytes)
        same = reused.setdefault(size, [])
        region = next((r for r in same if _free(r, request)), None)
        if region is None:
            region = _Region(len(regions))
            regions.append(size)
            same.append(region)
        region.lives.append(request)
        places[request.name] = (region.number, ZERO)
    return places, tuple(regions)


def _place_static(requests: Sequence[Request], places: dict[str, tuple[int, Expr]]) -> int:
    """Place buffers of constant size; returns the end of the last one."""
    placed: list[tuple[int, int, Request]] = []  # (begin, end, request)
    total = 0
    order = sorted(requests, key=lambda r: (-_bytes(r), r.first, r.name))
    for request in order:
        size = -(-_bytes(request) // ALIGNMENT) * ALIGNMENT
        begin = 0
        for other_begin, other_end, other in sorted(placed, key=lambda p: p[0]):
            if not _overlap(request, other):
                continue
            if begin + size <= other_begin:
                break
            begin = max(begin, other_end)
        placed.append((begin, begin + size, request))
        places[request.name] = (0, Const(begin, INDEX))
        total = max(total, begin + size)
    return total


def _bytes(request: Request) -> int:
    assert isinstance(request.size_bytes, Const)
    return int(request.size_bytes.value)


def _overlap(a: Request, b: Request) -> bool:
    (a_low, a_high), (b_low, b_high) = a.levels, b.levels
    return (a.first <= b.last and b.first <= a.last) or (a_low <= b_high and b_low <= a_high)


def _free(region: _Region, request: Request) -> bool:
    return not any(_overlap(request, other) for other in region.lives)
