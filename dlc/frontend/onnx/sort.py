"""Converters of operators that order elements, and of Scatter's first name."""

from __future__ import annotations

from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.elementwise import axes_of
from dlc.frontend.onnx.indices import checked
from dlc.frontend.onnx.registry import converter
from dlc.graph.graph import Value
from dlc.graph.ops.scatter import ScatterElements
from dlc.graph.ops.sort import TopK
from dlc.te.expr import Expr, index
from dlc.te.simplify import surely_less


@converter("TopK", since=1)
def convert_top_k_attribute(ctx: Context, x: Value, *, k: int, axis: int = -1) -> tuple[Value, ...]:
    """Until opset 9 the count was an attribute."""
    return _top_k(ctx, x, index(k), axis, largest=True)


@converter("TopK", since=10)
def convert_top_k_operand(ctx: Context, x: Value, k: Value, *, axis: int = -1) -> tuple[Value, ...]:
    """The k largest elements along an axis, in order, and where they were."""
    return _top_k(ctx, x, ctx.one_size(k, "k"), axis, largest=True)


@converter("TopK", since=11)
def convert_top_k(
    ctx: Context, x: Value, k: Value, *, axis: int = -1, largest: int = 1, sorted: int = 1
) -> tuple[Value, ...]:
    """The k largest or smallest elements; where any order will do they are ordered all the same."""
    if sorted not in (0, 1):
        ctx.refuse(f"sorted={sorted} is neither 0 nor 1")
    return _top_k(ctx, x, ctx.one_size(k, "k"), axis, largest=largest != 0)


def _top_k(ctx: Context, x: Value, k: Expr, axis: int, *, largest: bool) -> tuple[Value, ...]:
    (axis,) = axes_of(ctx, (axis,), x.type.rank)
    if surely_less(k, 0):
        ctx.refuse(f"there are no {k} elements")
    return ctx.call_all(TopK(k=k, axis=axis, largest=largest), x, count=2)


@converter("Scatter", since=9)
def convert_scatter(
    ctx: Context, x: Value, indices: Value, updates: Value, *, axis: int = 0
) -> Value:
    """ScatterElements by its first name."""
    (axis,) = axes_of(ctx, (axis,), x.type.rank)
    inside = checked(ctx, indices, (x.type.shape[axis],))
    return ctx.call(ScatterElements(axis=axis), x, inside, updates)
