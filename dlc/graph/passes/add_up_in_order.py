"""Running sums: one element after the other.

Before:
    def main(n: size, x: f32[2, n, 3]):
        y: f32[2, n, 3] = cumsum(x, axis=1, reverse=True)
        return y

After:
    def main(n: size, x: f32[2, n, 3]):
        y: f32[2, n, 3] = running_sum(x, reverse=True)
        return y

Position: after halve_floats, which gives elements another type. On a GPU each sum is computed by
itself, by blocks.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from dlc.graph.edit import GraphEditor
from dlc.graph.graph import Graph, Node
from dlc.graph.ops.attributes import normal_axis
from dlc.graph.ops.reduce import CumSum
from dlc.graph.ops.running import RunningSum
from dlc.graph.ops.shape import Reshape
from dlc.graph.pass_ import PassContext, graph_pass
from dlc.te.expr import ONE
from dlc.te.simplify import canonical, surely_less
from dlc.te.types import TensorType

FEW = 3
"""Elements of which each sum is found by itself as fast, or faster where lines are long."""


@graph_pass(after=("halve_floats",), bodies=True)
def add_up_in_order(graph: Graph, context: PassContext) -> Graph:
    """Replace each CumSum along an axis of more than a few elements."""
    if context.target.gpu is not None:
        return graph
    editor = GraphEditor(graph)
    for node in graph.nodes:
        if isinstance(node.op, CumSum):
            axis = normal_axis(node.op, node.op.axis, node.inputs[0].type.rank)
            if not surely_less(node.inputs[0].type.shape[axis], FEW + 1):
                _add_up(editor, node, node.op, axis)
    return editor.finish()


def _add_up(editor: GraphEditor, node: Node, op: CumSum, axis: int) -> None:
    (x,) = node.inputs
    type_: TensorType = x.type
    outer, inner = (
        canonical(prod(sizes, start=ONE)) for sizes in (type_.shape[:axis], type_.shape[axis + 1 :])
    )
    shape = (outer, type_.shape[axis], inner)
    running = RunningSum(exclusive=op.exclusive, reverse=op.reverse)
    if shape == type_.shape:
        editor.update(replace(node, op=running))
        return
    rows = editor.call(Reshape(shape=shape), x, at=node)
    sums = editor.call(running, rows, at=node)
    editor.update(replace(node, op=Reshape(shape=type_.shape), inputs=(sums,)))
