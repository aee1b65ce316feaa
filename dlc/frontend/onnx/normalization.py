"""Converters of normalizations and softmax."""

from __future__ import annotations

import math

from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.elementwise import axes_of
from dlc.frontend.onnx.generate import expand_to
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.reshape import reshape_to, unsqueeze
from dlc.graph.graph import Value
from dlc.graph.ops.binary import Div
from dlc.graph.ops.norm import (
    BatchNorm,
    GroupNorm,
    InstanceNorm,
    LayerNorm,
    LogSoftmax,
    RMSNorm,
    Softmax,
)
from dlc.graph.ops.reduce import Reduce
from dlc.te.expr import ONE


@converter("BatchNormalization", since=1)
def convert_batch_norm_legacy(
    ctx: Context,
    x: Value,
    scale: Value,
    bias: Value,
    mean: Value,
    variance: Value,
    *,
    epsilon: float = 1e-5,
    is_test: int = 0,
    momentum: float = 0.9,
    spatial: int = 1,
) -> Value:
    """Until opset 9 `spatial` could ask for statistics of each element."""
    if spatial != 1:
        ctx.refuse("spatial = 0, statistics of each element, is not handled")
    return ctx.call(BatchNorm(epsilon=epsilon), x, scale, bias, mean, variance)


@converter("BatchNormalization", since=9)
def convert_batch_norm(
    ctx: Context,
    x: Value,
    scale: Value,
    bias: Value,
    mean: Value,
    variance: Value,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> Value:
    """Normalize each channel by fixed statistics; `momentum` concerns training only."""
    if training_mode:
        ctx.refuse("training_mode is set; dlc compiles for inference")
    return ctx.call(BatchNorm(epsilon=epsilon), x, scale, bias, mean, variance)


@converter("InstanceNormalization", since=1)
def convert_instance_norm(
    ctx: Context, x: Value, scale: Value, bias: Value, *, epsilon: float = 1e-5
) -> Value:
    """Normalize each channel of each image by its own statistics."""
    return ctx.call(InstanceNorm(epsilon=epsilon), x, scale, bias)


@converter("LayerNormalization", since=17)
def convert_layer_norm(
    ctx: Context,
    x: Value,
    scale: Value,
    bias: Value | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Value:
    """Normalize over the axes from `axis` on; statistics are at least as accurate as f32."""
    (axis,) = axes_of(ctx, (axis,), x.type.rank)
    operands = (x, scale) if bias is None else (x, scale, bias)
    return ctx.call(LayerNorm(axis=axis, epsilon=epsilon), *operands)


@converter("RMSNormalization", since=23)
def convert_rms_norm(
    ctx: Context,
    x: Value,
    scale: Value,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Value:
    """Divide by the root of the mean square over the axes from `axis` on."""
    (axis,) = axes_of(ctx, (axis,), x.type.rank)
    return ctx.call(RMSNorm(axis=axis, epsilon=epsilon), x, scale)


@converter("GroupNormalization", since=21)
def convert_group_norm(
    ctx: Context,
    x: Value,
    scale: Value,
    bias: Value,
    *,
    num_groups: int,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Value:
    """Normalize groups of channels by their own statistics."""
    return ctx.call(GroupNorm(groups=num_groups, epsilon=epsilon), x, scale, bias)


@converter("GroupNormalization", since=18)
def convert_group_norm_by_group(
    ctx: Context, x: Value, scale: Value, bias: Value, *, num_groups: int, epsilon: float = 1e-5
) -> Value:
    """Until opset 21 there was one scale and one bias for each group."""
    repeats = x.type.shape[1] // num_groups

    def for_channels(value: Value) -> Value:
        wide = expand_to(ctx, unsqueeze(ctx, value, [1]), (*value.type.shape, repeats))
        return reshape_to(ctx, wide, x.type.shape[1:2])

    wide = map(for_channels, (scale, bias))
    return ctx.call(GroupNorm(groups=num_groups, epsilon=epsilon), x, *wide)


@converter("LpNormalization", since=1)
def convert_lp_normalization(ctx: Context, x: Value, *, axis: int = -1, p: int = 2) -> Value:
    """Divide by the p-norm along an axis."""
    if p not in (1, 2):
        ctx.refuse(f"p = {p}; only 1 and 2 are handled")
    (axis,) = axes_of(ctx, (axis,), x.type.rank)
    norm = ctx.call(Reduce(kind=f"l{p}", axes=(axis,), keepdims=True), x)
    return ctx.call(Div(), x, norm)


def _declare_softmax(op_type: str, op: type[Softmax | LogSoftmax]) -> None:
    @converter(op_type, since=13)
    def convert(ctx: Context, x: Value, *, axis: int = -1) -> Value:
        (axis,) = axes_of(ctx, (axis,), x.type.rank)
        return ctx.call(op(axis=axis), x)

    @converter(op_type, since=1)
    def convert_flattened(ctx: Context, x: Value, *, axis: int = 1) -> Value:
        return _over_rest(ctx, x, op, axis)


def _over_rest(ctx: Context, x: Value, op: type[Softmax | LogSoftmax], axis: int) -> Value:
    """Until opset 13 all axes from `axis` on counted as one."""
    if axis == x.type.rank:  # one element each
        wide = reshape_to(ctx, x, (*x.type.shape, ONE))
        return reshape_to(ctx, ctx.call(op(axis=axis), wide), x.type.shape)
    (axis,) = axes_of(ctx, (axis,), x.type.rank)
    if axis == x.type.rank - 1 or all(s == ONE for s in x.type.shape[axis + 1 :]):
        return ctx.call(op(axis=axis), x)
    rest = math.prod(x.type.shape[axis:], start=ONE)
    flat = reshape_to(ctx, x, (*x.type.shape[:axis], rest))
    return reshape_to(ctx, ctx.call(op(axis=axis), flat), x.type.shape)


_declare_softmax("Softmax", Softmax)
_declare_softmax("LogSoftmax", LogSoftmax)
