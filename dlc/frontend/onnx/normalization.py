"""Converters of normalizations and softmax."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx

from dlc.core.types import DType
from dlc.frontend.onnx.cast import cast_to, common_float
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.elementwise import axes_of
from dlc.frontend.onnx.generate import expand_to
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.reshape import reshape_to, unsqueeze
from dlc.graph.arrays import NUMPY_DTYPES
from dlc.graph.graph import Value
from dlc.graph.ops.binary import Add, Div, Equal, Mul, Sub, Where
from dlc.graph.ops.elementwise import Reciprocal, Sqrt
from dlc.graph.ops.gather import OneHot
from dlc.graph.ops.norm import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, RMSNorm
from dlc.graph.ops.reduce import ArgMax, Reduce
from dlc.graph.ops.softmax import LogSoftmax, Softmax
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
) -> tuple[Value, ...]:
    """Normalize each channel by fixed statistics, or in training by its own."""
    if not training_mode:
        given = (x, scale, bias, mean, variance)
        inner = common_float(*given)
        y = ctx.call(BatchNorm(epsilon=epsilon), *(cast_to(ctx, v, inner) for v in given))
        return (cast_to(ctx, y, x.type.dtype),)
    if x.type.rank < 2:
        ctx.refuse(f"it has rank {x.type.rank}, and no axis of channels")
    axes = tuple(d for d in range(x.type.rank) if d != 1)
    channel = (x.type.shape[1],)
    over = Reduce(kind="mean", axes=axes, keepdims=True)
    centre = ctx.call(over, x)
    apart = ctx.call(Sub(), x, centre)
    spread = reshape_to(ctx, ctx.call(over, ctx.call(Mul(), apart, apart)), channel)
    centre = reshape_to(ctx, centre, channel)

    def moved(old: Value, new: Value) -> Value:
        kept = ctx.call(Mul(), old, ctx.scalar(momentum, old.type.dtype))
        new = cast_to(ctx, new, old.type.dtype)
        share = ctx.call(Mul(), new, ctx.scalar(1 - momentum, old.type.dtype))
        return ctx.call(Add(), kept, share)

    own = (cast_to(ctx, v, mean.type.dtype) for v in (centre, spread))
    y = ctx.call(BatchNorm(epsilon=epsilon), x, scale, bias, *own)
    return y, moved(mean, centre), moved(variance, spread)


@converter("InstanceNormalization", since=1)
def convert_instance_norm(
    ctx: Context, x: Value, scale: Value, bias: Value, *, epsilon: float = 1e-5
) -> Value:
    """Normalize each channel of each image by its own statistics."""
    return ctx.call(InstanceNorm(epsilon=epsilon), x, scale, bias)


@converter("LayerNormalization", since=1)  # ONNX has it from 17 on, onnxruntime wrote it before
def convert_layer_norm(
    ctx: Context,
    x: Value,
    scale: Value,
    bias: Value | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> tuple[Value, ...]:
    """Normalize over the axes from `axis` on; statistics are at least as accurate as f32."""
    (axis,) = axes_of(ctx, (axis,), x.type.rank)
    operands = (x, scale) if bias is None else (x, scale, bias)
    y = ctx.call(LayerNorm(axis=axis, epsilon=epsilon), *operands)
    if not any(ctx.node.outputs[1:]):
        return (y,)
    stash = DType.BF16 if stash_type == onnx.TensorProto.BFLOAT16 else DType.F32
    return (y, *(cast_to(ctx, v, stash) for v in _moments(ctx, x, axis, epsilon)))


def _moments(ctx: Context, x: Value, axis: int, epsilon: float) -> tuple[Value, Value]:
    """The mean, and one over the standard deviation, over the axes from `axis` on."""
    x = cast_to(ctx, x, DType.F32) if x.type.dtype is not DType.F64 else x
    over = Reduce(kind="mean", axes=tuple(range(axis, x.type.rank)), keepdims=True)
    mean = ctx.call(over, x)
    centred = ctx.call(Sub(), x, mean)
    variance = ctx.call(over, ctx.call(Mul(), centred, centred))
    moved = ctx.call(Add(), variance, ctx.scalar(epsilon, x.type.dtype))
    return mean, ctx.call(Reciprocal(), ctx.call(Sqrt(), moved))


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
    inner, wanted = common_float(x, scale), scale.type.dtype
    y = ctx.call(RMSNorm(axis=axis, epsilon=epsilon), *(cast_to(ctx, v, inner) for v in (x, scale)))
    return cast_to(ctx, y, wanted)


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
    if x.type.rank < 2 or num_groups < 1 or {scale.type.rank, bias.type.rank} != {1}:
        ctx.refuse(f"{num_groups} groups of {x.type} with {scale.type} and {bias.type}")
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
    zero = ctx.scalar(0, x.type.dtype)
    empty = ctx.call(Equal(), norm, zero)  # then every element is 0, and stays it
    return ctx.call(Div(), x, ctx.call(Where(), empty, ctx.scalar(1, x.type.dtype), norm))


_Along = Callable[[Context, Value, int], Value]
"""What is computed of all elements along an axis."""


def _declare_along(op_type: str, along: _Along) -> None:
    @converter(op_type, since=13)
    def convert(ctx: Context, x: Value, *, axis: int = -1) -> Value:
        (axis,) = axes_of(ctx, (axis,), x.type.rank)
        return along(ctx, x, axis)

    @converter(op_type, since=1)
    def convert_flattened(ctx: Context, x: Value, *, axis: int = 1) -> Value:
        return _over_rest(ctx, x, along, axis)


def _over_rest(ctx: Context, x: Value, along: _Along, axis: int) -> Value:
    """Until opset 13 all axes from `axis` on counted as one."""
    if axis == x.type.rank:  # one element each
        wide = reshape_to(ctx, x, (*x.type.shape, ONE))
        return reshape_to(ctx, along(ctx, wide, axis), x.type.shape)
    (axis,) = axes_of(ctx, (axis,), x.type.rank)
    if axis == x.type.rank - 1 or all(s == ONE for s in x.type.shape[axis + 1 :]):
        return along(ctx, x, axis)
    rest = math.prod(x.type.shape[axis:], start=ONE)
    flat = reshape_to(ctx, x, (*x.type.shape[:axis], rest))
    return reshape_to(ctx, along(ctx, flat, axis), x.type.shape)


def _hardmax(ctx: Context, x: Value, axis: int) -> Value:
    """One where the largest element along an axis is, the first of equal ones; else zero."""
    best = ctx.call(ArgMax(axis=axis, keepdims=False), x)
    values = ctx.constant(np.array([0, 1], NUMPY_DTYPES[x.type.dtype]))
    return ctx.call(OneHot(depth=x.type.shape[axis], axis=axis), best, values)


_declare_along("Softmax", lambda ctx, x, axis: ctx.call(Softmax(axis=axis), x))
_declare_along("LogSoftmax", lambda ctx, x, axis: ctx.call(LogSoftmax(axis=axis), x))
_declare_along("Hardmax", _hardmax)
