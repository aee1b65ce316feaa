"""Compute in 16-bit floats what bears it, where the user asked for that (`half=`, here f16).

Before:
    def main(x: f32[6, 5]):
        w: f32[5, 8] = const()
        a: f32[6, 8] = matmul(x, w)
        b: f32[6, 8] = relu(a)
        y: f32[6, 8] = softmax(b, axis=1)
        return y

After:
    def main(x: f32[6, 5]):
        w: f32[5, 8] = const()
        w_half: f16[5, 8] = const()
        x_half: f16[6, 5] = cast(x, to=f16)
        a_half: f16[6, 8] = matmul(x_half, w_half)
        b_half: f16[6, 8] = relu(a_half)
        b: f32[6, 8] = cast(b_half, to=f32)
        y: f32[6, 8] = softmax(b, axis=1)
        return y

Position: after the rules, which find norms, softmax and activations as one operator each; before
weights are packed.

Products and convolutions take 16-bit factors; their sums are float32. What only moves or bends
numbers stays narrow where its operands are. What sums without products, divides, or may leave the
range of f16 is computed in float32. Inputs and outputs of the model keep their types, and so do
those of the bodies of loops and branches. In a loop, what is carried from step to step stays
float32 up to the next product: a step may add to it, as products are added up, many times.

Source: Micikevicius et al., "Mixed Precision Training" (2018), section 3; the lists follow
PyTorch's documentation, "Automatic Mixed Precision: CUDA Ops that can autocast".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from dlc.core.errors import DlcError
from dlc.core.types import DType
from dlc.graph.arrays import round_to
from dlc.graph.graph import Graph, Node, Value, call
from dlc.graph.half import Half
from dlc.graph.op import Array, Fuse
from dlc.graph.ops.bodies import HOLDERS, Captures, carried_inputs, recapture
from dlc.graph.ops.elementwise import Cast
from dlc.graph.pass_ import PassContext, graph_pass
from dlc.graph.sizes import known_sizes
from dlc.te.types import TensorType

# What only moves numbers or keeps them in their range, besides INJECTIVE operators.
FOLLOWS = frozenset({
    "abs", "add", "clip", "elu", "gelu", "hard_sigmoid", "hard_swish", "identity", "leaky_relu",
    "max_pool", "maximum", "minimum", "mish", "mul", "nan_to_zero", "neg", "prelu", "relu",
    "resize", "sigmoid", "sign", "silu", "sub", "tanh", "where",
})  # fmt: skip


@graph_pass(after=("apply_rules",))
def halve_floats(graph: Graph, context: PassContext) -> Graph:
    """Replace float32 operators by those of 16 bits, with casts in between."""
    if context.half is None:
        return graph
    return _Halver(graph, context.half, graph.operators, frozenset()).run()


class _Halver:
    """One walk over the nodes in order. A value may be there in both types."""

    def __init__(
        self, graph: Graph, half: Half, operators: Mapping[str, str], carried: Iterable[str]
    ) -> None:
        self.graph, self.half, self.operators = graph, half, operators
        self.carried = set(carried)  # values in which steps of a loop may add up
        self.nodes: list[Node] = []
        self.constants: dict[Value, Array] = dict(graph.constants)
        self.narrow: dict[str, Value] = {}  # by the name of the float32 value
        self.missing: set[str] = set()  # values that are there in 16 bits only
        self.taken = {v.name for n in graph.nodes for v in n.outputs}
        self.taken |= {v.name for v in (*graph.inputs, *graph.constants)} | {*known_sizes(graph)}

    def run(self) -> Graph:
        """The new graph."""
        for node in self.graph.nodes:
            if not (self.bears(node) and self.halved(node)):
                self.left_wide(node)
        for value in self.graph.outputs:
            self.widen(value)
        return replace(self.graph, nodes=tuple(self.nodes), constants=self.constants)

    def left_wide(self, node: Node) -> None:
        """Add a node as it is, but for the bodies that it holds."""
        for value in node.inputs:
            self.widen(value)
        if node.op.fuse is not Fuse.ANCHOR and self.reads_carried(node):
            self.carried.update(v.name for v in node.outputs)
        self.nodes.append(self.body_halved(node))

    def body_halved(self, node: Node) -> Node:
        """A loop or branch with its bodies in 16 bits; another node as it is."""
        op = node.op
        if not isinstance(op, HOLDERS) or self.is_kept(node):
            return node

        def change(part: Captures, given: tuple[Value, ...]) -> tuple[Graph, tuple[Value, ...]]:
            carried = {v.name for v in carried_inputs(op)}
            outside = node.inputs[part.operand - part.first :]
            for outer, inner in zip(outside, part.body.inputs, strict=False):
                if outer.name in self.carried:
                    carried.add(inner.name)
            return _Halver(part.body, self.half, self.operators, carried).run(), given

        return recapture(node, change)

    def is_kept(self, node: Node) -> bool:
        """Whether the user wants a node in float32."""
        names = {node.op.name, node.source, self.operators.get(node.source, "")}
        return bool((names | {v.name for v in node.outputs}) & self.half.keep)

    def bears(self, node: Node) -> bool:
        """Whether a node may be computed in 16 bits."""
        floats = [v for v in node.inputs if v.type.dtype is DType.F32]
        if self.is_kept(node) or len(node.outputs) != 1 or not floats:
            return False
        if node.output.type.dtype is not DType.F32:
            return False
        if node.op.fuse is Fuse.ANCHOR:
            return True
        follows = node.op.fuse is Fuse.INJECTIVE or node.op.name in FOLLOWS
        narrow = any(v.name in self.missing for v in floats)
        return follows and narrow and not self.reads_carried(node)

    def reads_carried(self, node: Node) -> bool:
        """Whether steps of a loop may add up in one of the floats that a node reads."""
        return any(v.name in self.carried and v.type.dtype is DType.F32 for v in node.inputs)

    def halved(self, node: Node) -> bool:
        """Add the node in 16 bits; False where it has no such form."""
        types = [self.narrow_type(v.type) for v in node.inputs]
        try:
            made = node.op.infer(*types)
        except DlcError:
            return False
        if made != self.narrow_type(node.output.type):
            return False
        inputs = [self.narrowed(v) for v in node.inputs]
        new = call(node.op, *inputs, name=self.fresh(node.output.name), source=node.source)
        self.nodes.append(new)
        self.narrow[node.output.name] = new.output
        self.missing.add(node.output.name)
        return True

    def narrow_type(self, type_: TensorType) -> TensorType:
        return replace(type_, dtype=self.half.dtype) if type_.dtype is DType.F32 else type_

    def narrowed(self, value: Value) -> Value:
        """A value in 16 bits."""
        if value.type.dtype is not DType.F32:
            return value
        if value.name not in self.narrow:
            name = self.fresh(value.name)
            if value in self.graph.constants:
                made = Value(name, self.narrow_type(value.type))
                self.constants[made] = round_to(self.graph.constants[value], self.half.dtype)
                self.narrow[value.name] = made
            else:
                self.nodes.append(call(Cast(to=self.half.dtype), value, name=name))
                self.narrow[value.name] = self.nodes[-1].output
        return self.narrow[value.name]

    def widen(self, value: Value) -> None:
        """Make a value in float32, under its own name, where it is not there yet."""
        if value.name in self.missing:
            self.missing.remove(value.name)
            self.nodes.append(call(Cast(to=DType.F32), self.narrow[value.name], name=value.name))

    def fresh(self, name: str) -> str:
        found = f"{name}_half"
        while found in self.taken:
            found += "_"
        self.taken.add(found)
        return found
