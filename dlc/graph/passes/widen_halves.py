"""Compute on a CPU in float32 what a model computes in 16-bit floats.

Before:
    def main(x: f16[6, 5]):
        w: f16[5, 8] = const()
        a: f16[6, 8] = matmul(x, w)
        y: f16[6, 8] = relu(a)
        return y

After:
    def main(x: f16[6, 5]):
        w: f16[5, 8] = const()
        w_wide: f32[5, 8] = const()
        x_wide: f32[6, 5] = cast(x, to=f32)
        a_wide: f32[6, 8] = matmul(x_wide, w_wide)
        y_wide: f32[6, 8] = relu(a_wide)
        y: f16[6, 8] = cast(y_wide, to=f16)
        return y

Position: before the rules, so that these and all passes behind them see float32; after constants
are folded. Again after halve_floats, which makes 16-bit floats of float32.

An operator on 16-bit floats computes in float32 and rounds its result. Here nothing is rounded
between two of them: results have the digits of 16 bits, or more. What the model rounds by a cast
stays rounded, and so does what leaves the graph or the body of a loop or branch. What jumps (floor,
comparisons, indices) reads rounded numbers, as it would have. What only moves numbers moves those
that are there.

Source: XLA's flag `xla_allow_excess_precision`; onnxruntime's CPU provider does the same.
"""

from __future__ import annotations

from dataclasses import replace

from dlc.core.errors import DlcError
from dlc.core.types import DType
from dlc.graph.activations import JUMPS
from dlc.graph.arrays import round_to
from dlc.graph.edit import GraphEditor
from dlc.graph.graph import Graph, Node, Value, call
from dlc.graph.op import Array, Fuse
from dlc.graph.ops.bodies import HOLDERS, Captures, recapture
from dlc.graph.ops.elementwise import Cast
from dlc.graph.ops.precision import BYTES, HALF
from dlc.graph.ops.scatter import Scatter
from dlc.graph.pass_ import PassContext, graph_pass
from dlc.te.types import TensorType


@graph_pass(after=("fold_constants",))
def widen_halves(graph: Graph, context: PassContext) -> Graph:
    """Replace operators on 16-bit floats by those on float32, with casts around them."""
    return graph if context.target.gpu is not None else _Widener(graph).run()


class _Widener:
    """One walk over the nodes in order. A value may be there in both types."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.names = GraphEditor(graph)
        self.nodes: list[Node] = []
        self.constants: dict[Value, Array] = dict(graph.constants)
        self.wide: dict[Value, Value] = {}  # what holds the same numbers in float32
        self.missing: set[Value] = set()  # values that are there in float32 only

    def run(self) -> Graph:
        """The new graph; the very same one where nothing in it is widened."""
        for node in self.graph.nodes:
            if not (self._bears(node) and self._widened(node)):
                self._leave(node)
        for value in self.graph.outputs:
            self._narrow(value)
        if self.nodes == list(self.graph.nodes):
            return self.graph
        return replace(self.graph, nodes=tuple(self.nodes), constants=self.constants)

    def _bears(self, node: Node) -> bool:
        """Whether a node may be computed in float32: all that it makes, and it does not jump."""
        halves = [v for v in node.inputs if v.type.dtype in HALF]
        made = {v.type.dtype for v in node.outputs}
        if not made <= {*HALF, DType.F32} or isinstance(node.op, (*JUMPS, *HOLDERS)):
            return False
        if isinstance(node.op, Cast):
            is_exact = node.inputs[0].type.dtype in BYTES and made <= HALF
            return is_exact or (made == {DType.F32} and node.inputs[0] in self.wide)
        if not halves or made == {DType.F32}:
            return False
        moved = [v for v in halves if v not in self.constants]
        return not _moves(node) or (bool(moved) and self.missing.issuperset(moved))

    def _widened(self, node: Node) -> bool:
        """Add the node in float32; False where it has no such form."""
        wide = tuple(_wide_type(v.type) for v in node.outputs)
        op = Cast(to=DType.F32) if isinstance(node.op, Cast) else node.op
        try:
            made = op.infer(*(_wide_type(v.type) for v in node.inputs))
        except DlcError:
            return False
        if (made if isinstance(made, tuple) else (made,)) != wide:
            return False
        outputs = tuple(
            Value(self.names.fresh(f"{v.name}_wide"), t) if v.type.dtype in HALF else v
            for v, t in zip(node.outputs, wide, strict=True)
        )
        inputs = tuple(map(self._widen, node.inputs))
        self.nodes.append(replace(node, op=op, inputs=inputs, outputs=outputs))
        for value, new in zip(node.outputs, outputs, strict=True):
            if new is not value:
                self.wide[value] = new
                self.missing.add(value)
        return True

    def _leave(self, node: Node) -> None:
        """Add a node as it is, but for the bodies that it holds."""
        for value in node.inputs:
            self._narrow(value)
        if isinstance(node.op, HOLDERS):
            node = recapture(node, _in_body)
        elif isinstance(node.op, Cast) and _wide_type(node.inputs[0].type) == node.output.type:
            self.wide[node.inputs[0]] = node.output
        self.nodes.append(node)

    def _widen(self, value: Value) -> Value:
        """A value in float32."""
        if value.type.dtype not in HALF:
            return value
        if value not in self.wide:
            name = self.names.fresh(f"{value.name}_wide")
            if value in self.constants:
                made = Value(name, _wide_type(value.type))
                self.constants[made] = round_to(self.constants[value], DType.F32)
                self.wide[value] = made
            else:
                self.nodes.append(call(Cast(to=DType.F32), value, name=name))
                self.wide[value] = self.nodes[-1].output
        return self.wide[value]

    def _narrow(self, value: Value) -> None:
        """Make a value in 16 bits, under its own name, where it is not there yet."""
        if value in self.missing:
            self.missing.remove(value)
            self.nodes.append(call(Cast(to=value.type.dtype), self.wide[value], name=value.name))


def _moves(node: Node) -> bool:
    """Whether a node only moves numbers."""
    if isinstance(node.op, Scatter):
        return node.op.reduction == "none"
    return node.op.fuse is Fuse.INJECTIVE


def _in_body(part: Captures, given: tuple[Value, ...]) -> tuple[Graph, tuple[Value, ...]]:
    """A body in float32; what it reads and gives keeps its type."""
    return _Widener(part.body).run(), given


def _wide_type(type_: TensorType) -> TensorType:
    return replace(type_, dtype=DType.F32) if type_.dtype in HALF else type_
