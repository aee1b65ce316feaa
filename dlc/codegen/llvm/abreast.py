"""Vectors of polynomials side by side, whose operations stay in the order they are written in.

LLVM's machine scheduler saves registers where there are 16: it puts one vector behind the other
again, and each waits for its own operations. In their order, some constants and sums lie in memory,
and exp of float32 takes 0.8 of the time, erf 0.7 (Zen 3).
"""

from __future__ import annotations

from dlc.core.target import Target
from dlc.schedule.loop import For, LoopKind, Stmt, Store, walk
from dlc.schedule.work import is_polynomial
from dlc.te.expr import Const

IN_ORDER = "; operations stay in their order\n"
"""Begins the text of a module, behind other marks, whose operations LLVM is not to reorder."""


def runs_abreast(stmt: Stmt, target: Target) -> bool:
    """Whether a nest computes polynomials of more lanes at once than one register has."""
    if target.arch != "x86_64" or target.vector_registers > 16:
        return False
    return any(
        isinstance(loop, For)
        and loop.kind is LoopKind.VECTOR
        and isinstance(loop.extent, Const)
        and loop.extent.value > target.lanes(4)
        and any(isinstance(s, Store) and is_polynomial(s.value) for s in walk(loop.body))
        for loop in walk(stmt)
    )
