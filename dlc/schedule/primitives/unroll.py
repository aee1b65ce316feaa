"""unroll: write out the iterations of a loop."""

from __future__ import annotations

from dataclasses import replace

from dlc.schedule.edit import swap_loop
from dlc.schedule.loop import Func, LoopKind
from dlc.schedule.primitive import find_serial, primitive, refuse
from dlc.te.expr import Const


@primitive
def unroll(func: Func, loop: str) -> Func:
    """Write out the iterations of a loop of constant extent.

    Before:
        def copy(A: f32[4], *, B: f32[4]):
            for i in range(4):
                B[i] = A[i]

    Call:
        unroll("i")

    After:
        def copy(A: f32[4], *, B: f32[4]):
            for i in unroll(4):
                B[i] = A[i]

    Raises:
        ScheduleError: no such loop; it is no longer serial; its extent is not a constant.
    """
    target = find_serial("unroll", func, loop)
    if not isinstance(target.extent, Const):
        reason = f"loop '{loop}' runs {target.extent} times, which is not a constant"
        refuse("unroll", func, reason, "split it by a constant")
    return swap_loop(func, loop, lambda f: replace(f, kind=LoopKind.UNROLL))
