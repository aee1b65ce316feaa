"""Conditions of branches that sizes alone decide: the host computes them, no kernel.

On a GPU it need not wait then, and a run can be a graph. Only there does one group hold a size and
the condition it becomes (`join_launches`); on a CPU, small kernels compute them.
"""

from __future__ import annotations

from collections.abc import Mapping

from dlc.core.types import INDEX, DType
from dlc.graph.graph import Graph, Node, Value, call
from dlc.graph.ops.control import If
from dlc.graph.ops.elementwise import Cast
from dlc.graph.ops.from_sizes import SizeTensor
from dlc.graph.ops.fused import FusedGroup
from dlc.te.expr import BinOp, Const, Expr, Select, binary, const, select


def conditions_of_sizes(graph: Graph) -> Mapping[Value, Expr]:
    """The values that only branches read, as their conditions, as expressions over sizes."""
    asked = {n.inputs[0] for n in graph.nodes if isinstance(n.op, If)}
    read = {v for n in graph.nodes for v in n.inputs[isinstance(n.op, If) :]}
    found: dict[Value, Expr] = {}
    for node in graph.nodes:
        if node.outputs[0] in asked - read - set(graph.outputs):
            cond = _condition(node)
            if cond is not None:
                found[node.outputs[0]] = cond
    return found


def ask_sizes(cond: Expr, number: str, name: str) -> tuple[Node, Node]:
    """The two nodes that make a bool of a condition on sizes: a whole number, and what it says."""
    value = select(cond, const(1, INDEX), const(0, INDEX))
    asked = call(SizeTensor(values=(value,), shape=()), name=number)
    return asked, call(Cast(to=DType.BOOL), asked.output, name=name)


def _condition(node: Node) -> Expr | None:
    """A group that makes a bool of one size."""
    match node.op:
        case FusedGroup(
            body=Graph(nodes=(Node(op=SizeTensor(values=(size,))), Node(op=Cast(to=to))))
        ):
            if to is not DType.BOOL:
                return None
        case _:
            return None
    match size:
        case Select(cond, Const(value=1), Const(value=0)):
            return cond
        case _:
            return binary(BinOp.NE, size, 0)
