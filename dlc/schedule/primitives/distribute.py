"""distribute: run the iterations of a loop on blocks of GPU threads, one for each."""

from __future__ import annotations

from dlc.schedule.dependence import why_not_independent
from dlc.schedule.edit import loops_around, swap_loop
from dlc.schedule.loop import For, Func, If, LoopKind, substitute
from dlc.schedule.primitive import check_fresh, find_serial, primitive, refuse
from dlc.te.expr import Var, index
from dlc.te.simplify import canonical, surely_divides


@primitive
def distribute(func: Func, loop: str, threads: int, names: tuple[str, str]) -> Func:
    """Split a loop into blocks of so many threads and bind both parts.

    What `split` and `bind` do in two steps, for loops whose indices are so involved (after `fuse`)
    that their independence can be proven for the whole only.

    Before:
        def copy(n: size, A: f32[n], *, B: f32[n]):
            for i in range(n):
                B[i] = A[i]

    Call:
        distribute("i", 64, ("b", "t"))

    After:
        def copy(n: size, A: f32[n], *, B: f32[n]):
            for b in block((n + 63) // 64):
                for t in thread(64):
                    if b * 64 + t < n:
                        B[b * 64 + t] = A[b * 64 + t]

    Raises:
        ScheduleError: no such loop; it is no longer serial; it is inside another one; fewer threads
            than 1; a name is taken; an iteration may read what another one writes.
    """
    target = find_serial("distribute", func, loop)
    if threads < 1:
        refuse("distribute", func, f"{threads} threads are fewer than 1")
    if len(around := loops_around(func, loop)) > 1:
        refuse("distribute", func, f"loop '{loop}' is inside of '{around[-2].var}'")
    check_fresh("distribute", func, names, freed=(loop,))
    if reason := why_not_independent(func, loop):
        refuse("distribute", func, reason)

    block, thread = names
    whole = Var(block) * threads + Var(thread)
    body = substitute(target.body, {loop: whole})
    if not surely_divides(threads, target.extent):
        body = If(whole < target.extent, body)
    rounds = canonical((target.extent + (threads - 1)) // threads)
    inner = For(thread, index(threads), LoopKind.THREAD, body)
    return swap_loop(func, loop, lambda _: For(block, rounds, LoopKind.BLOCK, inner))
