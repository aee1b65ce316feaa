"""What is known about the signs of values: enough to pad a pool with zeros."""

from __future__ import annotations

from dlc.graph.graph import Graph, Node, Value
from dlc.graph.ops.activation import Clip, HardSigmoid, Relu, Sigmoid, Softplus
from dlc.graph.ops.binary import Add, Maximum, Minimum, Mul
from dlc.graph.ops.elementwise import Abs, Exp, Sqrt
from dlc.graph.ops.pool import AveragePool, MaxPool
from dlc.graph.ops.shape import Concat, Expand, Pad, Reshape, Slice, Transpose

_IF_OPERANDS_ARE = (
    *(Add, Mul, Minimum, MaxPool, AveragePool),
    *(Concat, Expand, Reshape, Slice, Transpose),
)
_MAX_DEPTH = 12


def is_nonnegative(graph: Graph, value: Value, depth: int = 0) -> bool:
    """Whether every element of a value is surely at least 0, or NaN."""
    if value in graph.constants:
        array = graph.constants[value]
        return array.dtype.kind in "fiu" and bool((array >= 0).all())
    node = graph.producers.get(value)
    if node is None or depth > _MAX_DEPTH:
        return False
    match node.op:
        case Clip(min=low):
            return low is not None and low >= 0
        case HardSigmoid() | Relu() | Sigmoid() | Softplus() | Abs() | Exp() | Sqrt():
            return True
        case Pad(mode="constant", value=fill) if fill < 0:
            return False
        case Maximum():
            return any(_operands(graph, node, depth))
        case Pad():
            return all(_operands(graph, node, depth))
        case op if isinstance(op, _IF_OPERANDS_ARE):
            return all(_operands(graph, node, depth))
        case _:
            return False


def _operands(graph: Graph, node: Node, depth: int) -> list[bool]:
    return [is_nonnegative(graph, v, depth + 1) for v in node.inputs]
