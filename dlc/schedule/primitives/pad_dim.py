"""pad_dim: leave a gap behind each row of an intermediate."""

from __future__ import annotations

from dataclasses import replace

from dlc.schedule.edit import swap_alloc, touched_by_invoke
from dlc.schedule.loop import Func
from dlc.schedule.primitive import find_intermediate, primitive, refuse
from dlc.te.simplify import canonical
from dlc.te.types import TensorType


@primitive
def pad_dim(func: Func, buffer: str, dim: int, extra: int) -> Func:
    """Make a dimension of an intermediate larger; the new elements are never used.

    Memory that many threads use at the same time comes in banks, and a gap lets the rows of a
    buffer begin in different ones.

    Before:
        def f(A: f32[4, 8], *, B: f32[4, 8]):
            t = alloc(f32[4, 8], "shared")
            for i in range(4):
                for j in range(8):
                    t[i, j] = A[i, j]
            for k in range(4):
                for l in range(8):
                    B[k, l] = t[k, l]

    Call:
        pad_dim("t", 1, 1)

    After:
        def f(A: f32[4, 8], *, B: f32[4, 8]):
            t = alloc(f32[4, 9], "shared")
            for i in range(4):
                for j in range(8):
                    t[i, j] = A[i, j]
            for k in range(4):
                for l in range(8):
                    B[k, l] = t[k, l]

    Raises:
        ScheduleError: no such intermediate or dimension; a negative gap; an instruction uses the
            buffer.
    """
    alloc = find_intermediate("pad_dim", func, buffer)
    shape = alloc.buffer.type.shape
    if not 0 <= dim < len(shape):
        refuse("pad_dim", func, f"'{buffer}' has no dimension {dim}")
    if extra < 0:
        refuse("pad_dim", func, f"a gap of {extra} is below 0")
    if touched_by_invoke(alloc, buffer):
        refuse("pad_dim", func, f"an instruction uses '{buffer}'")
    sizes = tuple(canonical(n + extra) if d == dim else n for d, n in enumerate(shape))
    new = replace(alloc.buffer, type=TensorType(sizes, alloc.buffer.type.dtype))
    return swap_alloc(func, buffer, lambda a: replace(a, buffer=new))
