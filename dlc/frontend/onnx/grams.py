"""The converter of counts of n-grams, among numbers or texts.

Source: https://onnx.ai/onnx/operators/onnx__TfIdfVectorizer.html
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from dlc.core.types import DType
from dlc.frontend.onnx.cast import cast_to
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.generate import fill
from dlc.frontend.onnx.lookup import MANY_KEYS, found_in
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.reshape import reshape_to, unsqueeze
from dlc.frontend.onnx.slicing import concat
from dlc.frontend.onnx.text import text_array
from dlc.graph.graph import Value
from dlc.graph.op import Array
from dlc.graph.ops.binary import Add, Equal, Mul, Where
from dlc.graph.ops.gather import Gather
from dlc.graph.ops.reduce import Reduce
from dlc.graph.ops.scatter import ScatterElements
from dlc.graph.ops.shape import Slice
from dlc.te.expr import ONE, ZERO, Const, Expr, index, maximum
from dlc.te.simplify import canonical
from dlc.te.types import const_size

MOST_SKIPS = 64
"""Elements left out in n-grams: each number of them is a kernel."""
MOST_COLUMNS = 1 << 24
"""Of counted n-grams: each is 4 bytes of a row."""


@converter("TfIdfVectorizer", since=9)
def convert_tf_idf(
    ctx: Context,
    x: Value,
    *,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: Sequence[int],
    ngram_indexes: Sequence[int],
    pool_int64s: Sequence[int] = (),
    pool_strings: Sequence[str] = (),
    weights: Sequence[float] = (),
) -> Value:
    """How often each n-gram of a pool occurs, with up to so many elements left out in between."""
    if mode not in ("TF", "IDF", "TFIDF") or x.type.rank not in (1, 2):
        ctx.refuse(f"mode = '{mode}' of {x.type}")
    rows = x if x.type.rank == 2 else unsqueeze(ctx, x, (0,))
    if x.type.dtype is not DType.STR:
        rows = cast_to(ctx, rows, DType.I64)
    pool = _pool(ctx, x, pool_int64s, pool_strings)
    length = rows.type.shape[1]
    most = min(max_skip_count, const_size(length)) if isinstance(length, Const) else max_skip_count
    if max_gram_length > 1 and most >= MOST_SKIPS:
        ctx.refuse(f"max_skip_count = {max_skip_count} of {length} elements")
    ends = [*ngram_counts, len(pool)]
    if not len(pool) or ends[0] != 0 or sorted(ends) != ends:
        ctx.refuse(f"ngram_counts {list(ngram_counts)} do not divide a pool of {len(pool)}")
    if any((end - start) % n for n, (start, end) in enumerate(itertools.pairwise(ends), start=1)):
        ctx.refuse("a part of its pool is not a whole number of n-grams")
    is_large = x.type.dtype is DType.STR or len(pool) >= MANY_KEYS
    words = _Words(ctx, rows, pool) if is_large else None
    found: list[Value] = []
    for n, (start, end) in enumerate(itertools.pairwise(ends), start=1):
        grams = pool[start:end].reshape(-1, n)
        if not len(grams):
            continue
        skips = range(1, 2 if n == 1 else max_skip_count + 2)
        if min_gram_length <= n <= max_gram_length:
            counted = words.counts(grams, skips) if words else None
            found.append(counted or _counts(ctx, rows, grams, skips))
        else:
            zeros = (rows.type.shape[0], index(len(grams)))
            found.append(fill(ctx, np.zeros((), np.float32), zeros))
    total = concat(ctx, found, 1) if len(found) > 1 else found[0]
    return _placed(ctx, x, total, mode, ngram_indexes, weights)


def _pool(ctx: Context, x: Value, ints: Sequence[int], strings: Sequence[str]) -> Array:
    """The elements of all n-grams, of the kind that x has."""
    if x.type.dtype is not DType.STR:
        return np.array(ints, np.int64)
    if not strings:
        ctx.refuse("its pool holds no texts")
    return text_array(strings)


def window(ctx: Context, rows: Value, start: Expr, size: Expr) -> Value:
    """Some elements of each row."""
    sizes = (rows.type.shape[0], size)
    return ctx.call(Slice(starts=(ZERO, canonical(start)), sizes=sizes, steps=(1, 1)), rows)


def _places(rows: Value, n: int, step: int) -> Expr:
    """How many n-grams begin in a row."""
    return canonical(maximum(rows.type.shape[1] - (n - 1) * step, ZERO))


def _counts(ctx: Context, rows: Value, grams: Array, skips: range) -> Value:
    """How often each gram occurs in each row, by comparing all with all: [rows, grams]."""
    n = grams.shape[1]
    total = fill(ctx, np.zeros((), np.float32), (rows.type.shape[0], index(len(grams))))
    for step in skips:
        if (places := _places(rows, n, step)) == ZERO:
            break
        all_equal: Value | None = None
        for k in range(n):
            beside = unsqueeze(ctx, window(ctx, rows, index(k * step), places), (2,))
            same = ctx.call(Equal(), beside, ctx.constant(grams[:, k].reshape(1, 1, -1)))
            number = cast_to(ctx, same, DType.F32)
            all_equal = number if all_equal is None else ctx.call(Mul(), all_equal, number)
        assert all_equal is not None, "a gram has an element"
        found = ctx.call(Reduce(kind="sum", axes=(1,), keepdims=False), all_equal)
        total = found if step == skips[0] else ctx.call(Add(), total, found)
    return total


def _number_of(ctx: Context, x: Value, keys: Array) -> Value:
    """The number of each element among keys, from 1 on; 0 of what is none."""
    return found_in(ctx, x, keys, np.arange(1, len(keys) + 1), np.zeros((), np.int64))


class _Words:
    """The elements of rows by their number among those of a pool: from 1 on, 0 for all others.

    An n-gram is looked up word by word: what was found so far and the next word are one number,
    among those that begin grams. A pool of any size takes one look-up for each word of a row.
    """

    def __init__(self, ctx: Context, rows: Value, pool: Array) -> None:
        self.ctx = ctx
        self.words = np.unique(pool)
        self.rows = _number_of(ctx, rows, self.words)

    def counts(self, grams: Array, skips: range) -> Value | None:
        """How often each gram occurs in each row: [rows, grams]; None where one is there twice."""
        ctx, (count, n) = self.ctx, grams.shape
        keys, found = self._keys(np.searchsorted(self.words, grams) + 1)
        if len(set(found.tolist())) < count:
            return None
        columns = np.full(len(keys[-1]) + 1 if keys else len(self.words) + 1, count, np.int64)
        columns[found] = np.arange(count)
        lines = self.rows.type.shape[0]
        total = fill(ctx, np.zeros((), np.float32), (lines, index(count + 1)))
        for step in skips:
            if (places := _places(self.rows, n, step)) == ZERO:
                break
            prefix = window(ctx, self.rows, ZERO, places)
            for k, known in enumerate(keys, start=1):
                both = ctx.call(Mul(), prefix, ctx.scalar(len(self.words) + 1, DType.I64))
                both = ctx.call(Add(), both, window(ctx, self.rows, index(k * step), places))
                prefix = _number_of(ctx, both, known)
            column = ctx.call(Gather(axis=0), ctx.constant(columns), prefix)
            ones = fill(ctx, np.ones((), np.float32), (lines, places))
            total = ctx.call(ScatterElements(axis=1, reduction="add"), total, column, ones)
        return window(ctx, total, ZERO, index(count))

    def _keys(self, coded: Array) -> tuple[list[Array], Array]:
        """Of each word but the first: the numbers of what begins grams with it; all grams' last."""
        keys: list[Array] = []
        prefix = coded[:, 0]
        for word in coded.T[1:]:
            key, place = np.unique(prefix * (len(self.words) + 1) + word, return_inverse=True)
            keys.append(key)
            prefix = place + 1
        return keys, prefix


