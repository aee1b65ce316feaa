"""Converters that look up what stands for a key: numbers or texts.

Source: https://onnx.ai/onnx/operators/index.html#ai-onnx-ml
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dlc.core.types import DType
from dlc.frontend.onnx.cast import cast_to
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.dtypes import dtype_of
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.reshape import unsqueeze
from dlc.frontend.onnx.text import text_array
from dlc.graph.graph import Value
from dlc.graph.op import Array
from dlc.graph.ops.binary import Add, Equal, LessEqual, Or, Where
from dlc.graph.ops.elementwise import IsNaN
from dlc.graph.ops.gather import Gather
from dlc.graph.ops.reduce import ArgMax, Reduce
from dlc.graph.ops.shape import Expand
from dlc.graph.ops.text import PlaceOfText

DOMAIN = "ai.onnx.ml"
MANY_KEYS = 64
"""From so many on they are searched in their order; fewer are compared one and all."""


@converter("LabelEncoder", since=2, domain=DOMAIN)
def convert_label_encoder(
    ctx: Context,
    x: Value,
    *,
    default_float: float = -0.0,
    default_int64: int = -1,
    default_string: str = "_Unused",
    default_tensor: Array | None = None,
    keys_floats: Sequence[float] = (),
    keys_int64s: Sequence[int] = (),
    keys_strings: Sequence[str] = (),
    keys_tensor: Array | None = None,
    values_floats: Sequence[float] = (),
    values_int64s: Sequence[int] = (),
    values_strings: Sequence[str] = (),
    values_tensor: Array | None = None,
) -> Value:
    """A value for each key, the last of a key that is given twice; a default for what is none."""
    keys = _column(keys_tensor, keys_floats, keys_int64s, keys_strings)
    values = _column(values_tensor, values_floats, values_int64s, values_strings)
    if keys is None or values is None or keys.size != values.size:
        ctx.refuse("it has no keys or no values, or they differ in number")
    other = {"f": default_float, "O": default_string}.get(values.dtype.kind, default_int64)
    default = default_tensor if default_tensor is not None else np.array(other)
    return found_in(ctx, x, keys, values, default.reshape(()).astype(values.dtype))


@converter("LabelEncoder", since=1, domain=DOMAIN)
def convert_label_encoder_1(
    ctx: Context,
    x: Value,
    *,
    classes_strings: Sequence[str],
    default_int64: int = -1,
    default_string: str = "_Unused",
) -> Value:
    """The number of each text, or the text of each number."""
    numbers = np.arange(len(classes_strings), dtype=np.int64)
    return _either_way(ctx, x, classes_strings, numbers, default_int64, default_string)


@converter("CategoryMapper", since=1, domain=DOMAIN)
def convert_category_mapper(
    ctx: Context,
    x: Value,
    *,
    cats_int64s: Sequence[int],
    cats_strings: Sequence[str],
    default_int64: int = -1,
    default_string: str = "_Unused",
) -> Value:
    """The number of each text, or the text of each number."""
    if len(cats_int64s) != len(cats_strings):
        ctx.refuse(f"{len(cats_int64s)} numbers for {len(cats_strings)} texts")
    numbers = np.array(cats_int64s, np.int64)
    return _either_way(ctx, x, cats_strings, numbers, default_int64, default_string)


@converter("OneHotEncoder", since=1, domain=DOMAIN)
def convert_one_hot_encoder(
    ctx: Context,
    x: Value,
    *,
    cats_int64s: Sequence[int] = (),
    cats_strings: Sequence[str] = (),
    zeros: int = 1,
) -> Value:
    """A row of zeros with a 1 at the category; of what is none, zeros alone, or a failure."""
    keys = _column(None, (), cats_int64s, cats_strings)
    if keys is None or (keys.dtype.kind == "O") != (x.type.dtype is DType.STR):
        ctx.refuse(f"it has no categories for {x.type}")
    x = x if x.type.dtype is DType.STR else cast_to(ctx, x, DType.I64)
    hits = _hits(ctx, x, keys)
    if not zeros:
        known = ctx.call(Reduce(kind="max", axes=(x.type.rank,), keepdims=False), hits)
        every = Reduce(kind="min", axes=tuple(range(x.type.rank)), keepdims=False)
        message = f"node '{ctx.node.label}': an element is none of the {len(keys)} categories"
        ctx.data.require(ctx.call(every, known), True, message)
    return cast_to(ctx, hits, DType.F32)


def _column(
    tensor: Array | None, floats: Sequence[float], ints: Sequence[int], strings: Sequence[str]
) -> Array | None:
    """The keys or values, whichever attribute holds them."""
    if tensor is not None:
        return tensor.reshape(-1) if tensor.size else None
    if strings:
        return text_array(strings)
    if floats:
        return np.array(floats, np.float32)
    return np.array(ints, np.int64) if ints else None


def _either_way(
    ctx: Context, x: Value, strings: Sequence[str], numbers: Array, number: int, text: str
) -> Value:
    words = _column(None, (), (), strings)
    if words is None:
        ctx.refuse("it has no categories")
    if x.type.dtype is DType.STR:
        return found_in(ctx, x, words, numbers, np.array(number))
    return found_in(ctx, x, numbers, words, np.array(text, np.object_))


def found_in(ctx: Context, x: Value, keys: Array, values: Array, default: Array) -> Value:
    """The value of the last key that each element of x is equal to; NaN is equal to NaN."""
    if (keys.dtype.kind == "O") != (x.type.dtype is DType.STR):
        ctx.refuse(f"keys of type {dtype_of(keys)} for {x.type}")
    if keys.dtype.kind == "O":
        return _text_found_in(ctx, x, keys, values, default)
    if len(keys) >= MANY_KEYS and not np.isnan(keys).any():
        return _number_found_in(ctx, x, keys, values, default)
    keys, values = keys[::-1], values[::-1]
    hit = _hits(ctx, x, keys)
    last = x.type.rank
    first = ctx.call(ArgMax(axis=last, keepdims=False), cast_to(ctx, hit, DType.I32))
    known = ctx.call(Reduce(kind="max", axes=(last,), keepdims=False), hit)
    found = ctx.call(Gather(axis=0), ctx.constant(np.ascontiguousarray(values)), first)
    return ctx.call(Where(), known, found, ctx.constant(default))


def _number_found_in(ctx: Context, x: Value, keys: Array, values: Array, default: Array) -> Value:
    """The same by halving what a key may be among, in their order."""
    keys, values = _each_once(keys, values)
    size = 1 << (len(keys) - 1).bit_length()
    order = np.pad(np.argsort(keys), (0, size - len(keys)), "edge")
    table = ctx.constant(keys[order])
    x = cast_to(ctx, x, table.type.dtype)
    place = ctx.call(Expand(shape=x.type.shape), ctx.scalar(0, DType.I64))
    half = size // 2
    while half:
        later = ctx.call(Add(), place, ctx.scalar(half, DType.I64))
        is_later = ctx.call(LessEqual(), ctx.call(Gather(axis=0), table, later), x)
        place = ctx.call(Where(), is_later, later, place)
        half //= 2
    known = ctx.call(Equal(), ctx.call(Gather(axis=0), table, place), x)
    found = ctx.call(Gather(axis=0), ctx.constant(values[order]), place)
    return ctx.call(Where(), known, found, ctx.constant(default))


def _text_found_in(ctx: Context, x: Value, keys: Array, values: Array, default: Array) -> Value:
    keys, values = _each_once(keys, values)
    table = np.concatenate([default.reshape(1), values])
    place = ctx.call(PlaceOfText(), x, ctx.constant(keys))
    after_default = ctx.call(Add(), place, ctx.scalar(1, DType.I64))
    return ctx.call(Gather(axis=0), ctx.constant(table), after_default)


def _each_once(keys: Array, values: Array) -> tuple[Array, Array]:
    """Keys without those that come again, and the value of the last of each."""
    last = {key: place for place, key in enumerate(keys.tolist())}
    chosen = [*last.values()]
    return keys[chosen], values[chosen]


def _hits(ctx: Context, x: Value, keys: Array) -> Value:
    """Which key each element is equal to, along a new last axis."""
    columns = ctx.constant(np.ascontiguousarray(keys))
    column = unsqueeze(ctx, x, (x.type.rank,))
    hit = ctx.call(Equal(), column, cast_to(ctx, columns, x.type.dtype))
    if keys.dtype.kind == "f" and np.isnan(keys).any():
        nan = ctx.constant(np.isnan(keys))
        absent = ctx.call(Equal(), nan, ctx.call(IsNaN(), column))
        hit = ctx.call(Or(), hit, ctx.call(Where(), nan, absent, nan))
    return hit
