"""Converter of onnxruntime's crops of images that are resized: one point for each pixel.

Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

import numpy as np

from dlc.core.types import DType
from dlc.frontend.onnx.cast import cast_to
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.generate import fill
from dlc.frontend.onnx.indices import checked
from dlc.frontend.onnx.matmul import scaled
from dlc.frontend.onnx.microsoft import DOMAIN
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.reshape import transpose, unsqueeze
from dlc.frontend.onnx.slicing import concat, slice_axes
from dlc.graph.arrays import NUMPY_DTYPES
from dlc.graph.graph import Value
from dlc.graph.ops.binary import Add, Greater, Less, Mul, Or, Sub, Where
from dlc.graph.ops.elementwise import Floor
from dlc.graph.ops.roi import RoiAlign
from dlc.te.expr import ONE, ZERO, Expr, index


@converter("CropAndResize", since=1, domain=DOMAIN)
def convert_crop_and_resize(
    ctx: Context,
    x: Value,
    rois: Value,
    images: Value,
    crop_size: Value,
    *,
    extrapolation_value: float = 0.0,
    mode: str = "bilinear",
) -> Value:
    """Regions of images, each resized so that its corners are corners of the result.

    Shapes:
        x: [n, c, h, w]; rois: [r, 4] as top, left, bottom, right, from 0 to 1; images: [r];
        crop_size: [2] -> [r, c, *crop_size]
    """
    if mode not in ("bilinear", "nearest"):
        ctx.refuse(f"mode = '{mode}' is not known")
    counts = ctx.ints(crop_size, "crop_size")
    if x.type.rank != 4 or rois.type.rank != 2 or len(counts) != 2 or min(counts) < 1:
        ctx.refuse(f"crops of {rois.type} from {x.type} in size {list(counts)}")
    sides = [
        _places(ctx, rois, d, size, counts[d], max(counts))
        for d, size in enumerate(x.type.shape[2:])
    ]
    near = [_rounded(ctx, at) if mode == "nearest" else at for at, _ in sides]
    points = concat(ctx, [unsqueeze(ctx, at, (1, 3)) for at in near], 1)  # [r, 2, most, 1]
    each = fill(ctx, np.ones((), NUMPY_DTYPES[rois.type.dtype]), (rois.type.shape[0], index(2)))
    inside = cast_to(ctx, checked(ctx, images, x.type.shape[:1], negative=False), DType.I64)
    op = RoiAlign(out=(counts[0], counts[1]))
    made = ctx.call(op, transpose(ctx, x, (0, 2, 3, 1)), each, points, inside)
    y = transpose(ctx, made, (0, 3, 1, 2))
    rows, columns = (
        unsqueeze(ctx, slice_axes(ctx, beyond, [ZERO], [index(n)], [1], [1]), axes)
        for (_, beyond), n, axes in zip(sides, counts, ((1, 3), (1, 2)), strict=True)
    )
    outside = ctx.call(Or(), rows, columns)
    return ctx.call(Where(), outside, ctx.scalar(extrapolation_value, x.type.dtype), y)


def _places(
    ctx: Context, rois: Value, d: int, size: Expr, count: int, most: int
) -> tuple[Value, Value]:
    """Where the pixels of each region lie along an axis of the image, and which lie outside of it.

    Of `most` pixels those from `count` on mean nothing: [r, most].
    """
    dtype = rois.type.dtype
    last = cast_to(ctx, ctx.size_tensor(np.array(size - ONE, np.object_)), dtype)
    start, end = (
        ctx.call(Mul(), slice_axes(ctx, rois, [index(i)], [index(i + 1)], [1], [1]), last)
        for i in (d, d + 2)
    )
    steps = np.arange(most, dtype=NUMPY_DTYPES[dtype])[None]
    if count == 1:
        at = scaled(ctx, ctx.call(Add(), start, end), 0.5)
        at = ctx.call(Add(), at, ctx.constant(steps * 0))
    else:
        step = scaled(ctx, ctx.call(Sub(), end, start), 1 / (count - 1))
        at = ctx.call(Add(), start, ctx.call(Mul(), ctx.constant(steps), step))
        at = ctx.call(Where(), ctx.constant(steps == count - 1), end, at)
    below = ctx.call(Less(), at, ctx.scalar(0.0, dtype))
    return at, ctx.call(Or(), below, ctx.call(Greater(), at, last))


def _rounded(ctx: Context, at: Value) -> Value:
    """The nearest whole numbers; halves go up."""
    return ctx.call(Floor(), ctx.call(Add(), at, ctx.scalar(0.5, at.type.dtype)))
