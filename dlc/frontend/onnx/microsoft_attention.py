"""Converters of onnxruntime's attention operators, spelled out as exporters write them.

Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dlc.core.types import DType
from dlc.frontend.onnx.cast import cast_to
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.matmul import scaled
from dlc.frontend.onnx.microsoft import DOMAIN
from dlc.frontend.onnx.quantized import along, moved
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.reshape import reshape_to, transpose, unsqueeze
from dlc.frontend.onnx.slicing import concat, slice_axes
from dlc.graph.graph import Value
from dlc.graph.ops.binary import Add, And, Less, LessEqual, Mul, Sub, Where
from dlc.graph.ops.from_sizes import Range
from dlc.graph.ops.matmul import MatMul
from dlc.graph.ops.softmax import Softmax
from dlc.te.expr import ZERO, Expr, index
from dlc.te.simplify import canonical, surely_equal


@dataclass(frozen=True, slots=True)
class Attention:
    """What is common to the operators."""

    heads: int
    scale: float
    causal: bool
    masked: float
    """What is added to the score of a key that is not to be seen."""

    def split(self, ctx: Context, x: Value) -> Value:
        """[batch, length, heads * size] -> [batch, heads, length, size]."""
        return heads_of(ctx, x, self.heads)

    def run(
        self, ctx: Context, q: Value, k: Value, v: Value, biases: Sequence[Value | None]
    ) -> Value:
        """Attention of heads, merged: [batch, queries, heads * size]."""
        return self.weigh(ctx, self.scores(ctx, q, k, biases), v)

    def scores(self, ctx: Context, q: Value, k: Value, biases: Sequence[Value | None]) -> Value:
        """How much each query asks for each key: [batch, heads, queries, keys]."""
        size = q.type.shape[3]
        factor = self.scale
        if not factor:
            factor = 1 / math.sqrt(fixed(ctx, size))
        scores = ctx.call(MatMul(), scaled(ctx, q, factor), transpose(ctx, k, (0, 1, 3, 2)))
        for bias in biases:
            scores = scores if bias is None else ctx.call(Add(), scores, bias)
        if self.causal:
            queries, keys = q.type.shape[2], k.type.shape[2]
            before = canonical(keys - queries)
            row = Range(size=queries, start=before, dtype=DType.I64)
            at = unsqueeze(ctx, ctx.call(row), (1,))
            key = ctx.call(Range(size=keys, start=ZERO, dtype=DType.I64))
            seen = ctx.call(LessEqual(), key, at)
            low = ctx.scalar(float(np.finfo(np.float32).min), scores.type.dtype)
            scores = ctx.call(Where(), seen, scores, low)
        return scores

    def weigh(self, ctx: Context, scores: Value, v: Value) -> Value:
        """The mean of values by the softmax of scores, merged: [batch, queries, heads * size]."""
        made = ctx.call(MatMul(), ctx.call(Softmax(axis=-1), scores), v)
        batch, heads, length, width = made.type.shape
        return reshape_to(
            ctx, transpose(ctx, made, (0, 2, 1, 3)), (batch, length, canonical(heads * width))
        )

    def padding(self, ctx: Context, mask: Value | None, k: Value) -> Value | None:
        """What a mask adds to the scores of keys.

        Shapes:
            mask: [batch] where the keys of each end, [2 * batch] also where they begin; or what is
            above 0 where a key is seen, [batch, keys] or [batch, queries, keys]
            -> [batch, 1, queries or 1, keys]
        """
        if mask is None:
            return None
        if mask.type.rank == 1:
            seen = self._between(ctx, mask, k)
        elif mask.type.rank in (2, 3):
            seen = ctx.call(Less(), ctx.scalar(0, mask.type.dtype), mask)
        else:
            ctx.refuse(f"a mask of type {mask.type} is not handled")
        dtype = k.type.dtype
        hidden = ctx.call(Sub(), ctx.scalar(1.0, dtype), cast_to(ctx, seen, dtype))
        axes = (1,) if mask.type.rank == 3 else (1, 2)
        return unsqueeze(ctx, scaled(ctx, hidden, self.masked), axes)

    def _between(self, ctx: Context, ends: Value, k: Value) -> Value:
        """Which keys are seen, where a vector says up to which, and perhaps from which on."""
        batch, _, keys, _ = k.type.shape
        at = ctx.call(Range(size=keys, start=ZERO, dtype=ends.type.dtype))
        both = surely_equal(ends.type.shape[0], canonical(batch * 2), ctx.bounds)
        if not both or surely_equal(batch, ZERO, ctx.bounds):
            return ctx.call(Less(), at, unsqueeze(ctx, ends, (1,)))
        last, first = (
            unsqueeze(ctx, slice_axes(ctx, ends, [a], [b], [0], [1]), (1,))
            for a, b in ((ZERO, batch), (batch, ends.type.shape[0]))
        )
        return ctx.call(And(), ctx.call(Less(), at, last), ctx.call(LessEqual(), first, at))


def heads_of(ctx: Context, x: Value, heads: int) -> Value:
    """[batch, length, heads * size] -> [batch, heads, length, size]."""
    if x.type.rank != 3 or heads < 1:
        ctx.refuse(f"{heads} heads of {x.type}")
    batch, length, width = x.type.shape
    shape = (batch, length, index(heads), canonical(width // heads))
    return transpose(ctx, reshape_to(ctx, x, shape), (0, 2, 1, 3))


def fixed(ctx: Context, size: Expr) -> int:
    """A size that has to be known now."""
    value = getattr(size, "value", None)
    if value is None:
        ctx.refuse(f"the size of a head, {size}, is not fixed")
    if not value:
        ctx.refuse("its heads have no elements to tell the scale", "state scale")
    return int(value)


def _third(ctx: Context, made: Value) -> int:
    """The width of queries, keys or values that lie side by side."""
    if made.type.rank != 3:
        ctx.refuse(f"queries, keys and values of type {made.type}")
    return fixed(ctx, made.type.shape[2]) // 3


def parts_of(ctx: Context, x: Value, sizes: Sequence[int]) -> list[Value]:
    """The last axis in parts."""
    ends = np.cumsum([0, *sizes])
    axis = x.type.rank - 1
    return [
        slice_axes(ctx, x, [index(a)], [index(b)], [axis], [1])
        for a, b in itertools.pairwise(ends.tolist())
    ]


def _self_attention(
    ctx: Context,
    made: Value,
    sizes: Sequence[int],
    mask: Value | None,
    past: Value | None,
    bias: Value | None,
    how: Attention,
) -> tuple[Value, ...]:
    """Attention of queries, keys and values that lie side by side in one tensor."""
    q, k, v = (how.split(ctx, part) for part in parts_of(ctx, made, sizes))
    if past is not None:  # [2, batch, heads, length, size]
        old = [
            reshape_to(ctx, part, past.type.shape[1:])
            for part in (
                slice_axes(ctx, past, [index(i)], [index(i + 1)], [0], [1]) for i in range(2)
            )
        ]
        k, v = concat(ctx, [old[0], k], 2), concat(ctx, [old[1], v], 2)
    hidden = how.padding(ctx, mask, k)
    y = how.run(ctx, q, k, v, (hidden, bias))
    if not any(ctx.node.outputs[1:]):
        return (y,)
    return y, concat(ctx, [unsqueeze(ctx, k, (0,)), unsqueeze(ctx, v, (0,))], 0)


@converter("Attention", since=1, domain=DOMAIN)
def convert_attention(
    ctx: Context,
    x: Value,
    weights: Value,
    bias: Value | None = None,
    mask: Value | None = None,
    past: Value | None = None,
    attention_bias: Value | None = None,
    *,
    do_rotary: int = 0,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    past_present_share_buffer: int = 0,
    qkv_hidden_sizes: Sequence[int] = (),
    rotary_embedding_dim: int = 0,
    scale: float = 0.0,
    unidirectional: int = 0,
) -> tuple[Value, ...]:
    """Self-attention with the projection of queries, keys and values."""
    if do_rotary or past_present_share_buffer:
        ctx.refuse("do_rotary and past_present_share_buffer are not handled")
    made = ctx.call(MatMul(), x, weights)
    made = made if bias is None else ctx.call(Add(), made, bias)
    third = _third(ctx, made)
    how = Attention(num_heads, scale, bool(unidirectional), mask_filter_value)
    sizes = qkv_hidden_sizes or (third,) * 3
    return _self_attention(ctx, made, sizes, mask, past, attention_bias, how)


@converter("QAttention", since=1, domain=DOMAIN)
def convert_quantized_attention(
    ctx: Context,
    x: Value,
    weights: Value,
    bias: Value,
    x_scale: Value,
    w_scale: Value,
    mask: Value | None = None,
    x_zero: Value | None = None,
    w_zero: Value | None = None,
    past: Value | None = None,
    *,
    do_rotary: int = 0,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    past_present_share_buffer: int = 0,
    scale: float = 0.0,
    unidirectional: int = 0,
) -> tuple[Value, ...]:
    """Self-attention whose projection is a product of integers."""
    if do_rotary or past_present_share_buffer:
        ctx.refuse("do_rotary and past_present_share_buffer are not handled")
    whole = ctx.call(MatMul(), moved(ctx, x, x_zero, (-2, 0)), moved(ctx, weights, w_zero, (-1, 0)))
    real = cast_to(ctx, whole, x_scale.type.dtype)
    factor = ctx.call(Mul(), reshape_to(ctx, x_scale, ()), along(ctx, w_scale, (-1, 0), real))
    made = ctx.call(Add(), ctx.call(Mul(), real, factor), bias)
    third = _third(ctx, made)
    how = Attention(num_heads, scale, bool(unidirectional), mask_filter_value)
    return _self_attention(ctx, made, (third,) * 3, mask, past, None, how)
