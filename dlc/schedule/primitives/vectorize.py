"""vectorize: run the iterations of a loop as lanes of vectors."""

from __future__ import annotations

from dataclasses import replace

from dlc.schedule.dependence import why_not_independent
from dlc.schedule.edit import swap_loop
from dlc.schedule.loop import Alloc, For, Func, Invoke, LoopKind, walk
from dlc.schedule.primitive import (
    check_outside_vectors,
    find_serial,
    primitive,
    refuse,
)
from dlc.te.expr import Const

_NOT_INSIDE = (
    LoopKind.VECTOR,
    LoopKind.PARALLEL,
    LoopKind.BLOCK,
    LoopKind.THREAD,
    LoopKind.WARP,
)


@primitive
def vectorize(func: Func, loop: str) -> Func:
    """Run the iterations of a loop of constant extent as lanes of vectors.

    A reduction over the loop is allowed: its lanes are combined in any order.

    Before:
        def copy(A: f32[8], *, B: f32[8]):
            for i in range(8):
                B[i] = A[i]

    Call:
        vectorize("i")

    After:
        def copy(A: f32[8], *, B: f32[8]):
            for i in vectorize(8):
                B[i] = A[i]

    Raises:
        ScheduleError: no such loop; it is no longer serial; its extent is not a constant; it is
            inside a vector loop, or one is inside it, or a parallel loop, a buffer or an
            instruction is; an iteration may read what another one writes.
    """
    target = find_serial("vectorize", func, loop)
    if not isinstance(target.extent, Const):
        reason = f"loop '{loop}' runs {target.extent} times, which is not a constant"
        refuse("vectorize", func, reason, "split it by the number of lanes")
    check_outside_vectors("vectorize", func, loop)
    for stmt in walk(target.body):
        match stmt:
            case For(var, _, kind, _) if kind in _NOT_INSIDE:
                refuse("vectorize", func, f"the {kind} loop '{var}' is inside '{loop}'")
            case Alloc(buffer, _, _):
                refuse("vectorize", func, f"buffer '{buffer.name}' is allocated inside '{loop}'")
            case Invoke(name, _):
                refuse("vectorize", func, f"the instruction '{name}' is inside '{loop}'")
    if reason := why_not_independent(func, loop, reductions=True):
        refuse("vectorize", func, reason)
    return swap_loop(func, loop, lambda f: replace(f, kind=LoopKind.VECTOR))
