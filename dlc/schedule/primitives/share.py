"""share: run a loop by the iterations of a parallel one, behind their own work."""

from __future__ import annotations

from dataclasses import replace

from dlc.schedule.apart import why_not_unordered
from dlc.schedule.dependence import why_not_independent
from dlc.schedule.edit import loops_around, map_sequence, swap_loop
from dlc.schedule.loop import Block, For, Func, If, LoopKind, Stmt, block, substitute
from dlc.schedule.primitive import check_fresh, find_loop, find_serial, primitive, refuse
from dlc.te.expr import Const, Expr, Var, equal, index


@primitive
def share(func: Func, loop: str, parallel: str) -> Func:
    """Let the iterations of a parallel loop also run a loop that stands alone: each its part.

    As many iterations as both loops' extents say go with one of the other: several with each, in a
    loop that is called after the first with `_s` behind, or one with the last of several. What
    cores have computed for the part of an image is then surrounded by the same cores.

    Before:
        def f(A: f32[8, 3], *, B: f32[8, 4]):
            for i in range(8):
                B[i, 0] = 0.0
            for p in parallel(4):
                for j in range(2):
                    for k in range(3):
                        B[p * 2 + j, k + 1] = A[p * 2 + j, k]

    Call:
        share("i", "p")

    After:
        def f(A: f32[8, 3], *, B: f32[8, 4]):
            for p in parallel(4):
                for j in range(2):
                    for k in range(3):
                        B[p * 2 + j, k + 1] = A[p * 2 + j, k]
                for i_s in range(2):
                    B[p * 2 + i_s, 0] = 0.0

    Raises:
        ScheduleError: no such loops; the first is no longer serial; the second is not parallel; one
            of them is inside of another loop; an extent is no constant; a name is taken; an
            iteration may read what another one writes; both may use one element, which one of
            them writes.
    """
    nest = find_serial("share", func, loop)
    target = find_loop("share", func, parallel)
    if target.kind is not LoopKind.PARALLEL:
        refuse("share", func, f"loop '{parallel}' is not parallel")
    for name in (loop, parallel):
        if len(loops_around(func, name)) > 1:
            refuse("share", func, f"loop '{name}' is inside of another one")
    if not (isinstance(nest.extent, Const) and isinstance(target.extent, Const)):
        refuse("share", func, "an extent is no constant")
    if reason := why_not_independent(func, loop) or why_not_unordered(func, nest, target):
        refuse("share", func, reason)
    part = _part(func, nest, int(nest.extent.value), parallel, int(target.extent.value))
    result = swap_loop(func, parallel, lambda f: replace(f, body=block(f.body, part)))
    return replace(result, body=map_sequence(result.body, lambda s: Block(()) if s is nest else s))


def _part(func: Func, nest: For, count: int, parallel: str, extent: int) -> Stmt:
    """What one iteration of the parallel loop runs of the other, of `count` iterations."""
    here = Var(parallel)
    if extent % count == 0:
        each = extent // count
        body = substitute(nest.body, {nest.var: here // each})
        return If(equal(here % each, each - 1), body) if each > 1 else body
    name = f"{nest.var}_s"
    check_fresh("share", func, (name,), freed=(nest.var,))
    each = -(-count // extent)
    whole: Expr = here * each + Var(name)
    body = substitute(nest.body, {nest.var: whole})
    if count % extent:
        body = If(whole < count, body)
    return For(name, index(each), LoopKind.SERIAL, body)
