"""attach: run a loop by the blocks of another launch, before their own work."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from dlc.schedule.apart import why_not_unordered
from dlc.schedule.dependence import why_not_independent
from dlc.schedule.edit import loops_around, map_sequence, sequence, swap_loop
from dlc.schedule.gpu import block_loops, block_threads
from dlc.schedule.loop import Block, For, Func, If, LoopKind, Stmt, block, loops, substitute
from dlc.schedule.primitive import check_fresh, find_loop, find_serial, primitive, refuse
from dlc.te.expr import Const, Expr, Var, index
from dlc.te.simplify import canonical


@primitive
def attach(func: Func, loop: str, launch: str) -> Func:
    """Let the threads of a launch, named by a block loop of it, also run a loop that stands alone.

    Both must be free to run in any order, so the launch needs to wait for nothing. The new loops
    are called after the old one, with `_t` and `_r` behind.

    Before:
        def f(A: f32[128], *, B: f32[200]):
            for i in range(72):
                B[i + 128] = 0.0
            for b in block(2):
                for t in thread(64):
                    B[b * 64 + t] = A[b * 64 + t]

    Call:
        attach("i", "b")

    After:
        def f(A: f32[128], *, B: f32[200]):
            for b in block(2):
                for i_t in thread(64):
                    for i_r in range(1):
                        if (i_r * 2 + b) * 64 + i_t < 72:
                            B[(i_r * 2 + b) * 64 + i_t + 128] = 0.0
                for t in thread(64):
                    B[b * 64 + t] = A[b * 64 + t]

    Raises:
        ScheduleError: no such loops; the first is no longer serial or not outside of all loops; the
            second is no block loop; an extent is no constant; a name is taken; an iteration may
            read what another one writes; both may use one element, which one of them writes.
    """
    nest = find_serial("attach", func, loop)
    target = find_loop("attach", func, launch)
    if len(loops_around(func, loop)) > 1:
        refuse("attach", func, f"loop '{loop}' is inside of another one")
    if target.kind is not LoopKind.BLOCK:
        refuse("attach", func, f"loop '{launch}' is no block loop")
    home = next(s for s in sequence(func.body) if launch in loops(s))
    blocks, _ = block_loops(Func(func.name, func.sizes, (), (), home))
    extents = [b.extent for b in (*blocks, nest)]
    if not all(isinstance(n, Const) for n in extents):
        refuse("attach", func, "an extent is no constant")
    names = (f"{loop}_t", f"{loop}_r")
    check_fresh("attach", func, names, freed=(loop,))
    if reason := why_not_independent(func, loop) or why_not_unordered(func, nest, home):
        refuse("attach", func, reason)

    threads = block_threads(Func(func.name, func.sizes, (), (), home))
    count = prod(int(b.extent.value) for b in blocks if isinstance(b.extent, Const))
    number: Expr = index(0)
    for each in blocks:
        number = number * each.extent + Var(each.var)
    whole = (Var(names[1]) * count + number) * threads + Var(names[0])
    rounds = canonical((nest.extent + (count * threads - 1)) // (count * threads))
    body: Stmt = If(whole < nest.extent, substitute(nest.body, {loop: whole}))
    turns = For(names[1], rounds, LoopKind.SERIAL, body)
    phase = For(names[0], index(threads), LoopKind.THREAD, turns)
    inner = blocks[-1].var

    result = swap_loop(func, inner, lambda f: replace(f, body=block(phase, f.body)))
    kept = map_sequence(result.body, lambda s: Block(()) if s is nest else s)
    return replace(result, body=kept)
