"""Converters of operators that are computed in a wider element type than their operands'.

Source: https://onnx.ai/onnx/operators/
"""

from __future__ import annotations

from collections.abc import Sequence

from dlc.core.types import FLOATS, DType
from dlc.frontend.onnx.cast import cast_to, common_float
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.elementwise import axes_of
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.reshape import transpose
from dlc.graph.graph import Value
from dlc.graph.ops.activation import Shrink
from dlc.graph.ops.binary import Add, Div, Mul, Sub
from dlc.graph.ops.elementwise import IsInf, IsNaN, Sqrt
from dlc.graph.ops.reduce import Reduce
from dlc.graph.ops.sample import GridSample, GridSamplePixels
from dlc.te.simplify import surely_less


def _readable(ctx: Context, x: Value) -> Value:
    """Floats of 8 bits and less as f32, which holds them exactly."""
    narrow = x.type.dtype.is_float and x.type.dtype not in FLOATS
    return cast_to(ctx, x, DType.F32) if narrow else x


@converter("IsNaN", since=9)
def convert_is_nan(ctx: Context, x: Value) -> Value:
    """True where x is not a number."""
    return ctx.call(IsNaN(), _readable(ctx, x))


@converter("IsInf", since=10)
def convert_is_inf(
    ctx: Context, x: Value, *, detect_negative: int = 1, detect_positive: int = 1
) -> Value:
    """True where x is an infinity of a sign that is looked for."""
    op = IsInf(detect_negative=detect_negative, detect_positive=detect_positive)
    return ctx.call(op, _readable(ctx, x))


@converter("Shrink", since=9)
def convert_shrink(ctx: Context, x: Value, *, bias: float = 0.0, lambd: float = 0.5) -> Value:
    """x moved by bias toward 0 outside of -lambd ... lambd, else 0; of integers the whole part."""
    inner = x if x.type.dtype.is_float else cast_to(ctx, x, DType.F64)
    return cast_to(ctx, ctx.call(Shrink(bias=bias, lambd=lambd), inner), x.type.dtype)


_VECTOR = 8
"""Channels from which those of a pixel are read as vectors."""


@converter("GridSample", since=16)
def convert_grid_sample(
    ctx: Context,
    x: Value,
    grid: Value,
    *,
    align_corners: int = 0,
    mode: str = "linear",
    padding_mode: str = "zeros",
) -> Value:
    """x at the positions of a grid; of integers the whole part."""
    if x.type.dtype is DType.STR:
        ctx.refuse("it is not handled for texts")
    wide = x.type.dtype.is_int and x.type.dtype.bits > 16
    inner = DType.F64 if wide else common_float(x, grid)
    x_wide, places = cast_to(ctx, x, inner), cast_to(ctx, grid, inner)
    if x.type.rank < 3 or not surely_less(_VECTOR - 1, x.type.shape[1]):
        op = GridSample(align_corners=align_corners, mode=mode, padding_mode=padding_mode)
        return cast_to(ctx, ctx.call(op, x_wide, places), x.type.dtype)
    spatial = range(1, x.type.rank - 1)
    pixels = transpose(ctx, x_wide, (0, *(d + 1 for d in spatial), 1))
    of_pixels = GridSamplePixels(align_corners=align_corners, mode=mode, padding_mode=padding_mode)
    y = transpose(ctx, ctx.call(of_pixels, pixels, places), (0, x.type.rank - 1, *spatial))
    return cast_to(ctx, y, x.type.dtype)


@converter("MeanVarianceNormalization", since=9)
def convert_mean_variance(ctx: Context, x: Value, *, axes: Sequence[int] = (0, 2, 3)) -> Value:
    """(x - mean) / (standard deviation + 1e-9), in at least f32."""
    inner = cast_to(ctx, x, DType.F64 if x.type.dtype is DType.F64 else DType.F32)
    over = tuple(sorted(axes_of(ctx, axes, x.type.rank)))
    mean = Reduce(kind="mean", axes=over, keepdims=True)
    apart = ctx.call(Sub(), inner, ctx.call(mean, inner))
    spread = ctx.call(Sqrt(), ctx.call(mean, ctx.call(Mul(), apart, apart)))
    least = ctx.scalar(1e-9, inner.type.dtype)
    y = ctx.call(Div(), apart, ctx.call(Add(), spread, least))
    return cast_to(ctx, y, x.type.dtype)
