"""Vectors of polynomials side by side, whose operations stay in the order they are written in.

LLVM's machine scheduler saves registers where there are 16: it puts one vector behind the other
again, and each waits for its own operations. In their order, some constants and sums lie in memory,
and exp of float32 takes 0.8 of the time, erf 0.7 (Zen 3).
"""

from __future__ import annotations

from typing import NamedTuple

from dlc.core.target import Target
from dlc.schedule.loop import For, LoopKind, Stmt, Store, walk
from dlc.schedule.work import is_polynomial
from dlc.te.expr import Const

IN_ORDER = "; operations stay in their order\n"
"""Begins the text of a module, behind other marks, whose operations LLVM is not to reorder."""


def runs_abreast(stmt: Stmt, target: Target) -> bool:
    """Whether a nest computes polynomials of several vectors at once."""
    return _has_few_registers(target) and any(
        isinstance(loop, For) and (_is_wide(loop, target) or unrolled_polynomial(loop, target))
        for loop in walk(stmt)
    )


def _has_few_registers(target: Target) -> bool:
    return target.arch == "x86_64" and target.vector_registers <= 16


def _is_wide(loop: For, target: Target) -> bool:
    """Whether one vector loop has the lanes of several registers."""
    return (
        loop.kind is LoopKind.VECTOR
        and isinstance(loop.extent, Const)
        and loop.extent.value > target.lanes(4)
        and any(isinstance(s, Store) and is_polynomial(s.value) for s in walk(loop.body))
    )


class Unrolled(NamedTuple):
    """Unrolled loops, the outermost first, around a vector loop that stores one value."""

    loops: tuple[For, ...]
    vector: For
    store: Store


def unrolled_polynomial(loop: For, target: Target) -> Unrolled | None:
    """The nest of a loop that writes out vectors of a polynomial; None of another one."""
    if not _has_few_registers(target):
        return None
    loops: list[For] = []
    inner: Stmt = loop
    while isinstance(inner, For) and inner.kind is LoopKind.UNROLL:
        loops.append(inner)
        inner = inner.body
    match inner:
        case For(_, _, LoopKind.VECTOR, Store() as store) if loops and is_polynomial(store.value):
            return Unrolled(tuple(loops), inner, store)
        case _:
            return None
