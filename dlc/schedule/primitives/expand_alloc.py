"""expand_alloc: give each iteration of a loop its own part of one buffer outside of the loop."""

from __future__ import annotations

from dataclasses import replace

from dlc.schedule.edit import redirect, swap_alloc, swap_loop, touched_by_invoke
from dlc.schedule.loop import Alloc, Func, LoopKind, Stmt, allocs, loops
from dlc.schedule.primitive import find_intermediate, find_loop, primitive, refuse
from dlc.te.expr import Var
from dlc.te.types import TensorType

_IN_ORDER = (LoopKind.SERIAL, LoopKind.UNROLL)


@primitive
def expand_alloc(func: Func, buffer: str, loop: str) -> Func:
    """Allocate a buffer outside of a loop, with one part for each of its iterations.

    What fills the buffer and what reads it may then become loops of their own (`fission`). Outside
    of the block loops of a GPU, the buffer is memory that all blocks see.

    Before:
        def f(A: f32[4, 8], *, B: f32[4]):
            for i in range(4):
                t = alloc(f32[2], "local")
                for j in range(2):
                    t[j] = A[i, j] + A[i, j + 2]
                B[i] = t[0] * t[1]

    Call:
        expand_alloc("t", "i")

    After:
        def f(A: f32[4, 8], *, B: f32[4]):
            t = alloc(f32[4, 2], "local")
            for i in range(4):
                for j in range(2):
                    t[i, j] = A[i, j] + A[i, j + 2]
                B[i] = t[i, 0] * t[i, 1]

    Raises:
        ScheduleError: no such intermediate or loop; the buffer is not allocated inside of the loop,
            or a loop in between does not run in order; the loop is a vector loop; an instruction
            uses the buffer; a register buffer would have no constant shape.
    """
    alloc = find_intermediate("expand_alloc", func, buffer)
    target = find_loop("expand_alloc", func, loop)
    if buffer not in allocs(target.body):
        refuse("expand_alloc", func, f"'{buffer}' is not allocated inside of loop '{loop}'")
    if target.kind is LoopKind.VECTOR:
        refuse("expand_alloc", func, f"loop '{loop}' is a vector loop")
    if touched_by_invoke(alloc, buffer):
        refuse("expand_alloc", func, f"an instruction uses '{buffer}'")
    for var, inner in loops(target.body).items():
        if inner.kind not in _IN_ORDER and buffer in allocs(inner.body):
            refuse("expand_alloc", func, f"loop '{var}' in between does not run in order")
    type_ = TensorType((target.extent, *alloc.buffer.type.shape), alloc.buffer.type.dtype)
    if alloc.scope.is_fixed and not type_.is_static:
        refuse("expand_alloc", func, f"'{buffer}' would have the shape {type_}, not a constant")
    whole = replace(alloc.buffer, type=type_)

    def opened(found: Alloc) -> Stmt:
        return redirect(found.body, buffer, buffer, lambda index: (Var(loop), *index))

    result = swap_alloc(func, buffer, opened)
    return swap_loop(result, loop, lambda f: Alloc(whole, alloc.scope, f))
