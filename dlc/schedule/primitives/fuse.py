"""fuse: two nested loops become one."""

from __future__ import annotations

from dlc.schedule.edit import swap_loop
from dlc.schedule.loop import For, Func, LoopKind, substitute
from dlc.schedule.primitive import check_fresh, find_serial, primitive, refuse
from dlc.te.expr import ONE, ZERO, Var, maximum
from dlc.te.simplify import canonical, surely_at_most


@primitive
def fuse(func: Func, outer: str, inner: str, name: str) -> Func:
    """Run a loop and the loop that is its whole body as one loop, in the same order.

    Before:
        def copy(n: size, A: f32[n, 8], *, B: f32[n, 8]):
            for i in range(n):
                for j in range(8):
                    B[i, j] = A[i, j]

    Call:
        fuse("i", "j", "ij")

    After:
        def copy(n: size, A: f32[n, 8], *, B: f32[n, 8]):
            for ij in range(n * 8):
                B[ij // 8, ij % 8] = A[ij // 8, ij % 8]

    Raises:
        ScheduleError: no such loops; they are not directly nested; one is no longer serial; the
            name is taken.
    """
    first = find_serial("fuse", func, outer)
    second = find_serial("fuse", func, inner)
    if first.body is not second:
        refuse("fuse", func, f"'{inner}' is not the whole body of '{outer}'")
    check_fresh("fuse", func, (name,), freed=(outer, inner))

    both = Var(name)
    env = {outer: both // second.extent, inner: both % second.extent}
    if first.extent == ONE or second.extent == ONE:  # where no division is, none need be undone
        single, other = (outer, inner) if first.extent == ONE else (inner, outer)
        env = {single: ZERO, other: both}
    runs = second.extent
    if not (surely_at_most(0, first.extent) or surely_at_most(0, runs)):
        runs = maximum(runs, 0)  # two extents below zero must not become one above it
    extent = canonical(first.extent * runs)
    body = substitute(second.body, env)
    return swap_loop(func, outer, lambda _: For(name, extent, LoopKind.SERIAL, body))