def _placed(
    ctx: Context,
    x: Value,
    counts: Value,
    mode: str,
    places: Sequence[int],
    weights: Sequence[float],
) -> Value:
    """Counts in the columns that `ngram_indexes` name, weighted."""
    if len(places) != const_size(counts.type.shape[1]) or len(weights) not in (0, len(places)):
        ctx.refuse("its lists differ in length")
    width = max(places) + 1
    if min(places) < 0 or width > MOST_COLUMNS:
        ctx.refuse(f"ngram_indexes run from {min(places)} to {width - 1}")
    source = np.full(width, len(places), np.int64)
    source[list(places)] = np.arange(len(places))
    zero = fill(ctx, np.zeros((), np.float32), (counts.type.shape[0], ONE))
    y = ctx.call(Gather(axis=1), concat(ctx, [counts, zero], 1), ctx.constant(source))
    if mode != "TF":
        factors = np.zeros(width, np.float32)
        factors[list(places)] = weights or 1.0
        if mode == "IDF":
            seen = ctx.call(Equal(), y, ctx.scalar(0.0, DType.F32))
            y = ctx.call(Where(), seen, ctx.scalar(0.0, DType.F32), ctx.scalar(1.0, DType.F32))
        y = ctx.call(Mul(), y, ctx.constant(factors))
    return y if x.type.rank == 2 else reshape_to(ctx, y, (index(width),))
