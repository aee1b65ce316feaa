"""Converters that spell an algorithm out: determinants, filters for spectra.

Source: https://onnx.ai/onnx/operators/
"""

from __future__ import annotations

import math

import numpy as np

from dlc.frontend.onnx.cast import number_type
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.generate import fill
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.reshape import reshape_to
from dlc.frontend.onnx.slicing import concat, slice_axes
from dlc.graph.arrays import NUMPY_DTYPES, round_to
from dlc.graph.graph import Value
from dlc.graph.ops.binary import Div, Equal, Mul, Sub, Where
from dlc.graph.ops.elementwise import Abs, Neg
from dlc.graph.ops.reduce import ArgMax, Reduce
from dlc.graph.ops.shape import Expand
from dlc.te.expr import ONE, ZERO, Const, index
from dlc.te.simplify import canonical
from dlc.te.types import const_size

_LARGEST = 32
"""Rows of a matrix whose elimination is written out."""


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
