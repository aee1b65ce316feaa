"""Converters of onnxruntime's quantized operators: the float operator between integers.

Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Unpack

from dlc.core.types import DType
from dlc.frontend.onnx.cast import cast_to
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.conv import ConvAttributes
from dlc.frontend.onnx.elementwise import axes_of
from dlc.frontend.onnx.matmul import scaled
from dlc.frontend.onnx.microsoft import DOMAIN
from dlc.frontend.onnx.microsoft_standard import channels_first
from dlc.frontend.onnx.microsoft_standard import channels_last as channels_to_end
from dlc.frontend.onnx.pool import convert_average_pool, convert_global_average_pool
from dlc.frontend.onnx.quantized import (
    convert_qlinear_conv,
    dequantized,
    integer_product,
    moved,
    quantized,
    real_product,
)
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.slicing import concat
from dlc.frontend.onnx.windows import WindowAttributes
from dlc.graph.graph import Value
from dlc.graph.ops.activation import LeakyRelu, Sigmoid
from dlc.graph.ops.binary import Add, Div, Maximum, Minimum, Mul, Sub, Where
from dlc.graph.ops.elementwise import Round
from dlc.graph.ops.matmul import MatMul
from dlc.graph.ops.reduce import Reduce
from dlc.graph.ops.shape import Transpose
from dlc.graph.ops.softmax import Softmax

_WHOLE = (0, 0)  # one scale for all


def _between(
    ctx: Context,
    x: Value,
    scales: tuple[Value | None, Value | None, Value | None, Value | None],
    fn: Callable[[Value], Value],
) -> Value:
    """A function of what integers mean, as integers: scale and zero point before and after."""
    x_scale, x_zero, y_scale, y_zero = scales
    if x_scale is None or y_scale is None:
        ctx.refuse("it has no scale")
    real = fn(dequantized(ctx, x, x_scale, x_zero, _WHOLE))
    return quantized(ctx, real, y_scale, y_zero, _WHOLE, x.type.dtype)


def _declare_binary(op_type: str, op: type[Add] | type[Mul]) -> None:
    @converter(op_type, since=1, domain=DOMAIN)
    def convert(
        ctx: Context,
        a: Value,
        a_scale: Value,
        a_zero: Value | None = None,
        b: Value | None = None,
        b_scale: Value | None = None,
        b_zero: Value | None = None,
        c_scale: Value | None = None,
        c_zero: Value | None = None,
    ) -> Value:
        if b is None or b_scale is None:
            ctx.refuse("it has one operand")
        other = dequantized(ctx, b, b_scale, b_zero, _WHOLE)
        scales = (a_scale, a_zero, c_scale, c_zero)
        return _between(ctx, a, scales, lambda v: ctx.call(op(), v, other))


_declare_binary("QLinearAdd", Add)
_declare_binary("QLinearMul", Mul)


@converter("QLinearSigmoid", since=1, domain=DOMAIN)
def convert_sigmoid(
    ctx: Context,
    x: Value,
    x_scale: Value,
    x_zero: Value | None = None,
    y_scale: Value | None = None,
    y_zero: Value | None = None,
) -> Value:
    """The logistic function."""
    scales = (x_scale, x_zero, y_scale, y_zero)
    return _between(ctx, x, scales, lambda v: ctx.call(Sigmoid(), v))


@converter("QLinearLeakyRelu", since=1, domain=DOMAIN)
def convert_leaky_relu(
    ctx: Context,
    x: Value,
    x_scale: Value,
    x_zero: Value | None = None,
    y_scale: Value | None = None,
    y_zero: Value | None = None,
    *,
    alpha: float = 0.01,
) -> Value:
    """The operand, scaled where it is negative."""
    scales = (x_scale, x_zero, y_scale, y_zero)
    return _between(ctx, x, scales, lambda v: ctx.call(LeakyRelu(alpha=alpha), v))


@converter("QLinearSoftmax", since=1, domain=DOMAIN)
def convert_softmax(
    ctx: Context,
    x: Value,
    x_scale: Value,
    x_zero: Value | None = None,
    y_scale: Value | None = None,
    y_zero: Value | None = None,
    *,
    axis: int = -1,
    opset: int,
) -> Value:
    """Softmax along an axis."""
    if opset < 13 and axis not in (-1, x.type.rank - 1):
        ctx.refuse(f"axis {axis} of opset {opset}, which flattens, is not handled")
    scales = (x_scale, x_zero, y_scale, y_zero)
    return _between(ctx, x, scales, lambda v: ctx.call(Softmax(axis=axis), v))


@converter("QLinearGlobalAveragePool", since=1, domain=DOMAIN)
def convert_global_pool(
    ctx: Context,
    x: Value,
    x_scale: Value,
    x_zero: Value,
    y_scale: Value,
    y_zero: Value,
    *,
    channels_last: int = 0,
) -> Value:
    """The mean of each channel."""
    scales = (x_scale, x_zero, y_scale, y_zero)
    if channels_last:
        over = Reduce(kind="mean", axes=tuple(range(1, x.type.rank - 1)), keepdims=True)
        return _between(ctx, x, scales, lambda v: ctx.call(over, v))
    return _between(ctx, x, scales, lambda v: convert_global_average_pool(ctx, v))


@converter("QLinearAveragePool", since=1, domain=DOMAIN)
def convert_pool(
    ctx: Context,
    x: Value,
    x_scale: Value,
    x_zero: Value | None = None,
    y_scale: Value | None = None,
    y_zero: Value | None = None,
    *,
    kernel_shape: Sequence[int],
    ceil_mode: int = 0,
    channels_last: int = 0,
    count_include_pad: int = 0,
    **attributes: Unpack[WindowAttributes],
) -> Value:
    """The mean of each window."""

    def pooled(v: Value) -> Value:
        v = channels_first(ctx, v) if channels_last else v
        y = convert_average_pool(
            ctx, v, kernel_shape=kernel_shape, ceil_mode=ceil_mode,
            count_include_pad=count_include_pad, **attributes,
        )  # fmt: skip
        return channels_to_end(ctx, y) if channels_last else y

    return _between(ctx, x, (x_scale, x_zero, y_scale, y_zero), pooled)


@converter("QLinearConcat", since=1, domain=DOMAIN)
def convert_concat(ctx: Context, y_scale: Value, y_zero: Value, *parts: Value, axis: int) -> Value:
    """Operands, each with a scale and a zero point of its own, one after the other."""
    if not parts or len(parts) % 3:
        ctx.refuse(f"{len(parts)} operands are no triples")
    reals = [
        dequantized(ctx, x, scale, zero, _WHOLE)
        for x, scale, zero in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    ]
    joined = concat(ctx, reals, axis + reals[0].type.rank if axis < 0 else axis)
    return quantized(ctx, joined, y_scale, y_zero, _WHOLE, y_zero.type.dtype)


@converter("MatMulIntegerToFloat", since=1, domain=DOMAIN)
def convert_matmul_to_float(
    ctx: Context,
    a: Value,
    b: Value,
    a_scale: Value,
    b_scale: Value,
    a_zero: Value | None = None,
    b_zero: Value | None = None,
    bias: Value | None = None,
) -> Value:
    """The product of quantized matrices as floats."""
    real = real_product(ctx, integer_product(ctx, a, b, a_zero, b_zero), a_scale, b_scale)
    return real if bias is None else ctx.call(Add(), real, bias)


@converter("QGemm", since=1, domain=DOMAIN)
def convert_gemm(
    ctx: Context,
    a: Value,
    a_scale: Value,
    a_zero: Value,
    b: Value,
    b_scale: Value,
    b_zero: Value,
    c: Value | None = None,
    y_scale: Value | None = None,
    y_zero: Value | None = None,
    *,
    alpha: float = 1.0,
    transA: int = 0,  # noqa: N803 - ONNX's name
    transB: int = 0,  # noqa: N803
) -> Value:
    """The sum A' @ B' + C of integers, times alpha and the scales; quantized where that has one."""
    if a.type.rank != 2 or b.type.rank != 2:
        ctx.refuse(f"its operands must be matrices, and are {a.type} and {b.type}")
    left = moved(ctx, a, a_zero, (1 if transA else 0, 0))
    right = moved(ctx, b, b_zero, (0 if transB else 1, 0))
    left = ctx.call(Transpose(perm=(1, 0)), left) if transA else left
    right = ctx.call(Transpose(perm=(1, 0)), right) if transB else right
    total = ctx.call(MatMul(), left, right)
    if c is not None:
        total = ctx.call(Add(), total, c)
    real = real_product(ctx, total, scaled(ctx, a_scale, alpha), b_scale)
    if y_scale is None:
        return real
    dtype = a.type.dtype if y_zero is None else y_zero.type.dtype
    return quantized(ctx, real, y_scale, y_zero, _WHOLE, dtype)


@converter("DynamicQuantizeMatMul", since=1, domain=DOMAIN)
def convert_dynamic_matmul(
    ctx: Context,
    a: Value,
    b: Value,
    b_scale: Value,
    b_zero: Value | None = None,
    bias: Value | None = None,
) -> Value:
    """A product whose first operand is quantized by its own range, as DynamicQuantizeLinear does.

    Source: https://onnx.ai/onnx/operators/onnx__DynamicQuantizeLinear.html
    """
    axes = tuple(range(a.type.rank))
    zero = ctx.scalar(0.0, a.type.dtype)
    high = ctx.call(Reduce(kind="max", axes=axes, keepdims=False), a)
    low = ctx.call(Reduce(kind="min", axes=axes, keepdims=False), a)
    high, low = ctx.call(Maximum(), high, zero), ctx.call(Minimum(), low, zero)
    levels = ctx.scalar(255.0, a.type.dtype)
    scale = ctx.call(Div(), ctx.call(Sub(), high, low), levels)
    centre = ctx.call(Round(), ctx.call(Div(), ctx.call(Sub(), zero, low), scale))
    centre = cast_to(ctx, centre, DType.U8)
    whole = quantized(ctx, a, scale, centre, _WHOLE, DType.U8)
    return convert_matmul_to_float(ctx, whole, b, scale, b_scale, centre, b_zero, bias)


@converter("QLinearWhere", since=1, domain=DOMAIN)
def convert_where(
    ctx: Context,
    cond: Value,
    a: Value,
    a_scale: Value,
    a_zero: Value,
    b: Value,
    b_scale: Value,
    b_zero: Value,
    y_scale: Value,
    y_zero: Value,
) -> Value:
    """`a` where `cond` holds, else `b`."""
    other = dequantized(ctx, b, b_scale, b_zero, _WHOLE)
    scales = (a_scale, a_zero, y_scale, y_zero)
    return _between(ctx, a, scales, lambda v: ctx.call(Where(), cond, v, other))


@converter("QLinearReduceMean", since=1, domain=DOMAIN)
def convert_reduce_mean(
    ctx: Context,
    x: Value,
    x_scale: Value,
    x_zero: Value | None = None,
    y_scale: Value | None = None,
    y_zero: Value | None = None,
    *,
    axes: Sequence[int],
    keepdims: int = 1,
) -> Value:
    """The mean over axes."""
    over = tuple(sorted(axes_of(ctx, axes, x.type.rank))) or tuple(range(x.type.rank))
    mean = Reduce(kind="mean", axes=over, keepdims=bool(keepdims))
    scales = (x_scale, x_zero, y_scale, y_zero)
    return _between(ctx, x, scales, lambda v: ctx.call(mean, v))


@converter("QLinearConv", since=1, domain=DOMAIN)
def convert_conv(
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
    *,
    channels_last: int = 0,
    **attributes: Unpack[ConvAttributes],
) -> Value:
    """As the standard operator; with `channels_last` in x and in the result, not in the weights."""
    image = channels_first(ctx, x) if channels_last else x
    operands = (image, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias)
    y = convert_qlinear_conv(ctx, *operands, **attributes)
    return channels_to_end(ctx, y) if channels_last else y
