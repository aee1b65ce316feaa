"""Loops that end where the guard inside of them does."""

from __future__ import annotations

from dataclasses import replace

from dlc.schedule.loop import For, If
from dlc.schedule.simplify import conjuncts, guarded
from dlc.te.affine import coefficients
from dlc.te.expr import ZERO, Binary, BinOp, Expr, minimum
from dlc.te.simplify import canonical
from dlc.te.transform import free_vars, loads, substitute


def limited(loop: For, lane: str | None) -> For:
    """A loop without those guards around its whole body that only fail from some iteration on.

    Of `for i in range(32): if i + o * 32 < n: ...`, the extent is `min(32, n - o * 32)`. It reads
    other loops: that is for the code generator, no longer loop IR. A guard that differs between
    the lanes of a vector stays.
    """
    if not isinstance(loop.body, If):
        return loop
    extent: Expr = loop.extent
    rest: list[Expr] = []
    for part in conjuncts(loop.body.cond):
        last = None if lane in free_vars(part) else _limit(part, loop.var)
        if last is not None:
            extent = minimum(extent, last)
        else:
            rest.append(part)
    if extent is loop.extent:
        return loop
    return replace(loop, extent=canonical(extent), body=guarded(rest, loop.body.body))


def _limit(cond: Expr, var: str) -> Expr | None:
    """The first value of a counter for which `counter + a < b` fails, if a condition is that."""
    match cond:
        case Binary(BinOp.LT, a, b) if var not in free_vars(b) and not any(map(loads, (a, b))):
            found = coefficients(a)
            if found is not None and found.get(var) == 1:
                return canonical(b - substitute(a, {var: ZERO}))
    return None
