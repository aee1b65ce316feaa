"""Converters of onnxruntime's operators that equal ONNX's own but for name, layout or one step.

Its optimizer writes them, or they are older than what ONNX has.

Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from dlc.core.types import DType
from dlc.frontend.onnx.algebra import inverse
from dlc.frontend.onnx.cast import cast_to
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.conv import ConvAttributes, convert_conv_transpose
from dlc.frontend.onnx.elementwise import axes_of
from dlc.frontend.onnx.generate import convert_range, convert_trilu
from dlc.frontend.onnx.microsoft import DOMAIN, convert_fused_conv, convert_fused_matmul
from dlc.frontend.onnx.padding import convert_pad
from dlc.frontend.onnx.pool import convert_max_pool
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.reshape import reshape_to, transpose, unsqueeze
from dlc.frontend.onnx.scatter import convert_gather_nd
from dlc.frontend.onnx.selection import convert_unique
from dlc.frontend.onnx.slicing import split_axis
from dlc.frontend.onnx.wider import convert_grid_sample
from dlc.graph.graph import Value
from dlc.graph.ops.activation import Gelu, Silu
from dlc.graph.ops.binary import Add, And, Mul, Or, Sub
from dlc.graph.ops.elementwise import IsInf, IsNaN, Not, Sqrt
from dlc.graph.ops.norm import GroupNorm
from dlc.graph.ops.reduce import Reduce
from dlc.graph.ops.softmax import Softmax

converter("GatherND", since=1, domain=DOMAIN)(convert_gather_nd)
converter("GridSample", since=1, domain=DOMAIN)(convert_grid_sample)
converter("Range", since=1, domain=DOMAIN)(convert_range)
converter("Trilu", since=1, domain=DOMAIN)(convert_trilu)
converter("TransposeMatMul", since=1, domain=DOMAIN)(convert_fused_matmul)


@converter("Pad", since=1, domain=DOMAIN)
def convert_pad_contrib(
    ctx: Context, x: Value, pads: Value, value: Value | None = None, *, mode: str = "constant"
) -> Value:
    """As the standard operator without axes; the widths may be one row of a matrix."""
    widths = reshape_to(ctx, pads, (pads.type.elems,))
    return convert_pad(ctx, x, widths, value, mode=mode)


@converter("ConvTransposeWithDynamicPads", since=1, domain=DOMAIN)
def convert_conv_transpose_pads(
    ctx: Context,
    x: Value,
    w: Value,
    pads: Value | None = None,
    bias: Value | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] = (),
    group: int = 1,
    kernel_shape: Sequence[int] = (),
    output_padding: Sequence[int] = (),
    strides: Sequence[int] = (),
) -> Value:
    """As the standard operator; the pads are an operand."""
    return convert_conv_transpose(
        ctx, x, w, bias, auto_pad=auto_pad, dilations=dilations, group=group,
        kernel_shape=kernel_shape, output_padding=output_padding, strides=strides,
        pads=() if pads is None else ctx.ints(pads, "pads"),
    )  # fmt: skip


@converter("ExpandDims", since=1, domain=DOMAIN)
def convert_expand_dims(ctx: Context, x: Value, axis: Value) -> Value:
    """An axis of size 1 more."""
    return unsqueeze(ctx, x, (ctx.one_int(axis, "axis"),))


@converter("Inverse", since=1, domain=DOMAIN)
def convert_inverse(ctx: Context, x: Value) -> Value:
    """The inverse of matrices; of 16-bit floats by way of f32."""
    wide = DType.F64 if x.type.dtype is DType.F64 else DType.F32
    return cast_to(ctx, inverse(ctx, cast_to(ctx, x, wide)), x.type.dtype)


@converter("Unique", since=1, domain=DOMAIN)
def convert_unique_contrib(ctx: Context, x: Value) -> tuple[Value, ...]:
    """Distinct elements in order of appearance, which one each is, and how often they occur."""
    values, _, ranks, counts = convert_unique(ctx, x, sorted=0)
    return values, ranks, counts


@converter("CDist", since=1, domain=DOMAIN)
def convert_distances(ctx: Context, a: Value, b: Value, *, metric: str = "sqeuclidean") -> Value:
    """The distance of each row of a from each row of b."""
    if metric not in ("euclidean", "sqeuclidean"):
        ctx.refuse(f"metric = '{metric}' is not known")
    apart = ctx.call(Sub(), unsqueeze(ctx, a, (1,)), unsqueeze(ctx, b, (0,)))
    square = ctx.call(Reduce(kind="sum_square", axes=(2,), keepdims=False), apart)
    return ctx.call(Sqrt(), square) if metric == "euclidean" else square


@converter("IsAllFinite", since=1, domain=DOMAIN)
def convert_is_all_finite(
    ctx: Context, *parts: Value, isinf_only: int = 0, isnan_only: int = 0
) -> Value:
    """Whether no element of any operand is infinite or no number."""
    if not parts or (isinf_only and isnan_only):
        ctx.refuse("it has no operands, or asks for both kinds alone")
    found: list[Value] = []
    for part in parts:
        bad = [ctx.call(IsInf(), part)] if not isnan_only else []
        bad += [ctx.call(IsNaN(), part)] if not isinf_only else []
        either = bad[0] if len(bad) == 1 else ctx.call(Or(), *bad)
        whole = Reduce(kind="max", axes=tuple(range(part.type.rank)), keepdims=False)
        found.append(ctx.call(Not(), ctx.call(whole, either)))
    good = found[0]
    for other in found[1:]:
        good = ctx.call(And(), good, other)
    return good


@converter("BiasAdd", since=1, domain=DOMAIN)
def convert_bias_add(ctx: Context, x: Value, bias: Value, skip: Value) -> Value:
    """The sum of three."""
    return ctx.call(Add(), ctx.call(Add(), x, bias), skip)


@converter("BiasSplitGelu", since=1, domain=DOMAIN)
def convert_bias_split_gelu(ctx: Context, x: Value, bias: Value) -> Value:
    """The first half of a sum's last axis times the exact Gelu of the second."""
    first, second = split_axis(ctx, ctx.call(Add(), x, bias), -1, None, 2)
    return ctx.call(Mul(), first, ctx.call(Gelu(), second))


