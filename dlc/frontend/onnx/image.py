"""Converters of operators on images and their patches.

Source: https://onnx.ai/onnx/operators/
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dlc.core.types import INDEX, DType
from dlc.frontend.onnx.cast import cast_to
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.conv import add_bias, kernel_sizes
from dlc.frontend.onnx.indices import checked
from dlc.frontend.onnx.matmul import scaled
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.reshape import reshape_to, transpose
from dlc.frontend.onnx.slicing import concat, slice_axes
from dlc.frontend.onnx.windows import per_axis
from dlc.graph.arrays import round_to
from dlc.graph.graph import Value
from dlc.graph.ops.binary import Div, Maximum, Minimum, Sub
from dlc.graph.ops.columns import Col2Im, DeformColumns
from dlc.graph.ops.elementwise import Ceil
from dlc.graph.ops.matmul import MatMul
from dlc.graph.ops.reduce import Reduce
from dlc.graph.ops.roi import MaxRoiPool, RoiAlign, RoiPoints
from dlc.graph.ops.shape import Pad
from dlc.graph.ops.unpool import MaxUnpool
from dlc.te.expr import ONE, ZERO, Const, Expr, const, index
from dlc.te.simplify import canonical, surely_equal


@converter("Col2Im", since=18)
def convert_col2im(
    ctx: Context,
    x: Value,
    image_shape: Value,
    block_shape: Value,
    *,
    dilations: Sequence[int] = (),
    pads: Sequence[int] = (),
    strides: Sequence[int] = (),
) -> Value:
    """The sum of patches laid where they were cut out."""
    image = ctx.need_sizes(image_shape, "the shape of the image")
    kernel = ctx.ints(block_shape, "the shape of a patch")
    rank = len(kernel)
    op = Col2Im(
        image=image,
        kernel=kernel,
        stride=per_axis(ctx, strides, rank, 1, "strides"),
        pads=per_axis(ctx, pads, 2 * rank, 0, "pads"),
        dilation=per_axis(ctx, dilations, rank, 1, "dilations"),
    )
    if len(image) != rank or min((*kernel, *op.stride, *op.dilation), default=0) < 1:
        ctx.refuse(f"patches of {list(kernel)} in an image of {len(image)} dimensions")
    return ctx.call(op, x)


@converter("DeformConv", since=19)
def convert_deform_conv(
    ctx: Context,
    x: Value,
    w: Value,
    offset: Value,
    bias: Value | None = None,
    mask: Value | None = None,
    *,
    dilations: Sequence[int] = (),
    group: int = 1,
    kernel_shape: Sequence[int] = (),
    offset_group: int = 1,
    pads: Sequence[int] = (),
    strides: Sequence[int] = (),
) -> Value:
    """A convolution whose taps are moved: the patches, times the weights."""
    kernel = kernel_sizes(ctx, w, kernel_shape)
    if len(kernel) != 2:
        ctx.refuse(f"images of {len(kernel)} dimensions are not handled")
    top, left, bottom, right = per_axis(ctx, pads, 4, 0, "pads")
    sy, sx = per_axis(ctx, strides, 2, 1, "strides")
    dy, dx = per_axis(ctx, dilations, 2, 1, "dilations")
    op = DeformColumns(
        kernel=(kernel[0], kernel[1]),
        stride=(sy, sx),
        pads=(top, left, bottom, right),
        dilation=(dy, dx),
        groups=offset_group,
    )
    columns = ctx.call(op, x, offset) if mask is None else ctx.call(op, x, offset, mask)
    n, rows, *out = columns.type.shape
    pixels = canonical(out[0] * out[1])
    outputs, each = w.type.shape[0], canonical(w.type.shape[1] * math.prod(kernel))
    patches = reshape_to(ctx, columns, (n, const(group, INDEX), canonical(rows // group), pixels))
    weights = reshape_to(ctx, w, (const(group, INDEX), canonical(outputs // group), each))
    made = ctx.call(MatMul(), weights, patches)
    return add_bias(ctx, reshape_to(ctx, made, (n, outputs, *out)), bias)


@converter("MaxUnpool", since=9)
def convert_max_unpool(
    ctx: Context,
    x: Value,
    indices: Value,
    output_shape: Value | None = None,
    *,
    kernel_shape: Sequence[int],
    pads: Sequence[int] = (),
    strides: Sequence[int] = (),
) -> Value:
    """The inverse of MaxPool: indices count through the image without what `output_shape` adds."""
    rank = len(kernel_shape)
    if x.type.rank != rank + 2:
        ctx.refuse(f"kernel_shape of length {rank} for {x.type}")
    stride = per_axis(ctx, strides, rank, 1, "strides")
    given = per_axis(ctx, pads, 2 * rank, 0, "pads")
    image = tuple(
        canonical((n - 1) * s + (k - a - b))
        for n, s, k, a, b in zip(
            x.type.shape[2:], stride, kernel_shape, given[:rank], given[rank:], strict=True
        )
    )
    op = MaxUnpool(kernel=tuple(kernel_shape), stride=stride, pads=given, image=image)
    whole = x.type.shape[0] * x.type.shape[1]
    for size in image:
        whole = whole * size
    y = ctx.call(op, x, checked(ctx, indices, (canonical(whole),), negative=False))
    return y if output_shape is None else _extended(ctx, y, output_shape)


def _extended(ctx: Context, y: Value, output_shape: Value) -> Value:
    """With zeros behind, up to a shape."""
    wanted = ctx.need_sizes(output_shape, "the shape of the result")
    if len(wanted) != y.type.rank:
        ctx.refuse(f"output_shape of length {len(wanted)} for {y.type}")
    pairs = list(zip(wanted, y.type.shape, strict=True))
    if all(surely_equal(n, m, ctx.bounds) for n, m in pairs):
        return y
    after: list[Expr] = [canonical(n - m) for n, m in pairs]
    if not all(isinstance(n, Const) and n.value >= 0 for n in after):
        reason = f"output_shape is smaller than {y.type}, or may be"
        ctx.refuse(reason, needs=output_shape.name)
    return ctx.call(Pad(before=(ZERO,) * len(after), after=tuple(after)), y)


@converter("RoiAlign", since=10)
def convert_roi_align_10(
    ctx: Context,
    x: Value,
    rois: Value,
    images: Value,
    *,
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Value:
    """Before opset 16 pixels began at whole coordinates."""
    return _roi_align(
        ctx, x, rois, images, mode, (output_height, output_width), sampling_ratio,
        spatial_scale, half_pixel=False,
    )  # fmt: skip


@converter("RoiAlign", since=16)
def convert_roi_align(
    ctx: Context,
    x: Value,
    rois: Value,
    images: Value,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Value:
    """Pooling of interpolated points in regions."""
    if coordinate_transformation_mode not in ("half_pixel", "output_half_pixel"):
        ctx.refuse(f"coordinate_transformation_mode = '{coordinate_transformation_mode}'")
    return _roi_align(
        ctx, x, rois, images, mode, (output_height, output_width), sampling_ratio,
        spatial_scale, half_pixel=coordinate_transformation_mode == "half_pixel",
    )  # fmt: skip


def _roi_align(
    ctx: Context,
    x: Value,
    rois: Value,
    images: Value,
    mode: str,
    out: tuple[int, int],
    samples: int,
    scale: float,
    *,
    half_pixel: bool,
) -> Value:
    most = _most_points(ctx, rois, out, scale, half_pixel) if samples < 1 else index(samples)
    found = RoiPoints(
        out=out, samples=most, scale=scale, half_pixel=half_pixel, adaptive=samples < 1
    )
    if x.type.rank != 4:
        ctx.refuse(f"needs images of two dimensions, not {x.type}")
    counts, points = ctx.call_all(found, rois, count=2)
    inside = checked(ctx, images, x.type.shape[:1], negative=False)
    pixels = transpose(ctx, x, (0, 2, 3, 1))
    op = RoiAlign(out=out, mode=mode, adaptive=samples < 1)
    return transpose(ctx, ctx.call(op, pixels, counts, points, inside), (0, 3, 1, 2))


_MOST_POINTS = 1 << 12
"""Points along one axis of a part of a region: images have fewer pixels there."""


def _most_points(
    ctx: Context, rois: Value, out: tuple[int, int], scale: float, half_pixel: bool
) -> Expr:
    """As many points as the largest part of a region has pixels along an axis, and one to spare."""
    first, last = (
        scaled(ctx, slice_axes(ctx, rois, [index(a)], [index(a + 2)], [1], [1]), scale)
        for a in (0, 2)
    )
    length = ctx.call(Sub(), last, first)
    least = ctx.scalar(0.0 if half_pixel else 1.0, length.type.dtype)
    sides = ctx.constant(round_to(np.array(out[::-1], np.float64), length.type.dtype))
    pixels = ctx.call(Ceil(), ctx.call(Div(), ctx.call(Maximum(), length, least), sides))
    whole = ctx.call(Reduce(kind="max", axes=(0, 1), keepdims=False), pixels)
    low, high = (ctx.scalar(v, whole.type.dtype) for v in (0.0, _MOST_POINTS))
    most = cast_to(ctx, ctx.call(Minimum(), ctx.call(Maximum(), whole, low), high), DType.I64)
    size = ctx.data.size(ctx.one_size(most, "the number of points") + 1)
    message = f"node '{ctx.node.label}': a region has {_MOST_POINTS} points or more along an axis"
    ctx.data.refuse_negative(index(_MOST_POINTS) - size, message)  # one to spare was added
    return size


@converter("MaxRoiPool", since=1)
def convert_max_roi_pool(
    ctx: Context, x: Value, rois: Value, *, pooled_shape: Sequence[int], spatial_scale: float = 1.0
) -> Value:
    """The largest element in each part of a region."""
    height, width = per_axis(ctx, pooled_shape, 2, 1, "pooled_shape")
    first = cast_to(ctx, slice_axes(ctx, rois, [ZERO], [ONE], [1], [1]), DType.I64)
    images = cast_to(ctx, checked(ctx, first, x.type.shape[:1], negative=False), rois.type.dtype)
    sides = slice_axes(ctx, rois, [ONE], [index(5)], [1], [1])
    named = concat(ctx, [images, sides], 1)
    return ctx.call(MaxRoiPool(out=(height, width), scale=spatial_scale), x, named)


@converter("ImageDecoder", since=20)
def convert_image_decoder(ctx: Context, data: Value, *, pixel_format: str = "RGB") -> Value:
    """Refused: decoders are what hostile files attack, and none may run inside of an artefact.

    A file's format and size are data, so is the shape of the pixels, and an artefact needs no
    library but libc's. Decoding belongs before the model, where the caller chooses the library.
    """
    ctx.refuse("a compiled model decodes no images", "decode before the model, and pass pixels")
