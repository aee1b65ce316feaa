"""A group of nodes that becomes one kernel."""

from __future__ import annotations

from dataclasses import replace

from dlc.core.errors import InternalError
from dlc.graph.graph import Graph, Value
from dlc.graph.op import Array, Fuse, Op, op
from dlc.te import tensor as te
from dlc.te.types import TensorType


@op("fused", fuse=Fuse.OPAQUE)
class FusedGroup(Op):
    """The body's results for the operands in place of the body's inputs.

    Size variables of the body are those of the graph around it, by name.
    """

    body: Graph

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        if operands != tuple(v.type for v in self.body.inputs):
            wanted = ", ".join(str(v.type) for v in self.body.inputs)
            raise self.reject(f"'{self.body.name}' takes {wanted}", *operands)
        return tuple(v.type for v in self.body.outputs)

    def compute(self, *operands: te.Tensor) -> tuple[te.Tensor, ...]:
        return compose(self.body, operands)

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        from dlc.graph.evaluate import evaluate  # it evaluates nodes that hold graphs

        names = (v.name for v in self.body.inputs)
        found = evaluate(self.body, dict(zip(names, operands, strict=True)))
        return tuple(found[v.name] for v in self.body.outputs)


def compose(body: Graph, operands: tuple[te.Tensor, ...]) -> tuple[te.Tensor, ...]:
    """The results of a body as tensor expressions of its operands.

    Tensors load from each other by name, so results get names that differ within the body, and
    that are the same for bodies that differ only in the names of their values.
    """
    if body.constants:
        raise InternalError(detail=f"'{body.name}' holds constants; they must be its inputs")
    tensors: dict[Value, te.Tensor] = dict(zip(body.inputs, operands, strict=True))
    for number, node in enumerate(body.nodes):
        made = node.op.compute(*(tensors[v] for v in node.inputs))
        results = made if isinstance(made, tuple) else (made,)
        for position, (value, tensor) in enumerate(zip(node.outputs, results, strict=True)):
            suffix = f"{number}_{position}" if position else f"{number}"
            tensors[value] = replace(tensor, name=f"{node.op.name}_{suffix}")
    return tuple(tensors[v] for v in body.outputs)
