"""once: a loop that runs at most once has one iteration, and guards in it limit loops."""

from __future__ import annotations

from dataclasses import replace

from dlc.schedule.dependence import bounds_in
from dlc.schedule.edit import swap_loop
from dlc.schedule.loop import Func, substitute
from dlc.schedule.primitive import find_serial, primitive, refuse
from dlc.schedule.primitives.partition import tidy
from dlc.te.expr import ZERO
from dlc.te.simplify import surely_at_most


@primitive
def once(func: Func, loop: str) -> Func:
    """Put 0 in the place of the variable of a loop that surely runs once at most.

    Guards that compare with the variable then limit the loops inside, as those of the last, uneven
    part of a loop do (see `partition`).

    Before:
        def f(n: size, A: f32[n], *, B: f32[n]):
            for io in range((n + 7) // 8 - n // 8):
                for ii in range(8):
                    if io * 8 + ii + n // 8 * 8 < n:
                        B[io * 8 + ii + n // 8 * 8] = A[io * 8 + ii + n // 8 * 8]

    Call:
        once("io")

    After:
        def f(n: size, A: f32[n], *, B: f32[n]):
            for io in range((n + 7) // 8 - n // 8):
                for ii in range(n - n // 8 * 8):
                    B[ii + n // 8 * 8] = A[ii + n // 8 * 8]

    Raises:
        ScheduleError: no such loop; it is no longer serial; it may run more than once.
    """
    target = find_serial("once", func, loop)
    if not surely_at_most(target.extent, 1):
        refuse("once", func, f"loop '{loop}' runs {target.extent} times, not surely at most once")
    single = replace(target, body=substitute(target.body, {loop: ZERO}))
    return swap_loop(func, loop, lambda _: tidy(single, bounds_in(func.body), func.sizes))
