"""fuse_dims: two neighbouring dimensions of an intermediate become one."""

from __future__ import annotations

from dataclasses import replace

from dlc.schedule.edit import redirect, swap_alloc, touched_by_invoke
from dlc.schedule.loop import Func, loops
from dlc.schedule.primitive import find_intermediate, primitive, refuse
from dlc.te.affine import loop_bounds
from dlc.te.expr import Binary, BinOp, Expr
from dlc.te.simplify import Bounds, canonical, simplify
from dlc.te.types import TensorType


@primitive
def fuse_dims(func: Func, buffer: str, dim: int) -> Func:
    """Store dimensions `dim` and `dim + 1` of an intermediate as one, in the same order.

    Where the two indices are quotient and remainder of one expression, as they are after `fuse`,
    the new index is that expression.

    Before:
        def f(A: f32[3, 4], *, B: f32[3, 4]):
            t = alloc(f32[3, 4], "local")
            for i in range(12):
                t[i // 4, i % 4] = A[i // 4, i % 4] * 2.0
            for j in range(3):
                for k in range(4):
                    B[j, k] = t[j, k]

    Call:
        fuse_dims("t", 0)

    After:
        def f(A: f32[3, 4], *, B: f32[3, 4]):
            t = alloc(f32[12], "local")
            for i in range(12):
                t[i] = A[i // 4, i % 4] * 2.0
            for j in range(3):
                for k in range(4):
                    B[j, k] = t[j * 4 + k]

    Raises:
        ScheduleError: no such intermediate or dimensions; an instruction uses the buffer.
    """
    alloc = find_intermediate("fuse_dims", func, buffer)
    shape = alloc.buffer.type.shape
    if not 0 <= dim < len(shape) - 1:
        refuse("fuse_dims", func, f"'{buffer}' has no dimensions {dim} and {dim + 1}")
    if touched_by_invoke(alloc, buffer):
        refuse("fuse_dims", func, f"an instruction uses '{buffer}'")
    inner = shape[dim + 1]
    bounds = loop_bounds({v: f.extent for v, f in loops(func.body).items()})

    def at(index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return (*index[:dim], _join(index[dim], index[dim + 1], inner, bounds), *index[dim + 2 :])

    sizes = (*shape[:dim], canonical(shape[dim] * inner), *shape[dim + 2 :])
    new = replace(alloc.buffer, type=TensorType(sizes, alloc.buffer.type.dtype))
    return swap_alloc(
        func, buffer, lambda a: replace(a, buffer=new, body=redirect(a.body, buffer, buffer, at))
    )


def _join(outer: Expr, inner: Expr, size: Expr, bounds: Bounds) -> Expr:
    """`outer * size + inner`, without the detour over quotient and remainder."""
    match simplify(inner, bounds):
        case Binary(BinOp.MOD, whole, divisor) if divisor == size:
            if simplify(outer, bounds) == simplify(whole // size, bounds):
                return whole
    return outer * size + inner
