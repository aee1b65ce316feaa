"""cooperate: run the iterations of a loop on the threads of a GPU's block, in rounds."""

from __future__ import annotations

from dlc.schedule.dependence import why_not_independent
from dlc.schedule.edit import loops_around, swap_loop
from dlc.schedule.loop import For, Func, If, LoopKind, substitute
from dlc.schedule.primitive import check_fresh, find_serial, primitive, refuse
from dlc.te.expr import Var, ceil_div, index
from dlc.te.simplify import canonical, surely_divides


@primitive
def cooperate(func: Func, loop: str, threads: int) -> Func:
    """Let so many threads take turns in the iterations of a loop: neighbours take neighbours.

    The new loops are called after the old one, with `_t` and `_r` behind.

    Before:
        def copy(A: f32[50], *, B: f32[50]):
            for i in range(50):
                B[i] = A[i]

    Call:
        cooperate("i", 32)

    After:
        def copy(A: f32[50], *, B: f32[50]):
            for i_t in thread(32):
                for i_r in range(2):
                    if i_r * 32 + i_t < 50:
                        B[i_r * 32 + i_t] = A[i_r * 32 + i_t]

    Raises:
        ScheduleError: no such loop; it is no longer serial; it is inside of a thread, vector or
            parallel loop; fewer threads than 1; a name is taken; an iteration may read what
            another one writes.
    """
    target = find_serial("cooperate", func, loop)
    if threads < 1:
        refuse("cooperate", func, f"{threads} threads are fewer than 1")
    for outer in loops_around(func, loop)[:-1]:
        if outer.kind in (LoopKind.THREAD, LoopKind.WARP, LoopKind.VECTOR, LoopKind.PARALLEL):
            refuse("cooperate", func, f"loop '{loop}' is inside the {outer.kind} '{outer.var}'")
    names = (f"{loop}_t", f"{loop}_r")
    check_fresh("cooperate", func, names, freed=(loop,))
    if reason := why_not_independent(func, loop):
        refuse("cooperate", func, reason)
    whole = Var(names[1]) * threads + Var(names[0])
    body = substitute(target.body, {loop: whole})
    if not surely_divides(threads, target.extent):
        body = If(whole < target.extent, body)
    rounds = canonical(ceil_div(target.extent, threads))
    inner = For(names[1], rounds, LoopKind.SERIAL, body)
    return swap_loop(func, loop, lambda _: For(names[0], index(threads), LoopKind.THREAD, inner))
