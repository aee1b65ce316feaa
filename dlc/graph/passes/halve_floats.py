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
range of f16 is computed in float32, and so are the bodies of loops. Inputs and outputs of the model
keep their types.

Source: Micikevicius et al., "Mixed Precision Training" (2018), section 3; the lists follow
PyTorch's documentation, "Automatic Mixed Precision: CUDA Ops that can autocast".
"""

from __future__ import annotations

from dataclasses import replace

from dlc.core.errors import DlcError
from dlc.core.types import DType
from dlc.graph.arrays import round_to
from dlc.graph.graph import Graph, Node, Value, call
from dlc.graph.half import Half
from dlc.graph.op import Array, Fuse
from dlc.graph.ops.elementwise import Cast
from dlc.graph.pass_ import PassContext, graph_pass
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
    return graph if context.half is None else _Halver(graph, context.half).run()


class _Halver:
    """One walk over the nodes in order. A value may be there in both types."""

    def __init__(self, graph: Graph, half: Half) -> None:
        self.graph, self.half = graph, half
        self.nodes: list[Node] = []
        self.constants: dict[Value, Array] = dict(graph.constants)
        self.narrow: dict[str, Value] = {}  # by the name of the float32 value
        self.missing: set[str] = set()  # values that are there in 16 bits only
        self.taken = {v.name for n in graph.nodes for v in n.outputs}
        self.taken |= {v.name for v in (*graph.inputs, *graph.constants)}

    def run(self) -> Graph:
        """The new graph."""
        for node in self.graph.nodes:
            if not (self.bears(node) and self.halved(node)):
                for value in node.inputs:
                    self.widen(value)
                self.nodes.append(node)
        for value in self.graph.outputs:
            self.widen(value)
        return replace(self.graph, nodes=tuple(self.nodes), constants=self.constants)

    def bears(self, node: Node) -> bool:
        """Whether a node may be computed in 16 bits."""
        names = {node.op.name, node.source, *(v.name for v in node.outputs)}
        floats = [v for v in node.inputs if v.type.dtype is DType.F32]
        if names & self.half.keep or len(node.outputs) != 1 or not floats:
            return False
        if node.output.type.dtype is not DType.F32:
            return False
        if node.op.fuse is Fuse.ANCHOR:
            return True
        follows = node.op.fuse is Fuse.INJECTIVE or node.op.name in FOLLOWS
        return follows and any(v.name in self.missing for v in floats)

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