@converter("BiasSoftmax", since=1, domain=DOMAIN)
def convert_bias_softmax(
    ctx: Context, x: Value, bias: Value, *, axis: int = 1, is_inner_broadcast: int = 0
) -> Value:
    """The softmax of a sum, over all axes from one on."""
    (axis,) = axes_of(ctx, (axis,), x.type.rank)
    if axis != x.type.rank - 1:
        ctx.refuse(f"axis = {axis} of {x.type}, which flattens, is not handled")
    return ctx.call(Softmax(axis=axis), ctx.call(Add(), x, bias))


@converter("NhwcMaxPool", since=1, domain=DOMAIN)
def convert_nhwc_max_pool(
    ctx: Context,
    x: Value,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] = (),
    kernel_shape: Sequence[int],
    pads: Sequence[int] = (),
    strides: Sequence[int] = (),
) -> Value:
    """The maxima of windows, with channels as the last axis."""
    y, *_ = convert_max_pool(
        ctx, channels_first(ctx, x), kernel_shape=kernel_shape, auto_pad=auto_pad,
        ceil_mode=ceil_mode, dilations=dilations, pads=pads, strides=strides,
    )  # fmt: skip
    return channels_last(ctx, y)


def _declare_nhwc_conv(op_type: str) -> None:
    @converter(op_type, since=1, domain=DOMAIN)
    def convert(
        ctx: Context,
        x: Value,
        w: Value,
        bias: Value | None = None,
        other: Value | None = None,
        *,
        activation: str = "",
        activation_params: Sequence[float] = (),
        **attributes: Unpack[ConvAttributes],
    ) -> Value:
        y = convert_fused_conv(
            ctx, channels_first(ctx, x), channels_first(ctx, w), bias,
            None if other is None else channels_first(ctx, other),
            activation=activation, activation_params=activation_params, **attributes,
        )  # fmt: skip
        return channels_last(ctx, y)


