"""What a group computes for so few results that transforms, or planes of columns, do not pay.

Transformed weights are up to four times as many, and planes of columns are made in the kernel.
Where a run tells the sizes, both kernels are in the artefact, and the host calls one of them.
"""

from __future__ import annotations

from dataclasses import replace

from dlc.graph.graph import Graph
from dlc.graph.ops.planes_matmul import MatMulSplit
from dlc.graph.ops.winograd import ConvWinograd
from dlc.te.expr import Expr


def direct_form(body: Graph) -> tuple[Expr, Graph] | None:
    """The body with direct sums, and the condition on sizes under which it takes less time.

    None where no anchor of the body has another form, or all sizes take the same.
    """
    found = [(n, n.op) for n in body.nodes if isinstance(n.op, ConvWinograd | MatMulSplit)]
    if len(found) != 1:
        return None
    ((node, op),) = found
    if not op.may_be_slower:
        return None
    x, *_, w = node.inputs
    direct = replace(node, op=op.direct, inputs=(x, w))
    nodes = tuple(direct if n is node else n for n in body.nodes)
    read = {v for n in nodes for v in n.inputs}
    name = body.name.replace(op.name, op.direct.name)
    inputs = tuple(v for v in body.inputs if v in read)
    return op.is_slower(node.output.type), replace(body, name=name, inputs=inputs, nodes=nodes)
