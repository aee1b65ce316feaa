"""Converters of onnxruntime's attention of queries, keys and values that are projected before.

Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

import numpy as np

from dlc.core.types import DType
from dlc.frontend.onnx.cast import cast_to
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.microsoft import DOMAIN
from dlc.frontend.onnx.microsoft_attention import Attention, fixed, parts_of
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.reshape import reshape_to
from dlc.frontend.onnx.slicing import concat, slice_axes
from dlc.graph.graph import Value
from dlc.graph.ops.binary import Add
from dlc.graph.ops.cache import TensorScatter
from dlc.graph.ops.shape import Expand
from dlc.te.expr import ZERO, Expr, index
from dlc.te.simplify import canonical


@converter("MultiHeadAttention", since=1, domain=DOMAIN)
def convert_multi_head_attention(
    ctx: Context,
    query: Value,
    key: Value | None = None,
    value: Value | None = None,
    bias: Value | None = None,
    mask: Value | None = None,
    attention_bias: Value | None = None,
    past_key: Value | None = None,
    past_value: Value | None = None,
    *,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    scale: float = 0.0,
    unidirectional: int = 0,
) -> tuple[Value, ...]:
    """Attention of projected queries, keys and values.

    Shapes:
        query: [batch, n, heads * size]; key, value: [batch, m, heads * size], or split into heads
        as [batch, heads, m, size]; packed: key as [batch, m, heads, 2, size], or query as
        [batch, n, heads, 3, size]. -> [batch, n, heads * size], keys and values, scores.
    """
    how = Attention(num_heads, scale, bool(unidirectional), mask_filter_value)
    q, k, v = _heads(ctx, *_biased(ctx, *_apart(ctx, query, key, value), bias), how)
    k, v = _with_past(ctx, past_key, k), _with_past(ctx, past_value, v)
    hidden = how.padding(ctx, mask, k)
    scores = how.scores(ctx, q, k, (hidden, attention_bias))
    y = how.weigh(ctx, scores, v)
    return (y, k, v, scores) if any(ctx.node.outputs[1:]) else (y,)


@converter("DecoderMaskedMultiHeadAttention", since=1, domain=DOMAIN)
def convert_decoder_attention(
    ctx: Context,
    query: Value,
    key: Value | None = None,
    value: Value | None = None,
    mask: Value | None = None,
    attention_bias: Value | None = None,
    past_key: Value | None = None,
    past_value: Value | None = None,
    past_length: Value | None = None,
    beam_width: Value | None = None,
    cache_indirection: Value | None = None,
    bias: Value | None = None,
    *,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    output_qk: int = 0,
    past_present_share_buffer: int = 0,
    scale: float = 0.0,
) -> tuple[Value, ...]:
    """Attention of one new token: its key and value go behind the past ones, or into their room.

    With `past_present_share_buffer` the past is a cache of which `past_length` keys are there.
    """
    if beam_width is not None or cache_indirection is not None:
        ctx.refuse("a search of beams is not handled")
    how = Attention(num_heads, scale, False, mask_filter_value)
    q, k, v = _heads(ctx, *_biased(ctx, *_apart(ctx, query, key, value), bias), how)
    stored = [k, v]
    if past_present_share_buffer and past_key is not None and past_value is not None:
        if past_length is None:
            ctx.refuse("it does not say how much of its cache is used")
        at = ctx.data.size(ctx.one_size(past_length, "past_sequence_length"))
        room = canonical(past_key.type.shape[2] - at - k.type.shape[2])
        ctx.data.refuse_negative(room, f"node '{ctx.node.label}': its cache has no room")
        stored = [_put(ctx, c, new, at) for c, new in ((past_key, k), (past_value, v))]
        ends = [canonical(at + k.type.shape[2])]
        k, v = (slice_axes(ctx, c, [ZERO], ends, [2], [1]) for c in stored)
    elif past_key is not None and past_value is not None:
        stored = [k, v] = [_with_past(ctx, past_key, k), _with_past(ctx, past_value, v)]
    hidden = how.padding(ctx, mask, k)
    scores = how.scores(ctx, q, k, (hidden, attention_bias))
    y = how.weigh(ctx, scores, v)
    return (y, *stored, cast_to(ctx, scores, DType.F32)) if any(ctx.node.outputs[1:]) else (y,)


def _put(ctx: Context, cache: Value, new: Value, at: Expr) -> Value:
    """A cache [batch, heads, room, size] with new entries from a position on."""
    start = ctx.size_tensor(np.array(at, np.object_))
    places = ctx.call(Expand(shape=(new.type.shape[0],)), start)
    return ctx.call(TensorScatter(axis=2), cache, new, places)


def _apart(
    ctx: Context, query: Value, key: Value | None, value: Value | None
) -> tuple[Value, Value, Value]:
    """Queries, keys and values, each by itself."""
    if query.type.rank == 5 and key is None and value is None:
        q, k, v = _unpacked(ctx, query, 3)
        return q, k, v
    ranks = [v.type.rank for v in (query, key, value) if v is not None]
    if value is None and ranks == [3, 5] and key is not None:
        k, v = _unpacked(ctx, key, 2)
        return query, k, v
    if key is None or value is None or ranks[0] != 3 or not {*ranks[1:]} <= {3, 4}:
        ctx.refuse("its queries, keys and values are packed in a way that is not known")
    return query, key, value


def _unpacked(ctx: Context, x: Value, count: int) -> list[Value]:
    """[batch, m, heads, count, size] as tensors [batch, m, heads * size]."""
    batch, length, heads, _, size = x.type.shape
    flat = (batch, length, canonical(heads * size))
    return [
        reshape_to(ctx, slice_axes(ctx, x, [index(i)], [index(i + 1)], [3], [1]), flat)
        for i in range(count)
    ]


def _biased(
    ctx: Context, q: Value, k: Value, v: Value, bias: Value | None
) -> tuple[Value, Value, Value]:
    """With what is added to queries, keys and values, whose parts lie one after the other."""
    if bias is None:
        return q, k, v
    widths = [x.type.shape[2] if x.type.rank == 3 else x.type.shape[1] * x.type.shape[3]
              for x in (q, k, v)]  # fmt: skip
    parts = parts_of(ctx, bias, [fixed(ctx, canonical(w)) for w in widths])
    added = [_plus(ctx, x, b) for x, b in zip((q, k, v), parts, strict=True)]
    return added[0], added[1], added[2]


def _plus(ctx: Context, x: Value, bias: Value) -> Value:
    if x.type.rank == 4:  # split into heads
        _, heads, _, size = x.type.shape
        bias = reshape_to(ctx, bias, (heads, index(1), size))
    return ctx.call(Add(), x, bias)


def _heads(
    ctx: Context, q: Value, k: Value, v: Value, how: Attention
) -> tuple[Value, Value, Value]:
    q, k, v = (x if x.type.rank == 4 else how.split(ctx, x) for x in (q, k, v))
    return q, k, v


def _with_past(ctx: Context, past: Value | None, new: Value) -> Value:
    return new if past is None else concat(ctx, [past, new], 2)
