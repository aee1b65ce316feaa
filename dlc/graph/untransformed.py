"""What a group computes where a run meets so few pixels that transforms do not pay.

Transformed weights are up to four times as many. Where a run tells the sizes, both kernels are in
the artefact, and the host calls one of them.
"""

from __future__ import annotations

from dataclasses import replace

from dlc.graph.graph import Graph
from dlc.graph.ops.winograd import ConvWinograd
from dlc.te.expr import Expr


def untransformed(body: Graph) -> tuple[Expr, Graph] | None:
    """The body with direct sums, and the condition on sizes under which it takes less time.

    None where its transforms are for all sizes, or there are none.
    """
    found = [n for n in body.nodes if isinstance(n.op, ConvWinograd) and n.op.cycles]
    if len(found) != 1:
        return None
    (node,) = found
    op, (x, _, w) = node.op, node.inputs
    assert isinstance(op, ConvWinograd)
    direct = replace(node, op=op.direct, inputs=(x, w))
    nodes = tuple(direct if n is node else n for n in body.nodes)
    read = {v for n in nodes for v in n.inputs}
    name = body.name.replace(op.name, op.direct.name)
    inputs = tuple(v for v in body.inputs if v in read)
    return op.is_slower(node.output.type), replace(body, name=name, inputs=inputs, nodes=nodes)
