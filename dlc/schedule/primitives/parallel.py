"""parallel: run the iterations of a loop on several cores."""

from __future__ import annotations

from dataclasses import replace

from dlc.schedule.dependence import why_not_independent
from dlc.schedule.edit import swap_loop, written
from dlc.schedule.loop import Func, LoopKind, allocs
from dlc.schedule.primitive import (
    check_outside_vectors,
    find_serial,
    primitive,
    refuse,
)


@primitive
def parallel(func: Func, loop: str) -> Func:
    """Let the iterations of a loop run at the same time.

    Before:
        def add(A: f32[4, 8], *, B: f32[4, 8]):
            for i in range(4):
                for j in range(8):
                    B[i, j] = A[i, j] + 1.0

    Call:
        parallel("i")

    After:
        def add(A: f32[4, 8], *, B: f32[4, 8]):
            for i in parallel(4):
                for j in range(8):
                    B[i, j] = A[i, j] + 1.0

    Raises:
        ScheduleError: no such loop; it is no longer serial; it is inside a vector loop; a register
            would be shared; an iteration may read what another one writes (a reduction included).
    """
    target = find_serial("parallel", func, loop)
    check_outside_vectors("parallel", func, loop)
    private = allocs(target.body)
    for name, alloc in allocs(func.body).items():
        used = name in written(target.body) and name not in private
        if alloc.scope.is_fixed and used:
            refuse("parallel", func, f"the {alloc.scope} buffer '{name}' would be shared")
    if reason := why_not_independent(func, loop):
        refuse("parallel", func, reason)
    return swap_loop(func, loop, lambda f: replace(f, kind=LoopKind.PARALLEL))
