"""transform_layout: store an intermediate in another order."""

from __future__ import annotations

from dataclasses import replace

from dlc.core.types import INDEX
from dlc.schedule.edit import redirect, swap_alloc, touched_by_invoke
from dlc.schedule.loop import Func
from dlc.schedule.primitive import find_intermediate, primitive, refuse
from dlc.te.expr import Const, Expr, ceil_div
from dlc.te.simplify import canonical
from dlc.te.types import TensorType


@primitive
def transform_layout(
    func: Func, buffer: str, permutation: tuple[int, ...], factors: tuple[int, ...] = ()
) -> Func:
    """Split dimensions of an intermediate by constant factors, then permute them.

    `factors` has one number for each dimension, 1 for those that stay whole; a split dimension
    becomes two, the blocks before the places in a block. `permutation` lists the dimensions there
    are then in their new order. Elements that fill the last block up are never used.

    Before:
        def f(A: f32[3, 10], *, B: f32[10]):
            t = alloc(f32[3, 10], "local")
            for i in range(3):
                for j in range(10):
                    t[i, j] = A[i, j] * 2.0
            for k in range(10):
                B[k] = t[0, k] + t[2, k]

    Call:
        transform_layout("t", (1, 0, 2), (1, 4))

    After:
        def f(A: f32[3, 10], *, B: f32[10]):
            t = alloc(f32[3, 3, 4], "local")
            for i in range(3):
                for j in range(10):
                    t[j // 4, i, j % 4] = A[i, j] * 2.0
            for k in range(10):
                B[k] = t[k // 4, 0, k % 4] + t[k // 4, 2, k % 4]

    Raises:
        ScheduleError: no such intermediate; not one factor of at least 1 for each dimension; the
            permutation does not name each dimension once; an instruction uses the buffer.
    """
    alloc = find_intermediate("transform_layout", func, buffer)
    rank = alloc.buffer.type.rank
    parts = factors or (1,) * rank
    if len(parts) != rank or any(f < 1 for f in parts):
        refuse("transform_layout", func, f"{parts} are not the factors of {rank} dimensions")
    split_rank = rank + sum(f > 1 for f in parts)
    if sorted(permutation) != list(range(split_rank)):
        refuse("transform_layout", func, f"{permutation} does not permute {split_rank} dimensions")
    if touched_by_invoke(alloc, buffer):
        refuse("transform_layout", func, f"an instruction uses '{buffer}'")

    sizes: list[Expr] = []
    for size, factor in zip(alloc.buffer.type.shape, parts, strict=True):
        whole = canonical(ceil_div(size, factor))
        sizes += [whole, Const(factor, INDEX)] if factor > 1 else [size]

    def at(index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        digits: list[Expr] = []
        for part, factor in zip(index, parts, strict=True):
            digits += [part // factor, part % factor] if factor > 1 else [part]
        return tuple(digits[d] for d in permutation)

    type_ = TensorType(tuple(sizes[d] for d in permutation), alloc.buffer.type.dtype)
    new = replace(alloc.buffer, type=type_)
    return swap_alloc(
        func, buffer, lambda a: replace(a, buffer=new, body=redirect(a.body, buffer, buffer, at))
    )
