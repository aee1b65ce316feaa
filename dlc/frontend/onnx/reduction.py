"""Converters of reductions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dlc.core.types import DType
from dlc.frontend.onnx import data_axes
from dlc.frontend.onnx.body import Body, Step, scan
from dlc.frontend.onnx.cast import cast_to
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.elementwise import axes_of
from dlc.frontend.onnx.generate import fill
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.reshape import transpose
from dlc.graph.arrays import NUMPY_DTYPES
from dlc.graph.graph import Value
from dlc.graph.ops.binary import Mul
from dlc.graph.ops.elementwise import NUMBERS
from dlc.graph.ops.reduce import ArgMax, ArgMin, CumSum, Reduce
from dlc.graph.ops.shape import undone
from dlc.te.expr import ONE, Expr

_KINDS = {
    "ReduceSum": ("sum", 13),
    "ReduceMean": ("mean", 18),
    "ReduceMax": ("max", 18),
    "ReduceMin": ("min", 18),
    "ReduceProd": ("prod", 18),
    "ReduceSumSquare": ("sum_square", 18),
    "ReduceL1": ("l1", 18),
    "ReduceL2": ("l2", 18),
    "ReduceLogSum": ("log_sum", 18),
    "ReduceLogSumExp": ("log_sum_exp", 18),
}
"""Operator -> (kind, the opset in which the axes became an operand)."""
_FRACTIONS = frozenset({"mean", "l2", "log_sum", "log_sum_exp"})
_UNCHANGED_ALONE = frozenset({"sum", "mean", "max", "min", "prod"})


def _declare(op_type: str, kind: str, axes_operand_since: int) -> None:
    @converter(op_type, since=1)
    def convert_attribute(
        ctx: Context, x: Value, *, axes: Sequence[int] = (), keepdims: int = 1
    ) -> Value:
        return _reduce(ctx, x, kind, axes, keepdims)

    @converter(op_type, since=axes_operand_since)
    def convert_operand(
        ctx: Context,
        x: Value,
        axes: Value | None = None,
        *,
        keepdims: int = 1,
        noop_with_empty_axes: int = 0,
    ) -> Value:
        unknown = None if axes is None else ctx.data_only(axes)
        if unknown:
            return _reduce_data(ctx, x, kind, unknown, keepdims)
        found = () if axes is None else ctx.ints(axes, "axes")
        if not found and noop_with_empty_axes:
            alone = Reduce(kind=kind, axes=(), keepdims=True)
            return x if kind in _UNCHANGED_ALONE else reduce_to(ctx, alone, x)
        return _reduce(ctx, x, kind, found, keepdims)


def _reduce(ctx: Context, x: Value, kind: str, axes: Sequence[int], keepdims: int) -> Value:
    found = axes_of(ctx, axes, x.type.rank) or tuple(range(x.type.rank))
    if kind == "prod" and x.type.rank == 1 and ctx.is_symbolic(x):
        sizes = ctx.elements(x)
        assert sizes is not None
        total = np.full((1,) if keepdims else (), math.prod(sizes.tolist(), start=ONE))
        return ctx.size_tensor(total, x.type.dtype)
    return reduce_to(ctx, Reduce(kind=kind, axes=tuple(sorted(found)), keepdims=bool(keepdims)), x)


def reduce_to(ctx: Context, op: Reduce, x: Value) -> Value:
    """A reduction; of integers what may be no whole number loses its fraction."""
    if x.type.dtype.is_float or op.kind not in _FRACTIONS:
        return ctx.call(op, x)
    return cast_to(ctx, ctx.call(op, cast_to(ctx, x, DType.F64)), x.type.dtype)


def _reduce_data(ctx: Context, x: Value, kind: str, axes: Sequence[Expr], keepdims: int) -> Value:
    """Axes that a run names are folded behind axes that are known."""
    parts = data_axes.fold_axes(ctx, x, axes)
    behind = tuple(range(1, parts.type.rank, 2))
    result = reduce_to(ctx, Reduce(kind=kind, axes=behind, keepdims=False), parts)
    if keepdims:
        return result
    return data_axes.reshape(ctx, result, data_axes.without_axes(ctx, x.type.shape, axes))


for _op_type, (_kind, _since) in _KINDS.items():
    _declare(_op_type, _kind, _since)


def _declare_arg(op_type: str, op: type[ArgMax | ArgMin]) -> None:
    @converter(op_type, since=1)
    def convert(
        ctx: Context, x: Value, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0
    ) -> Value:
        (axis,) = axes_of(ctx, (axis,), x.type.rank)
        found = op(axis=axis, keepdims=bool(keepdims), select_last_index=bool(select_last_index))
        return ctx.call(found, x)


_declare_arg("ArgMax", ArgMax)
_declare_arg("ArgMin", ArgMin)


@converter("CumSum", since=11)
def convert_cum_sum(
    ctx: Context, x: Value, axis: Value, *, exclusive: int = 0, reverse: int = 0
) -> Value:
    """Running sums along an axis."""
    if (unknown := ctx.data_only(axis)) is not None:
        parts = data_axes.split_at(ctx, x, ctx.only(unknown, "axis"))
        op = CumSum(axis=1, exclusive=bool(exclusive), reverse=bool(reverse))
        return data_axes.reshape(ctx, ctx.call(op, parts), x.type.shape)
    (along,) = axes_of(ctx, (ctx.one_int(axis, "axis"),), x.type.rank)
    op = CumSum(axis=along, exclusive=bool(exclusive), reverse=bool(reverse))
    return ctx.call(op, x)


@converter("CumProd", since=26)
def convert_cum_prod(
    ctx: Context, x: Value, axis: Value, *, exclusive: int = 0, reverse: int = 0
) -> Value:
    """Running products along an axis."""
    if x.type.dtype not in NUMBERS:
        ctx.refuse(f"{x.type} has no products")
    if (unknown := ctx.data_only(axis)) is not None:
        parts = data_axes.split_at(ctx, x, ctx.only(unknown, "axis"))
        return data_axes.reshape(ctx, _products(ctx, parts, 1, exclusive, reverse), x.type.shape)
    (along,) = axes_of(ctx, (ctx.one_int(axis, "axis"),), x.type.rank)
    return _products(ctx, x, along, exclusive, reverse)


def _products(ctx: Context, x: Value, along: int, exclusive: int, reverse: int) -> Value:
    order = [along, *(a for a in range(x.type.rank) if a != along)]
    rows = transpose(ctx, x, order)
    one = fill(ctx, NUMPY_DTYPES[x.type.dtype].type(1).reshape(()), rows.type.shape[1:])

    def step(body: Body, state: list[Value], elements: list[Value]) -> Step:
        product = body.call(Mul(), state[0], elements[0])
        return Step([product], state if exclusive else [product])

    _, products = scan(ctx, "cumprod", [one], [rows], step, reverse=bool(reverse))
    return transpose(ctx, products, undone(order))
