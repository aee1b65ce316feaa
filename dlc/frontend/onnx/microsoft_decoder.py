"""The converter of onnxruntime's attention of language models, which keeps keys in a cache.

Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.GroupQueryAttention
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dlc.core.types import DType
from dlc.frontend.onnx.cast import cast_to
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.control import counter
from dlc.frontend.onnx.matmul import scaled
from dlc.frontend.onnx.microsoft import DOMAIN
from dlc.frontend.onnx.microsoft_attention import fixed, heads_of, parts_of
from dlc.frontend.onnx.microsoft_rotary import rotated
from dlc.frontend.onnx.padding import pad_axes
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.reshape import reshape_to, transpose, unsqueeze
from dlc.frontend.onnx.slicing import concat, slice_axes
from dlc.graph.graph import Value
from dlc.graph.ops.binary import Add, And, Div, Less, LessEqual, Maximum, Mul, Sub, Where
from dlc.graph.ops.cache import AppendToCache, TensorScatter
from dlc.graph.ops.elementwise import Tanh
from dlc.graph.ops.matmul import MatMul
from dlc.graph.ops.shape import Expand
from dlc.graph.ops.softmax import Softmax
from dlc.te.expr import ONE, ZERO, Expr, maximum, minimum
from dlc.te.simplify import canonical


@dataclass(frozen=True, slots=True)
class _Scores:
    """How scores become weights."""

    scale: float
    softcap: float
    causal: bool
    window: int
    """How many keys a query sees, itself included; 0 for all."""
    smooth: bool


@converter("GroupQueryAttention", since=1, domain=DOMAIN)
def convert_group_query_attention(
    ctx: Context,
    query: Value,
    key: Value | None = None,
    value: Value | None = None,
    past_key: Value | None = None,
    past_value: Value | None = None,
    lengths: Value | None = None,
    total_length: Value | None = None,
    cos: Value | None = None,
    sin: Value | None = None,
    position_ids: Value | None = None,
    attention_bias: Value | None = None,
    head_sink: Value | None = None,
    *,
    causal: int = 1,
    do_rotary: int = 0,
    k_quant_type: str = "NONE",
    kv_cache_bit_width: int = 0,
    kv_num_heads: int,
    local_window_size: int = -1,
    num_heads: int,
    qk_output: int = 0,
    rotary_interleaved: int = 0,
    scale: float = 0.0,
    sliding_window_cache: int = 0,
    smooth_softmax: int = 0,
    softcap: float = 0.0,
    v_quant_type: str = "NONE",
) -> tuple[Value, ...]:
    """Attention whose heads share keys and values in groups, and put them into a cache.

    Shapes:
        query: [batch, n, heads * size], or with keys and values beside; key, value: [batch, n,
        kv heads * size]; past: [batch, kv heads, p, size]; lengths: [batch], how many keys there
        are in all less 1; total_length: their maximum.
        -> [batch, n, heads * size], and twice [batch, kv heads, max(p, total_length), size], or
        [batch, kv heads, p, size] of a cache that only holds a window
    """
    if {k_quant_type, v_quant_type} != {"NONE"} or kv_cache_bit_width or qk_output:
        ctx.refuse("a quantized cache, or scores as a result, are not handled")
    if lengths is None or total_length is None or query.type.rank != 3:
        ctx.refuse("it lacks the lengths, or its queries are not of rank 3")
    if kv_num_heads < 1 or num_heads < 1 or num_heads % kv_num_heads:
        ctx.refuse(f"{num_heads} heads do not share {kv_num_heads} keys")
    q, k, v = _split(ctx, query, key, value, num_heads, kv_num_heads)
    for past, new in ((past_key, k), (past_value, v)):
        if past is not None:
            _check_cache(ctx, past, new)
    n = q.type.shape[2]
    total = ctx.data.size(ctx.one_size(total_length, "total_sequence_length"))
    before = _before(ctx, lengths, n, total)
    if do_rotary:
        if cos is None or sin is None:
            ctx.refuse("it has no table of angles")
        at = _positions(ctx, before, n) if position_ids is None else position_ids
        q, k = (rotated(ctx, x, at, cos, sin, interleaved=bool(rotary_interleaved)) for x in (q, k))
    window = max(local_window_size, 0)
    how = _Scores(scale, softcap, bool(causal), window, bool(smooth_softmax))
    if not sliding_window_cache:
        keys = _cached(ctx, past_key, k, before, total)
        values = _cached(ctx, past_value, v, before, total)
        y = _attend(ctx, q, keys, values, total, before, attention_bias, head_sink, how)
        return y, keys, values
    if past_key is None or past_value is None or not window or attention_bias is not None:
        ctx.refuse("a cache that holds a window, without one or with a bias, is not handled")
    caches, whole = ((past_key, k), (past_value, v)), _whole(ctx, lengths)
    return _attend_in_window(ctx, q, caches, before, whole, total, head_sink, how)


def _attend_in_window(
    ctx: Context,
    q: Value,
    caches: tuple[tuple[Value, Value], ...],
    before: Value,
    whole: Value,
    total: Expr,
    sink: Value | None,
    how: _Scores,
) -> tuple[Value, ...]:
    """Attention with caches that hold a window, each with what is new, and the caches then.

    `before` and `whole` are how many keys there were and are: [batch], `total` at most.
    """
    room, new = (v.type.shape[2] for v in caches[0])
    ctx.require_least(room, how.window)
    held = _resident(ctx, before, room, how.window)
    in_all = ctx.call(Add(), held, ctx.call(Sub(), whole, before))
    left_out = ctx.call(Sub(), in_all, _resident(ctx, whole, room, how.window))
    length = ctx.simplify(minimum(canonical(room + new), total))
    beside = AppendToCache(size=length, window=how.window)
    keys, values = (ctx.call(beside, *cache, held) for cache in caches)
    y = _attend(ctx, q, keys, values, length, held, None, sink, how)
    kept = AppendToCache(size=room, window=how.window)
    return y, *(ctx.call(kept, *cache, held, left_out) for cache in caches)


def _resident(ctx: Context, total: Value, room: Expr, window: int) -> Value:
    """How many of `total` entries a cache that holds a window has: [batch].

    All that there is room for; once it is full, room for as many as are beside the window is made
    at once. So the number depends on nothing but the total.
    """
    whole = ctx.size_tensor(np.array(room, np.object_))
    free = ctx.size_tensor(np.array(canonical(room - window + 1), np.object_))
    more = ctx.call(Maximum(), ctx.call(Sub(), total, whole), ctx.scalar(0, DType.I64))
    up = ctx.call(Sub(), ctx.call(Add(), more, free), ctx.scalar(1, DType.I64))
    times = ctx.call(Div(), up, free)
    return ctx.call(Sub(), total, ctx.call(Mul(), times, free))


def _check_cache(ctx: Context, past: Value, new: Value) -> None:
    """Refuse a cache for other heads."""
    reason = f"a cache of {past.type} for keys or values of {new.type}"
    if past.type.rank != 4:
        ctx.refuse(reason)
    for axis in (1, 3):
        ctx.require_equal(past.type.shape[axis], new.type.shape[axis], reason)


def _split(
    ctx: Context, query: Value, key: Value | None, value: Value | None, heads: int, shared: int
) -> tuple[Value, Value, Value]:
    """Queries, keys and values as [batch, heads, n, size]."""
    if key is None or value is None:
        size = fixed(ctx, query.type.shape[2]) // (heads + 2 * shared)
        query, key, value = parts_of(ctx, query, [heads * size, shared * size, shared * size])
    if key.type.rank != 3 or value.type.rank != 3:
        ctx.refuse(f"keys are {key.type} and values are {value.type}, not of rank 3")
    return heads_of(ctx, query, heads), heads_of(ctx, key, shared), heads_of(ctx, value, shared)


def _whole(ctx: Context, lengths: Value) -> Value:
    """How many keys each row of the batch has: [batch]."""
    lengths = cast_to(ctx, reshape_to(ctx, lengths, (canonical(lengths.type.elems),)), DType.I64)
    return ctx.call(Add(), lengths, ctx.scalar(1, DType.I64))


def _before(ctx: Context, lengths: Value, n: Expr, total: Expr) -> Value:
    """How many keys each row of the batch had before: [batch]; none where all keys are new."""
    new, whole = (ctx.size_tensor(np.array(size, np.object_)) for size in (n, total))
    zero = ctx.scalar(0, DType.I64)
    past = ctx.call(Maximum(), ctx.call(Sub(), _whole(ctx, lengths), new), zero)
    return ctx.call(Where(), ctx.call(Less(), new, whole), past, zero)


def _positions(ctx: Context, before: Value, n: Expr) -> Value:
    """The places of the new keys: [batch, n]."""
    return ctx.call(Add(), unsqueeze(ctx, before, (1,)), counter(ctx, n))


def _cached(ctx: Context, past: Value | None, new: Value, before: Value, total: Expr) -> Value:
    """The cache with the new keys behind those that each row had, of size `total` at least.

    Zeros stand behind them: a weight of 0 times what no one wrote, perhaps NaN, is no 0.
    """
    batch, heads, _, size = new.type.shape
    if past is None:
        zero = ctx.scalar(0.0, new.type.dtype)
        room = ctx.call(Expand(shape=(batch, heads, total, size)), zero)
        return ctx.call(TensorScatter(axis=2), room, new, before)
    length = ctx.simplify(maximum(past.type.shape[2], total))
    return ctx.call(AppendToCache(size=length), past, new, before)


def _attend(
    ctx: Context,
    q: Value,
    keys: Value,
    values: Value,
    length: Expr,
    before: Value,
    bias: Value | None,
    sink: Value | None,
    how: _Scores,
) -> Value:
    """What `length` keys of a cache, those there are at most, give each query."""
    batch, heads, n, size = q.type.shape
    shared = keys.type.shape[1]
    factor = how.scale or 1 / math.sqrt(fixed(ctx, size))
    keys, values = (slice_axes(ctx, x, [ZERO], [length], [2], [1]) for x in (keys, values))
    stack = _Stack(shared, canonical(heads // shared), n)
    rows = stack.of(ctx, scaled(ctx, q, factor))
    scores = ctx.call(MatMul(), rows, transpose(ctx, keys, (0, 1, 3, 2)))
    if how.softcap:
        scores = scaled(ctx, ctx.call(Tanh(), scaled(ctx, scores, 1 / how.softcap)), how.softcap)
    if bias is not None:
        scores = ctx.call(Add(), scores, stack.of(ctx, _widened(ctx, bias, length)))
    low = ctx.scalar(float("-inf"), scores.type.dtype)
    seen = stack.of(ctx, _seen(ctx, before, n, length, how))
    scores = ctx.call(Where(), seen, scores, low)
    weights = _weights(ctx, scores, sink, how, stack)
    made = reshape_to(ctx, ctx.call(MatMul(), weights, values), (batch, heads, n, size))
    merged = transpose(ctx, made, (0, 2, 1, 3))
    return reshape_to(ctx, merged, (batch, n, canonical(heads * size)))


@dataclass(frozen=True, slots=True)
class _Stack:
    """Queries of the heads that share keys are rows of one matrix."""

    shared: Expr
    group: Expr
    queries: Expr

    def of(self, ctx: Context, x: Value) -> Value:
        """[batch, heads, n, width] -> [batch, shared, group * n, width]; any of them may be 1.

        What is the same for all heads is repeated for those of a group.
        """
        batch, heads, rows, width = x.type.shape
        if self.group == ONE or (heads == ONE and rows == ONE):
            return x
        if rows == ONE and self.queries != ONE:
            x = ctx.call(Expand(shape=(batch, heads, self.queries, width)), x)
        stacked = canonical(self.group * self.queries)
        if heads != ONE:
            return reshape_to(ctx, x, (batch, self.shared, stacked, width))
        apart = reshape_to(ctx, x, (batch, ONE, ONE, self.queries, width))
        many = ctx.call(Expand(shape=(batch, ONE, self.group, self.queries, width)), apart)
        return reshape_to(ctx, many, (batch, ONE, stacked, width))


def _widened(ctx: Context, bias: Value, length: Expr) -> Value:
    """A bias for all places of the cache; those behind the last key are not seen anyway."""
    more = ctx.simplify(maximum(canonical(length - bias.type.shape[-1]), ZERO))
    return pad_axes(ctx, bias, [ZERO, more], [bias.type.rank - 1], "constant", 0.0)


def _seen(ctx: Context, before: Value, n: Expr, length: Expr, how: _Scores) -> Value:
    """Whether a query sees a key: [batch, 1, n or 1, length]."""
    at = unsqueeze(ctx, _positions(ctx, before, n), (1, 3))
    last = at
    if not how.causal:
        step = ctx.call(Add(), before, ctx.size_tensor(np.array(n - 1, np.object_)))
        last = reshape_to(ctx, step, (*before.type.shape, ONE, ONE, ONE))
    place = counter(ctx, length)
    seen = ctx.call(LessEqual(), place, last)
    if how.window:
        first = ctx.call(Sub(), at, ctx.scalar(how.window, DType.I64))
        seen = ctx.call(And(), seen, ctx.call(Less(), first, place))
    return seen


def _weights(ctx: Context, scores: Value, sink: Value | None, how: _Scores, stack: _Stack) -> Value:
    """The softmax of scores; beside them stands one that leads nowhere if there is a sink."""
    if sink is None and not how.smooth:
        return ctx.call(Softmax(axis=-1), scores)
    batch, shared, rows, length = scores.type.shape
    column = ctx.scalar(0.0, scores.type.dtype)
    if sink is not None:
        each = cast_to(ctx, sink, scores.type.dtype)
        column = stack.of(ctx, reshape_to(ctx, each, (ONE, each.type.shape[0], ONE, ONE)))
    wide = ctx.call(Expand(shape=(batch, shared, rows, ONE)), column)
    both = ctx.call(Softmax(axis=-1), concat(ctx, [scores, wide], 3))
    return slice_axes(ctx, both, [ZERO], [length], [3], [1])
