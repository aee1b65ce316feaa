"""Keep activations in memory as bf16 where products round them to that anyway, or may.

Before:
    def main(x: f32[64, 64]):
        w: bf16[4, 2, 1, 16, 16, 2] = const()
        a: f32[64, 64] = matmul_planes(x, w, n=64)
        b: f32[64, 64] = relu(a)
        y: f32[64, 64] = matmul_planes(b, w, n=64)
        return y

After:
    def main(x: f32[64, 64]):
        w: bf16[4, 2, 1, 16, 16, 2] = const()
        a: f32[64, 64] = matmul_planes(x, w, n=64)
        b: f32[64, 64] = relu(a)
        b_narrow: bf16[64, 64] = narrow(b)
        b_wide: f32[64, 64] = widen(b_narrow)
        y: f32[64, 64] = matmul_planes(b_wide, w, n=64)
        return y

Position: after everything that looks for operators on float32; before fuse_groups, which joins a
narrow to the kernel that makes the value and a widen to each that reads it.

Only where a float32 is one plane, at precision "medium". An activation lies between two products:
what is not yet the result of one, and what no product reads any more, stays float32, unless
products alone read it. Kernels compute in float32; what only moves elements moves bf16.
"""

from __future__ import annotations

from dataclasses import replace

from dlc.core.types import DType
from dlc.graph.activations import Activations, is_move
from dlc.graph.edit import GraphEditor
from dlc.graph.graph import Graph, Node, Value, call
from dlc.graph.op import Op
from dlc.graph.ops.narrow import Narrow, Widen
from dlc.graph.ops.shape import Empty
from dlc.graph.pass_ import PassContext, graph_pass
from dlc.graph.passes.fuse_groups import kernels


@graph_pass(after=("use_matrix_engine", "use_winograd"), bodies=True)
def store_narrow(graph: Graph, context: PassContext) -> Graph:
    """Round what lies between kernels to bf16, once, where it is made."""
    if not context.rounds_to_bf16:
        return graph
    chosen = Activations(graph, kernels(graph, context), context.target).find()
    return _Writer(graph, chosen).run() if chosen else graph


class _Writer:
    """Writes the new graph; `narrow` holds what is kept as bf16, `wide` what readers make of it."""

    def __init__(self, graph: Graph, chosen: set[Value]) -> None:
        self.graph, self.chosen = graph, chosen
        self.names = GraphEditor(graph)
        self.nodes: list[Node] = []
        self.narrow: dict[Value, Value] = {}
        self.wide: dict[Value, Value] = {}

    def run(self) -> Graph:
        """The graph in which the chosen values are bf16."""
        for node in self.graph.nodes:
            if node.outputs[0] in self.chosen and is_move(node):
                self._move(node)
                continue
            inputs = tuple(self._read(v, node) for v in node.inputs)
            self.nodes.append(replace(node, inputs=inputs))
            if node.outputs[0] in self.chosen:
                self._keep(node.output, node)
        return replace(self.graph, nodes=tuple(self.nodes))

    def _move(self, node: Node) -> None:
        """Move elements as bf16; those of an input of the graph are rounded first."""
        for value in node.inputs:
            if value in self.chosen and value not in self.narrow:
                self._keep(value, node)
        op = replace(node.op, dtype=DType.BF16) if isinstance(node.op, Empty) else node.op
        inputs = tuple(self.narrow.get(v, v) for v in node.inputs)
        self.narrow[node.output] = self._call(op, *inputs, name=node.output.name, at=node)

    def _keep(self, value: Value, at: Node) -> None:
        name = self.names.fresh(f"{value.name}_narrow")
        self.narrow[value] = self._call(Narrow(), value, name=name, at=at)

    def _read(self, value: Value, at: Node) -> Value:
        """A value as it is computed with."""
        if value not in self.narrow:
            return value
        if value not in self.wide:
            name = self.names.fresh(f"{value.name}_wide")
            self.wide[value] = self._call(Widen(), self.narrow[value], name=name, at=at)
        return self.wide[value]

    def _call(self, op: Op, *inputs: Value, name: str, at: Node) -> Value:
        self.nodes.append(call(op, *inputs, name=name, source=at.source))
        return self.nodes[-1].output
