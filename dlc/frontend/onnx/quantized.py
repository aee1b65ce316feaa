"""Converters of quantized operators, spelled out: integers are moved and scaled explicitly.

Source: https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html and its siblings
"""

from __future__ import annotations

from typing import Unpack

from dlc.core.types import FLOATS, INDEX, DType
from dlc.frontend.onnx.cast import cast_to, number_type, saturated
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.conv import ConvAttributes, conv
from dlc.frontend.onnx.elementwise import axes_of
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.reshape import reshape_to
from dlc.graph.graph import Value
from dlc.graph.ops.binary import Add, Div, Mul, Sub
from dlc.graph.ops.elementwise import Round
from dlc.graph.ops.few_bits import DequantizeBlocks
from dlc.graph.ops.matmul import MatMul
from dlc.graph.ops.shape import Expand, Slice
from dlc.te.expr import ONE, ZERO, const
from dlc.te.simplify import surely_equal
from dlc.te.types import is_const

Blocks = tuple[int, int]
"""The axis along which scales differ, and how many positions share one in blocks, or 0."""


@converter("QuantizeLinear", since=10)
def convert_quantize(
    ctx: Context,
    x: Value,
    scale: Value,
    zero: Value | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
) -> Value:
    """round(x / scale) + zero, held in the range of the type; halves go to the even number."""
    wanted = number_type(ctx, output_dtype) if output_dtype else DType.U8
    wanted = wanted if zero is None else zero.type.dtype
    inner = number_type(ctx, precision) if precision else _computed(scale.type.dtype)
    scale = cast_to(ctx, scale, inner)
    blocks = (axis, block_size)
    return quantized(ctx, x, scale, zero, blocks, wanted, saturate=bool(saturate))


def _computed(dtype: DType) -> DType:
    """The type in which a scale is used: neither integers nor powers of two alone will do."""
    return dtype if dtype in FLOATS else DType.F32


def quantized(
    ctx: Context,
    x: Value,
    scale: Value,
    zero: Value | None,
    blocks: Blocks,
    dtype: DType,
    *,
    saturate: bool = True,
) -> Value:
    """round(x / scale) + zero as `dtype`."""
    x = cast_to(ctx, x, scale.type.dtype)
    y = ctx.call(Div(), x, along(ctx, scale, blocks, x))
    if not dtype.is_float:
        y = ctx.call(Round(), y)
    if zero is not None and not _is_zero(ctx, zero):
        y = ctx.call(Add(), y, along(ctx, cast_to(ctx, zero, y.type.dtype), blocks, x))
    return cast_to(ctx, saturated(ctx, y, dtype) if dtype.is_float and saturate else y, dtype)