_declare_nhwc_conv("NhwcConv")
_declare_nhwc_conv("NhwcFusedConv")


@converter("GroupNorm", since=1, domain=DOMAIN)
def convert_group_norm(
    ctx: Context,
    x: Value,
    gamma: Value,
    beta: Value,
    *,
    activation: int,
    channels_last: int = 1,
    epsilon: float = 1e-5,
    groups: int,
) -> Value:
    """Groups of channels normalized by their own statistics; with activation 1, a SiLU behind."""
    return _group_norm(ctx, x, gamma, beta, activation, channels_last, epsilon, groups)


@converter("SkipGroupNorm", since=1, domain=DOMAIN)
def convert_skip_group_norm(
    ctx: Context,
    x: Value,
    gamma: Value,
    beta: Value,
    skip: Value,
    bias: Value | None = None,
    *,
    activation: int,
    channels_last: int = 1,
    epsilon: float = 1e-5,
    groups: int,
) -> tuple[Value, ...]:
    """The same of a sum, and the sum."""
    if skip.type.rank == 2 and channels_last:  # one number for each channel
        skip = unsqueeze(ctx, skip, (1, 2))
    total = ctx.call(Add(), x, skip)
    total = total if bias is None else ctx.call(Add(), total, bias)
    y = _group_norm(ctx, total, gamma, beta, activation, channels_last, epsilon, groups)
    return y, total


def _group_norm(
    ctx: Context,
    x: Value,
    gamma: Value,
    beta: Value,
    activation: int,
    last: int,
    epsilon: float,
    groups: int,
) -> Value:
    if activation not in (0, 1):
        ctx.refuse(f"activation = {activation} is not known")
    moved = channels_first(ctx, x) if last else x
    scales = (cast_to(ctx, v, x.type.dtype) for v in (gamma, beta))
    y = ctx.call(GroupNorm(groups=groups, epsilon=epsilon), moved, *scales)
    y = ctx.call(Silu(), y) if activation else y
    return channels_last(ctx, y) if last else y


@converter("MulInteger", since=1, domain=DOMAIN)
def convert_mul_integer(
    ctx: Context,
    a: Value,
    a_zero: Value | None = None,
    b: Value | None = None,
    b_zero: Value | None = None,
) -> Value:
    """The product of integers less their zero points."""
    if b is None:
        ctx.refuse("it has one operand")
    return ctx.call(Mul(), _shifted(ctx, a, a_zero), _shifted(ctx, b, b_zero))


@converter("ReduceSumInteger", since=1, domain=DOMAIN)
def convert_reduce_sum_integer(
    ctx: Context, x: Value, *, axes: Sequence[int], keepdims: int = 1
) -> Value:
    """A sum of bytes as i32."""
    over = axes_of(ctx, axes, x.type.rank)
    reduce = Reduce(kind="sum", axes=over, keepdims=bool(keepdims))
    return ctx.call(reduce, cast_to(ctx, x, DType.I32))


def channels_first(ctx: Context, x: Value) -> Value:
    """[n, *spatial, c] -> [n, c, *spatial]."""
    return transpose(ctx, x, (0, x.type.rank - 1, *range(1, x.type.rank - 1)))


def channels_last(ctx: Context, x: Value) -> Value:
    """[n, c, *spatial] -> [n, *spatial, c]."""
    return transpose(ctx, x, (0, *range(2, x.type.rank), 1))


def _shifted(ctx: Context, x: Value, zero: Value | None) -> Value:
    x = cast_to(ctx, x, DType.I32)
    return x if zero is None else ctx.call(Sub(), x, cast_to(ctx, zero, DType.I32))
