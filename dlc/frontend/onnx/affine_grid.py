"""The converter of AffineGrid: where GridSample finds the pixels of an image that is moved.

Source: https://onnx.ai/onnx/operators/onnx__AffineGrid.html
"""

from __future__ import annotations

import numpy as np

from dlc.core.types import DType
from dlc.frontend.onnx.cast import cast_to
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.reshape import reshape_to
from dlc.frontend.onnx.slicing import slice_axes
from dlc.graph.graph import Value
from dlc.graph.ops.binary import Add, Div, Mul
from dlc.graph.ops.from_sizes import Range
from dlc.graph.ops.precision import wide
from dlc.te.expr import ONE, Expr, index, maximum
from dlc.te.simplify import canonical


@converter("AffineGrid", since=20)
def convert_affine_grid(
    ctx: Context, theta: Value, size: Value, *, align_corners: int = 0
) -> Value:
    """`theta` times the coordinates of each pixel and 1, x before y before z.

    Of one pixel, aligned corners are the first.
    """
    batch, *others = ctx.need_sizes(size, "the size")
    extents = others[1:]  # without channels
    rank = len(extents)
    if rank not in (2, 3) or theta.type.rank != 3:
        ctx.refuse(f"a size of {rank + 2} dimensions with theta of type {theta.type}")
    for have, need in zip(theta.type.shape, (batch, index(rank), index(rank + 1)), strict=True):
        ctx.require_equal(have, need, f"theta of type {theta.type} is not {rank} x {rank + 1}")
    shape = (batch, *(ONE,) * rank, index(rank))
    grid = _column(ctx, theta, rank, shape)
    for number, extent in enumerate(reversed(extents)):
        along: list[Expr] = [ONE] * (rank + 2)
        along[rank - number] = extent
        places = _coordinates(ctx, extent, theta.type.dtype, aligned=bool(align_corners))
        places = reshape_to(ctx, places, tuple(along))
        grid = ctx.call(Add(), grid, ctx.call(Mul(), places, _column(ctx, theta, number, shape)))
    return grid


def _column(ctx: Context, theta: Value, number: int, shape: tuple[Expr, ...]) -> Value:
    """What each result gets of one coordinate: [batch, 1, ..., results]."""
    column = slice_axes(ctx, theta, [index(number)], [index(number + 1)], [2], [1])
    return reshape_to(ctx, column, shape)


def _coordinates(ctx: Context, extent: Expr, dtype: DType, *, aligned: bool) -> Value:
    """Of the pixels along an axis, from -1 to 1: of their centres, or of the outermost ones.

    Each is a quotient of two whole numbers, which halves do not tell apart.
    """
    count = canonical(maximum(extent - 1, ONE)) if aligned else extent
    first = -count if aligned else canonical(1 - count)
    doubled = ctx.call(Range(size=extent, start=first, delta=index(2)))
    total = ctx.size_tensor(np.array(count, np.object_))
    computed = wide(dtype)
    found = ctx.call(Div(), cast_to(ctx, doubled, computed), cast_to(ctx, total, computed))
    return cast_to(ctx, found, dtype)
