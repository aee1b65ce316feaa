"""One arena for all intermediate tensors: offsets such that what lives together shares no byte.

Buffers of constant size are placed by decreasing size, each at the lowest offset that is free
during its life. Buffers of symbolic size follow behind them, in slots that are reused by buffers of
the same size expression.

Source: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference" (2020),
section 5.2 (greedy by size).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dlc.core.types import INDEX
from dlc.te.expr import Const, Expr, maximum
from dlc.te.simplify import canonical, surely_at_most

ALIGNMENT = 64  # bytes: one cache line, and DLC_ALIGNMENT of the ABI


@dataclass(frozen=True, slots=True)
class Request:
    """Memory for one buffer from step `first` to step `last`, both included."""

    name: str
    size_bytes: Expr
    first: int
    last: int


@dataclass
class _Slot:
    size_bytes: Expr
    offset: Expr
    lives: list[Request] = field(default_factory=list)


def plan_arena(requests: Sequence[Request]) -> tuple[dict[str, Expr], Expr]:
    """The offset of each buffer in bytes, and the size of the arena in bytes."""
    offsets: dict[str, Expr] = {}
    static = [r for r in requests if isinstance(r.size_bytes, Const)]
    total = _place_static(static, offsets)
    end: Expr = Const(total, INDEX)
    slots: list[_Slot] = []
    for request in requests:
        if isinstance(request.size_bytes, Const):
            continue
        size = canonical(request.size_bytes)
        slot = next((s for s in slots if s.size_bytes == size and _free(s, request)), None)
        if slot is None:
            slot = _Slot(size, end)
            slots.append(slot)
            end = canonical(end + _aligned(size))
        slot.lives.append(request)
        offsets[request.name] = slot.offset
    return offsets, end


def _place_static(requests: Sequence[Request], offsets: dict[str, Expr]) -> int:
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
        offsets[request.name] = Const(begin, INDEX)
        total = max(total, begin + size)
    return total


def _bytes(request: Request) -> int:
    assert isinstance(request.size_bytes, Const)
    return int(request.size_bytes.value)


def _overlap(a: Request, b: Request) -> bool:
    return a.first <= b.last and b.first <= a.last


def _free(slot: _Slot, request: Request) -> bool:
    return not any(_overlap(request, other) for other in slot.lives)


def _aligned(size: Expr) -> Expr:
    """The bytes of a slot. A size such as `h - 2` is below zero where `h` is refused anyway."""
    whole = canonical((size + (ALIGNMENT - 1)) // ALIGNMENT * ALIGNMENT)
    return whole if surely_at_most(0, whole) else maximum(whole, 0)
