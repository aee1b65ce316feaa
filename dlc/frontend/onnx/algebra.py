"""Converters that spell an algorithm out: determinants, counts of n-grams, filters for spectra.

Source: https://onnx.ai/onnx/operators/
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from dlc.core.types import DType
from dlc.frontend.onnx.cast import cast_to, number_type
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.generate import fill
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.reshape import reshape_to, unsqueeze
from dlc.frontend.onnx.slicing import concat, slice_axes
from dlc.graph.arrays import NUMPY_DTYPES, round_to
from dlc.graph.graph import Value
from dlc.graph.op import Array
from dlc.graph.ops.binary import Add, Div, Equal, Mul, Sub, Where
from dlc.graph.ops.elementwise import Abs, Neg
from dlc.graph.ops.gather import Gather
from dlc.graph.ops.reduce import ArgMax, Reduce
from dlc.graph.ops.shape import Expand, Slice
from dlc.te.expr import ONE, ZERO, Const, index, maximum
from dlc.te.simplify import canonical
from dlc.te.types import const_size

_LARGEST = 32
"""Rows of a matrix whose elimination is written out."""
MOST_SKIPS = 64
"""Elements left out in n-grams of rows of an open length: each number of them is a kernel."""
MOST_COLUMNS = 1 << 24
"""Of counted n-grams: each is 4 bytes of a row."""


@converter("Det", since=11)
def convert_det(ctx: Context, x: Value) -> Value:
    """The product of the pivots of an elimination; each pivot is the largest of its column."""
    if x.type.rank < 2:
        ctx.refuse(f"{x.type} is no matrix")
    *batch, rows, columns = x.type.shape
    if rows != columns or not isinstance(rows, Const) or rows.value > _LARGEST:
        ctx.refuse(f"{x.type} is no square matrix of at most {_LARGEST} rows known now")
    count = canonical(math.prod(batch, start=ONE))
    left = reshape_to(ctx, x, (count, rows, columns))
    det = fill(ctx, np.ones((), NUMPY_DTYPES[x.type.dtype]), (count,))
    for order in range(const_size(rows), 0, -1):
        det, left = _eliminated(ctx, det, left, order)
    return reshape_to(ctx, det, tuple(batch))


def _pivoted(ctx: Context, x: Value, sizes: Value, first: Value) -> tuple[Value, Value, Value]:
    """Where the largest size is, the row there, and `x` with the row `first` in its place.

    Shapes:
        x: [n, rows, columns], sizes: [n, rows, 1], first: [n, 1, columns]
        -> [n, 1, 1], [n, 1, columns], [n, rows, columns]
    """
    at = ctx.call(ArgMax(axis=1, keepdims=True), sizes)
    places = np.arange(const_size(x.type.shape[1])).reshape(1, -1, 1)
    chosen = ctx.call(Equal(), ctx.constant(places), at)
    total = Reduce(kind="sum", axes=(1,), keepdims=True)
    row = ctx.call(total, ctx.call(Where(), chosen, x, ctx.scalar(0.0, x.type.dtype)))
    return at, row, ctx.call(Where(), chosen, first, x)


def _eliminated(ctx: Context, det: Value, left: Value, size: int) -> tuple[Value, Value]:
    """The product with the next pivot, and what remains to the right of and below it."""
    dtype = left.type.dtype

    def part(v: Value, axis: int, start: int, end: int) -> Value:
        return slice_axes(ctx, v, [index(start)], [index(end)], [axis], [1])

    if size == 1:
        return ctx.call(Mul(), det, reshape_to(ctx, left, det.type.shape)), left
    sizes = ctx.call(Abs(), part(left, 2, 0, 1))
    at, row, swapped = _pivoted(ctx, left, sizes, part(left, 1, 0, 1))
    below = part(swapped, 1, 1, size)
    pivot = part(row, 2, 0, 1)
    zero = ctx.call(Equal(), pivot, ctx.scalar(0.0, dtype))
    divisor = ctx.call(Where(), zero, ctx.scalar(1.0, dtype), pivot)
    factors = ctx.call(Div(), part(below, 2, 0, 1), divisor)
    rest = ctx.call(Mul(), factors, part(row, 2, 1, size))
    rest = ctx.call(Sub(), part(below, 2, 1, size), rest)
    stays = ctx.call(Equal(), at, ctx.constant(np.zeros((), np.int64)))
    signed = ctx.call(Where(), stays, pivot, ctx.call(Neg(), pivot))
    return ctx.call(Mul(), det, reshape_to(ctx, signed, det.type.shape)), rest


def inverse(ctx: Context, x: Value) -> Value:
    """The inverse of matrices by Gauss-Jordan elimination, each pivot the largest of its column.

    Of a singular matrix the elements are not finite.

    Shapes:
        x: [*batch, n, n] -> as x
    """
    rows, columns = x.type.shape[-2:] if x.type.rank > 1 else (ONE, ZERO)
    if rows != columns or not isinstance(rows, Const) or rows.value > _LARGEST:
        ctx.refuse(f"{x.type} is no square matrix of at most {_LARGEST} rows known now")
    if rows == ZERO:
        return x
    size = const_size(rows)
    count = canonical(math.prod(x.type.shape[:-2], start=ONE))
    unit = ctx.constant(np.eye(size, dtype=NUMPY_DTYPES[x.type.dtype]))
    units = ctx.call(Expand(shape=(count, rows, rows)), unit)
    both = concat(ctx, [reshape_to(ctx, x, (count, rows, rows)), units], 2)
    for step in range(size):
        both = _reduced(ctx, both, step, size)
    found = slice_axes(ctx, both, [rows], [canonical(rows * 2)], [2], [1])
    return reshape_to(ctx, found, x.type.shape)


def _reduced(ctx: Context, both: Value, step: int, size: int) -> Value:
    """Column `step` turned into that of the unit matrix, by what is done to whole rows."""
    dtype = both.type.dtype
    places = np.arange(size).reshape(1, size, 1)

    def column(v: Value) -> Value:
        return slice_axes(ctx, v, [index(step)], [index(step + 1)], [2], [1])

    left = ctx.constant(places >= step)
    sizes = ctx.call(Where(), left, ctx.call(Abs(), column(both)), ctx.scalar(-1.0, dtype))
    first = slice_axes(ctx, both, [index(step)], [index(step + 1)], [1], [1])
    _, pivot, swapped = _pivoted(ctx, both, sizes, first)
    row = ctx.call(Div(), pivot, column(pivot))
    rest = ctx.call(Sub(), swapped, ctx.call(Mul(), column(swapped), row))
    return ctx.call(Where(), ctx.constant(places == step), row, rest)


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
    if max_gram_length > 1 and max_skip_count >= MOST_SKIPS and not isinstance(length, Const):
        hint = "fix the number of elements with dims= or shapes="
        ctx.refuse(f"max_skip_count = {max_skip_count} of an open number of elements", hint)
    found: list[Value] = []
    ends = [*ngram_counts, len(pool)]
    if not len(pool) or ends[0] != 0 or sorted(ends) != ends:
        ctx.refuse(f"ngram_counts {list(ngram_counts)} do not divide a pool of {len(pool)}")
    if any((end - start) % n for n, (start, end) in enumerate(itertools.pairwise(ends), start=1)):
        ctx.refuse("a part of its pool is not a whole number of n-grams")
    for n, (start, end) in enumerate(itertools.pairwise(ends), start=1):
        grams = pool[start:end].reshape(-1, n)
        if not len(grams):
            continue
        skips = range(1, 2 if n == 1 else max_skip_count + 2)
        if min_gram_length <= n <= max_gram_length:
            found.append(_counts(ctx, rows, grams, skips))
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
    return np.array([*strings, None], np.object_)[:-1]


def _counts(ctx: Context, rows: Value, grams: np.ndarray, skips: range) -> Value:
    """How often each gram occurs in each row: [n, grams]."""
    n, (count, length) = grams.shape[1], rows.type.shape
    total = fill(ctx, np.zeros((), np.float32), (count, index(len(grams))))
    for step in skips:
        places = canonical(maximum(length - (n - 1) * step, ZERO))
        if places == ZERO:
            break
        all_equal: Value | None = None
        for k in range(n):
            window = Slice(starts=(ZERO, index(k * step)), sizes=(count, places), steps=(1, 1))
            column = ctx.constant(grams[:, k].reshape(1, 1, -1))
            same = ctx.call(Equal(), unsqueeze(ctx, ctx.call(window, rows), (2,)), column)
            number = cast_to(ctx, same, DType.F32)
            all_equal = number if all_equal is None else ctx.call(Mul(), all_equal, number)
        assert all_equal is not None, "a gram has an element"
        found = ctx.call(Reduce(kind="sum", axes=(1,), keepdims=False), all_equal)
        total = found if step == skips[0] else ctx.call(Add(), total, found)
    return total


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


@converter("MelWeightMatrix", since=17)
def convert_mel_weight_matrix(
    ctx: Context,
    num_mel_bins: Value,
    dft_length: Value,
    sample_rate: Value,
    lower_edge_hertz: Value,
    upper_edge_hertz: Value,
    *,
    output_datatype: int = 1,
) -> Value:
    """Triangles that overlap by half, equally wide in mel: a constant."""
    dtype = number_type(ctx, output_datatype)
    bins, length, rate = (
        ctx.one_int(v, what)
        for v, what in ((num_mel_bins, "num_mel_bins"), (dft_length, "dft_length"),
                        (sample_rate, "sample_rate"))
    )  # fmt: skip
    edges = [ctx.one_number(v, "an edge") for v in (lower_edge_hertz, upper_edge_hertz)]
    if bins < 1 or length < 1 or bins * length > 1 << 24:
        ctx.refuse(f"{bins} bins of a transform of length {length}")
    low, high = (2595 * np.log10(1 + hertz / 700) for hertz in edges)
    mels = low + np.arange(bins + 2) * ((high - low) / (bins + 2))
    places = np.floor((length + 1) * (700 * (10 ** (mels / 2595) - 1)) / rate).astype(np.int64)
    matrix = np.zeros((length // 2 + 1, bins))
    for i in range(bins):
        left, centre, right = places[i : i + 3]
        if centre == left:
            matrix[centre, i] = 1
        for j in range(left, centre + 1) if centre > left else ():
            matrix[j, i] = (j - left) / (centre - left)
        for j in range(centre, right) if right > centre else ():
            matrix[j, i] = (right - j) / (right - centre)
    return ctx.constant(round_to(matrix, dtype))