@converter("DequantizeLinear", since=10)
def convert_dequantize(
    ctx: Context,
    x: Value,
    scale: Value,
    zero: Value | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Value:
    """(x - zero) * scale."""
    wanted = number_type(ctx, output_dtype) if output_dtype else None
    scale = cast_to(ctx, scale, _computed(scale.type.dtype))
    y = dequantized(ctx, x, scale, zero, (axis, block_size))
    return y if wanted is None else cast_to(ctx, y, wanted)


def dequantized(ctx: Context, x: Value, scale: Value, zero: Value | None, blocks: Blocks) -> Value:
    """(x - zero) * scale."""
    if blocks[1] and ctx.array(x) is not None and _is_plain(x, scale):
        return _in_blocks(ctx, x, scale, zero, blocks)
    if x.type.dtype.is_float:
        number = cast_to(ctx, x, scale.type.dtype)
        if zero is not None and not _is_zero(ctx, zero):
            shift = along(ctx, cast_to(ctx, zero, scale.type.dtype), blocks, x)
            number = ctx.call(Sub(), number, shift)
    else:
        number = cast_to(ctx, moved(ctx, x, zero, blocks), scale.type.dtype)
    return ctx.call(Mul(), number, along(ctx, scale, blocks, x))


def _is_plain(x: Value, scale: Value) -> bool:
    """Whether numbers of a byte or less become float32."""
    return x.type.dtype.is_int and x.type.dtype.bits <= 8 and scale.type.dtype is DType.F32


def _in_blocks(ctx: Context, x: Value, scale: Value, zero: Value | None, blocks: Blocks) -> Value:
    """(x - zero) * scale, of constants that may stay in few bits."""
    axis, size = _checked_blocks(ctx, scale, blocks, x)
    operands = [x, scale]
    if zero is not None and not _is_zero(ctx, zero):
        _checked_blocks(ctx, zero, blocks, x)
        operands.append(cast_to(ctx, zero, DType.F32))
    return ctx.call(DequantizeBlocks(axis=axis, block=size), *operands)


def _checked_blocks(ctx: Context, vector: Value, blocks: Blocks, x: Value) -> Blocks:
    """The axis, counted from the front, and the size of blocks that have an element each."""
    (axis,), size = axes_of(ctx, (blocks[0],), x.type.rank), blocks[1]
    if vector.type.rank != x.type.rank or size < 1:
        ctx.refuse(f"blocks of {size} with scales of type {vector.type} are not handled")
    return axis, size


def moved(ctx: Context, x: Value, zero: Value | None, blocks: Blocks) -> Value:
    """x - zero as i32, which holds every difference of two narrower integers."""
    x = cast_to(ctx, x, DType.I32)
    if zero is None or _is_zero(ctx, zero):
        return x
    return ctx.call(Sub(), x, along(ctx, cast_to(ctx, zero, DType.I32), blocks, x))


def _is_zero(ctx: Context, value: Value) -> bool:
    array = ctx.array(value)
    return array is not None and not array.any()


def along(ctx: Context, vector: Value, blocks: Blocks, x: Value) -> Value:
    """A vector whose elements belong to positions of one axis of `x`; a scalar as it is.

    A tensor of the rank of `x` holds an element for each block of positions.
    """
    axis, size = blocks
    if size:
        return _repeated(ctx, vector, axis, size, x)
    if vector.type.rank == 0 or (vector.type.rank == 1 and is_const(vector.type.shape[0], 1)):
        return reshape_to(ctx, vector, ())
    if vector.type.rank != 1:
        ctx.refuse(f"scale and zero point of type {vector.type} are not handled")
    (axis,) = axes_of(ctx, (axis,), x.type.rank)
    return reshape_to(ctx, vector, (vector.type.shape[0], *[ONE] * (x.type.rank - axis - 1)))


def _repeated(ctx: Context, blocks: Value, axis: int, size: int, x: Value) -> Value:
    """Each position of an axis `size` times, as far as `x` has positions."""
    axis, size = _checked_blocks(ctx, blocks, (axis, size), x)
    before, count, after = (
        blocks.type.shape[:axis], blocks.type.shape[axis], blocks.type.shape[axis + 1 :]
    )  # fmt: skip
    split = reshape_to(ctx, blocks, (*before, count, ONE, *after))
    split = ctx.call(Expand(shape=(*before, count, const(size, INDEX), *after)), split)
    whole = reshape_to(ctx, split, (*before, count * size, *after))
    ends = x.type.shape[axis]
    if surely_equal(ends, count * size, ctx.bounds):
        return whole
    starts = tuple(ZERO for _ in x.type.shape)
    return ctx.call(Slice(starts=starts, sizes=(*before, ends, *after)), whole)


@converter("MatMulInteger", since=10)
def convert_matmul_integer(
    ctx: Context, a: Value, b: Value, a_zero: Value | None = None, b_zero: Value | None = None
) -> Value:
    """The product of (a - a_zero) and (b - b_zero) as i32."""
    return integer_product(ctx, a, b, a_zero, b_zero)


def integer_product(
    ctx: Context, a: Value, b: Value, a_zero: Value | None, b_zero: Value | None
) -> Value:
    """The product of (a - a_zero) and (b - b_zero) as i32."""
    return ctx.call(MatMul(), moved(ctx, a, a_zero, (-2, 0)), moved(ctx, b, b_zero, (-1, 0)))


def real_product(ctx: Context, total: Value, a_scale: Value, b_scale: Value) -> Value:
    """What an integer product stands for: times the scales of rows and columns."""
    real = cast_to(ctx, total, a_scale.type.dtype)
    real = ctx.call(Mul(), real, along(ctx, a_scale, (-2, 0), real))
    return ctx.call(Mul(), real, along(ctx, b_scale, (-1, 0), real))


@converter("QLinearMatMul", since=10)
def convert_qlinear_matmul(
    ctx: Context,
    a: Value,
    a_scale: Value,
    a_zero: Value,
    b: Value,
    b_scale: Value,
    b_zero: Value,
    y_scale: Value,
    y_zero: Value,
) -> Value:
    """The product of two quantized matrices, quantized."""
    total = integer_product(ctx, a, b, a_zero, b_zero)
    real = real_product(ctx, total, a_scale, b_scale)
    return quantized(ctx, real, y_scale, y_zero, (-1, 0), y_zero.type.dtype)


@converter("ConvInteger", since=10)
def convert_conv_integer(
    ctx: Context,
    x: Value,
    w: Value,
    x_zero: Value | None = None,
    w_zero: Value | None = None,
    **attributes: Unpack[ConvAttributes],
) -> Value:
    """The convolution of (x - x_zero) and (w - w_zero) as i32."""
    return conv(ctx, moved(ctx, x, x_zero, (1, 0)), moved(ctx, w, w_zero, (0, 0)), **attributes)


@converter("QLinearConv", since=10)
def convert_qlinear_conv(
    ctx: Context,
    x: Value,
    x_scale: Value,
    x_zero: Value,
    w: Value,
    w_scale: Value,
    w_zero: Value,
    y_scale: Value,
    y_zero: Value,
    bias: Value | None = None,
    **attributes: Unpack[ConvAttributes],
) -> Value:
    """A convolution of quantized operands, quantized; the bias has the scale of the products."""
    total = conv(ctx, moved(ctx, x, x_zero, (1, 0)), moved(ctx, w, w_zero, (0, 0)), **attributes)
    if bias is not None:
        total = ctx.call(Add(), total, along(ctx, bias, (1, 0), total))
    real = ctx.call(
        Mul(), cast_to(ctx, total, x_scale.type.dtype), along(ctx, x_scale, (1, 0), total)
    )
    real = ctx.call(Mul(), real, along(ctx, w_scale, (1, 0), total))
    return quantized(ctx, real, y_scale, y_zero, (1, 0), y_zero.type.dtype)
