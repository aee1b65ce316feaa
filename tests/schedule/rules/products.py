"""Nests of matrix products and attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from dlc.core.types import DType
from dlc.graph.ops.activation import Relu
from dlc.graph.ops.attributes import as_sizes
from dlc.graph.ops.binary import Add, Mul
from dlc.graph.ops.elementwise import Cast
from dlc.graph.ops.matmul import MatMul, MatMulPacked
from dlc.graph.ops.shape import Slice, Transpose
from dlc.graph.ops.softmax import Softmax
from dlc.schedule.loop import Func
from dlc.te.expr import Expr
from dlc.te.tensor import Tensor, pad, placeholder
from dlc.te.types import TensorType
from tests.schedule.rules.nests import M, N, func, tensor


def dense_bias_relu() -> Func:
    x, w, b = tensor("a", 5, 19), tensor("b", 3, 19, 16), tensor("c", 37)
    return func((x, w, b), Relu().compute(Add().compute(MatMulPacked(n=37).compute(x, w), b)))


def dense_gate() -> Func:
    x, w, b = tensor("a", 53, 19), tensor("b", 3, 19, 16), tensor("c", 37)
    total = Add().compute(MatMulPacked(n=37).compute(x, w), b)
    return func((x, w, b), Mul().compute(total, Relu().compute(total)))


def dense_many_rows() -> Func:
    x, w, b = tensor("a", 53, 19), tensor("b", 3, 19, 16), tensor("c", 37)
    return func((x, w, b), Relu().compute(Add().compute(MatMulPacked(n=37).compute(x, w), b)))


def dense_short_rows() -> Func:
    x, w = tensor("a", 1, 2, 2, 6), tensor("b", 3, 6, 16)
    return func((x, w), MatMulPacked(n=40).compute(x, w))


def dense_symbolic_rows() -> Func:
    x, w = tensor("a", N, 6), tensor("b", 2, 6, 16)
    return func((x, w), MatMulPacked(n=32).compute(x, w))


def one_factor() -> Func:
    x, w = tensor("a", N, 1), tensor("b", 1, 1)
    return func((x, w), MatMul().compute(x, w))


def long_sum() -> Func:
    x, w = tensor("a", 3, 608), tensor("b", 1, 608, 16)
    return func((x, w), MatMulPacked(n=16).compute(x, w))


def one_row() -> Func:
    x, w = tensor("a", 1, 12), tensor("b", 9, 12, 16)
    return func((x, w), MatMulPacked(n=130).compute(x, w))


def one_column(rows: int | Expr, summands: int | Expr) -> Func:
    x, w = tensor("a", rows, summands), tensor("b", summands, 1)
    return func((x, w), MatMul().compute(x, w))


def column_left(
    rows: int | Expr, summands: int | Expr, columns: int = 33, *, turned: bool = False
) -> Func:
    """Whole vectors leave one of 17, 33, ... columns."""
    x = tensor("a", summands, rows) if turned else tensor("a", rows, summands)
    w = tensor("b", summands, columns)
    operand = Transpose(perm=(1, 0)).compute(x) if turned else x
    return func((x, w), MatMul().compute(operand, w))


def packed_column_left() -> Func:
    x, w, b = tensor("a", N, 40), tensor("b", 3, 40, 16), tensor("c", 33)
    return func((x, w, b), Relu().compute(Add().compute(MatMulPacked(n=33).compute(x, w), b)))


def single_scores() -> Func:
    q, k = tensor("a", 1, 4, 1, 8), tensor("b", 1, 4, 8, 1)
    s, b = tensor("c"), tensor("d", 4, 1, 1)
    return func((q, k, s, b), Add().compute(Mul().compute(MatMul().compute(q, k), s), b))


def scores() -> Func:
    q, k = tensor("a", 2, N, 5), tensor("b", 2, 5, N)
    return func((q, k), MatMul().compute(q, k))


def scores_transposed() -> Func:
    q, k = tensor("a", 2, 9, 5), tensor("b", 2, 21, 5)
    return func((q, k), MatMul().compute(q, Transpose(perm=(0, 2, 1)).compute(k)))


def scores_of_one_buffer(length: int | Expr) -> Func:
    """Queries and keys are parts of one operand, as after a merged projection: [1, n, q k v, 5]."""
    x, mask = tensor("a", 1, length, 9, 5), tensor("b", 1, 1, length, length)

    def heads(first: int, perm: tuple[int, ...]) -> Tensor:
        starts, sizes = (0, 0, first, 0), (1, length, 3, 5)
        part = Slice(starts=as_sizes(starts), sizes=as_sizes(sizes)).compute(x)
        moved = Transpose(perm=perm).compute(replace(part, name=f"part{first}"))
        return replace(moved, name=f"heads{first}")

    q, k = heads(6, (0, 2, 1, 3)), heads(0, (0, 2, 3, 1))
    return func((x, mask), Add().compute(MatMul().compute(q, k), mask))


def scores_of_one_query() -> Func:
    q, k = tensor("a", 2, 1, 40), tensor("b", 2, 21, 40)
    return func((q, k), MatMul().compute(q, Transpose(perm=(0, 2, 1)).compute(k)))


def widened_columns(rows: int | Expr, *, turned: bool) -> Func:
    """Queries of float32 meet keys, or values, that lie in memory as 16-bit floats."""
    shape = (2, 21, 40) if turned else (2, 40, 21)
    q, k = tensor("a", 2, rows, 40), placeholder("b", TensorType(shape, DType.F16))
    moved = Transpose(perm=(0, 2, 1)).compute(k) if turned else k
    wide = replace(Cast(to=DType.F32).compute(moved), name="wide")
    return func((q, k), MatMul().compute(q, wide))


def attention(
    heads: int,
    rows: int | Expr,
    keys: int | Expr,
    size: int,
    *,
    masked: bool = True,
    batch: int | Expr = 1,
    below: int = 0,
) -> Func:
    """Queries [batch, rows, heads, size], keys and values of their own length, perhaps a mask.

    Rows of zeros may lie `below` the result.
    """
    shapes = (batch, rows, heads, size), (batch, keys, heads, size), (batch, keys, heads, size)
    q, k, v = (tensor(name, *shape) for name, shape in zip("abc", shapes, strict=True))
    mask = tensor("d", 1, 1, rows, keys)

    def moved(x: Tensor, perm: tuple[int, ...]) -> Tensor:
        return replace(Transpose(perm=perm).compute(x), name=f"{x.name}_moved")

    scores = MatMul().compute(moved(q, (0, 2, 1, 3)), moved(k, (0, 2, 3, 1)))
    scores = replace(scores, name="scores")
    if masked:
        scores = replace(Add().compute(scores, mask), name="masked")
    weights = replace(Softmax(axis=-1).compute(scores), name="weights")
    mixed = replace(MatMul().compute(weights, moved(v, (0, 2, 1, 3))), name="mixed")
    operands = (q, k, v, mask) if masked else (q, k, v)
    result = moved(mixed, (0, 2, 1, 3))
    return func(operands, pad("p", result, (0,) * 4, (0, below, 0, 0)) if below else result)


CASES: dict[str, Callable[[], Func]] = {
    "dense_bias_relu": dense_bias_relu,
    "dense_many_rows": dense_many_rows,
    "dense_short_rows": dense_short_rows,
    "dense_symbolic_rows": dense_symbolic_rows,
    "long_sum": long_sum,
    "one_row": one_row,
    "scores": scores,
    "scores_transposed": scores_transposed,
    "scores_of_one_buffer": partial(scores_of_one_buffer, 37),
    "scores_of_one_symbolic_buffer": partial(scores_of_one_buffer, N),
    "scores_of_one_query": scores_of_one_query,
    "widened_for_one_query": partial(widened_columns, 1, turned=False),
    "widened_and_turned_for_one_query": partial(widened_columns, 1, turned=True),
    "widened_for_many": partial(widened_columns, 9, turned=False),
    "widened_and_turned_for_an_open_number": partial(widened_columns, N, turned=True),
    "attention": partial(attention, 2, 7, 21, 5),
    "attention_unmasked": partial(attention, 3, 13, 37, 18, masked=False),
    "attention_of_wide_heads": partial(attention, 1, 5, 3, 35),
    "attention_to_one_key": partial(attention, 2, 5, 1, 3, masked=False),
    "attention_of_batches": partial(attention, 2, 6, 19, 4, batch=N),
    "attention_symbolic": partial(attention, 2, N, M, 5),
    "attention_symbolic_narrow": partial(attention, 2, N, N, 16),
    "attention_symbolic_unmasked": partial(attention, 1, N, N, 17, masked=False),
    "column_left": partial(column_left, 29, 37),
    "column_left_of_few_rows": partial(column_left, 2, 64, 17),
    "column_left_of_open_rows": partial(column_left, N, 24),
    "packed_column_left": packed_column_left,
    "attention_to_an_odd_key": partial(attention, 2, 21, 33, 20),
    "dense_gate": dense_gate,
    "one_factor": one_factor,
    "single_scores": single_scores,
    "one_column": partial(one_column, 13, 70),
    "one_column_short": partial(one_column, 37, 13),
    "one_column_open": partial(one_column, N, M),
}
