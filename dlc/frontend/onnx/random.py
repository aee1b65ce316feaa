"""Converters of operators that draw random numbers.

A node without a seed gets one from its name: every run of an artefact draws the same numbers.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from dlc.core.types import DType
from dlc.frontend.onnx.cast import cast_to, number_type
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.generate import expand_to
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.reshape import unsqueeze
from dlc.graph.graph import Value
from dlc.graph.ops.binary import Div, Less, LessEqual, Maximum, Minimum, Mul, Sub, Where
from dlc.graph.ops.random import RandomNormal, RandomUniform
from dlc.graph.ops.reduce import CumSum, Reduce
from dlc.graph.ops.softmax import Softmax
from dlc.te.expr import Expr, index


def seed_of(ctx: Context, seed: float | None) -> int:
    """The seed of a node as a number of 64 bits."""
    if seed is None:
        return zlib.crc32(ctx.node.label.encode()) << 32
    return int(np.float64(seed).view(np.uint64))


def _dtype(ctx: Context, number: int | None, default: DType) -> DType:
    return default if number is None else number_type(ctx, number)


@converter("RandomUniform", since=1)
def convert_random_uniform(
    ctx: Context,
    *,
    shape: Sequence[int],
    dtype: int = 1,
    high: float = 1.0,
    low: float = 0.0,
    seed: float | None = None,
) -> Value:
    """Numbers between two bounds."""
    return _uniform(ctx, tuple(map(index, shape)), _dtype(ctx, dtype, DType.F32), seed, low, high)


@converter("RandomUniformLike", since=1)
def convert_random_uniform_like(
    ctx: Context,
    x: Value,
    *,
    dtype: int | None = None,
    high: float = 1.0,
    low: float = 0.0,
    seed: float | None = None,
) -> Value:
    """Numbers between two bounds, as many as `x` has."""
    return _uniform(ctx, x.type.shape, _dtype(ctx, dtype, x.type.dtype), seed, low, high)


@converter("RandomNormal", since=1)
def convert_random_normal(
    ctx: Context,
    *,
    shape: Sequence[int],
    dtype: int = 1,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
) -> Value:
    """Numbers of a normal distribution."""
    kind = _dtype(ctx, dtype, DType.F32)
    sizes = tuple(map(index, shape))
    return ctx.call(
        RandomNormal(shape=sizes, dtype=kind, seed=seed_of(ctx, seed), mean=mean, scale=scale)
    )


@converter("RandomNormalLike", since=1)
def convert_random_normal_like(
    ctx: Context,
    x: Value,
    *,
    dtype: int | None = None,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
) -> Value:
    """Numbers of a normal distribution, as many as `x` has."""
    kind = _dtype(ctx, dtype, x.type.dtype)
    return ctx.call(
        RandomNormal(
            shape=x.type.shape, dtype=kind, seed=seed_of(ctx, seed), mean=mean, scale=scale
        )
    )


@converter("Bernoulli", since=15)
def convert_bernoulli(
    ctx: Context, x: Value, *, dtype: int | None = None, seed: float | None = None
) -> Value:
    """1 with the probability `x`, else 0."""
    kind = DType.F64 if x.type.dtype is DType.F64 else DType.F32
    drawn = _uniform(ctx, x.type.shape, kind, seed, 0.0, 1.0)
    hit = ctx.call(Less(), drawn, cast_to(ctx, x, kind))
    return cast_to(ctx, hit, _dtype(ctx, dtype, x.type.dtype))


@converter("Multinomial", since=7)
def convert_multinomial(
    ctx: Context,
    x: Value,
    *,
    dtype: int = 6,
    sample_size: int = 1,
    seed: float | None = None,
) -> Value:
    """Classes drawn by their unnormalized log probabilities: how many running sums are passed."""
    if x.type.rank != 2:
        ctx.refuse(f"it needs a row of log probabilities for each batch, and has {x.type}")
    batch, classes = x.type.shape
    x = cast_to(ctx, x, DType.F32) if x.type.dtype is not DType.F64 else x
    sums = ctx.call(CumSum(axis=1), ctx.call(Softmax(axis=1), x))
    drawn = _uniform(ctx, (batch, index(sample_size)), x.type.dtype, seed, 0.0, 1.0)
    passed = ctx.call(LessEqual(), unsqueeze(ctx, sums, (1,)), unsqueeze(ctx, drawn, (2,)))
    count = ctx.call(Reduce(kind="sum", axes=(2,), keepdims=False), cast_to(ctx, passed, DType.I64))
    last = ctx.size_tensor(np.array(classes - 1, dtype=np.object_))
    return cast_to(ctx, ctx.call(Minimum(), count, last), _dtype(ctx, dtype, DType.I32))


@converter("Dropout", since=1)
def convert_dropout_legacy(
    ctx: Context, x: Value, *, ratio: float = 0.5, is_test: int = 0
) -> tuple[Value, ...]:
    """Dropout does nothing at inference. Until opset 10, the mask has the type of the operand."""
    return (x, *(cast_to(ctx, mask, x.type.dtype) for mask in _mask(ctx, x, None)))


@converter("Dropout", since=10)
def convert_dropout_attribute(ctx: Context, x: Value, *, ratio: float = 0.5) -> tuple[Value, ...]:
    """The same, with a mask of truths."""
    return (x, *_mask(ctx, x, None))


@converter("Dropout", since=12)
def convert_dropout(
    ctx: Context,
    x: Value,
    ratio: Value | None = None,
    training_mode: Value | None = None,
    *,
    seed: int | None = None,
) -> tuple[Value, ...]:
    """The operand; in training some of its elements are 0 and the others scaled up."""
    training = None if training_mode is None else ctx.array(training_mode)
    if training_mode is None or (training is not None and not training.any()):
        return (x, *_mask(ctx, x, None))
    kind = x.type.dtype
    share = ctx.scalar(0.5, kind) if ratio is None else cast_to(ctx, ratio, kind)
    number = None if seed is None else float(seed)
    drawn = _uniform(ctx, x.type.shape, kind, number, 0.0, 1.0)
    kept = ctx.call(LessEqual(), expand_to(ctx, share, x.type.shape), drawn)
    one, zero = ctx.scalar(1.0, kind), ctx.scalar(0.0, kind)
    # A ratio of 1 keeps nothing, and must not divide by 0.
    rest = ctx.call(Maximum(), ctx.call(Sub(), one, share), ctx.scalar(2.0**-14, kind))
    scaled = ctx.call(Where(), kept, ctx.call(Mul(), x, ctx.call(Div(), one, rest)), zero)
    if training is None:
        scaled = ctx.call(Where(), training_mode, scaled, x)
        kept = ctx.call(Where(), training_mode, kept, ctx.constant(np.ones((), np.bool_)))
    return (scaled, *_mask(ctx, x, kept))


def _mask(ctx: Context, x: Value, kept: Value | None) -> tuple[Value, ...]:
    """Which elements are kept, where that is asked for."""
    if not any(ctx.node.outputs[1:]):
        return ()
    return (
        expand_to(ctx, ctx.constant(np.ones((), np.bool_)), x.type.shape) if kept is None else kept,
    )


def _uniform(
    ctx: Context,
    shape: Sequence[Expr],
    dtype: DType,
    seed: float | None,
    low: float,
    high: float,
) -> Value:
    number = seed_of(ctx, seed)
    return ctx.call(RandomUniform(shape=tuple(shape), dtype=dtype, seed=number, low=low, high=high))
