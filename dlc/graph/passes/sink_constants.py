"""Hand constants to the graphs inside scans, so that passes see them there as constants.

Before:
    def main(t: size, h: f32[1, 3], x: f32[t, 1, 3]):
        w: f32[3, 3] = const()
        def step(h: f32[1, 3], x: f32[1, 3], k: f32[3, 3]):
            p: f32[1, 3] = matmul(h, k)
            n: f32[1, 3] = add(p, x)
            return n
        y: f32[1, 3] = scan(h, x, w, body=step, carries=1)
        return y

After:
    def main(t: size, h: f32[1, 3], x: f32[t, 1, 3]):
        def step(h: f32[1, 3], x: f32[1, 3]):
            k: f32[3, 3] = const()
            p: f32[1, 3] = matmul(h, k)
            n: f32[1, 3] = add(p, x)
            return n
        y: f32[1, 3] = scan(h, x, body=step, carries=1)
        return y

Position: before all passes that look at constants, and again where folding has made more of them;
lift_constants undoes it at the end, because a kernel gets its constants from the model and not from
a loop.
"""

from __future__ import annotations

from dataclasses import replace

from dlc.graph.graph import Graph, Node
from dlc.graph.ops.scan import Scan
from dlc.graph.pass_ import PassContext, graph_pass


@graph_pass()
def sink_constants(graph: Graph, context: PassContext) -> Graph:
    """Move constant operands of scans into their bodies, and on into scans in there."""
    if not any(isinstance(n.op, Scan) for n in graph.nodes):
        return graph
    nodes = tuple(_sink(graph, n, context) for n in graph.nodes)
    read = {v.name for n in nodes for v in n.inputs} | {v.name for v in graph.outputs}
    constants = {v: a for v, a in graph.constants.items() if v.name in read}
    return replace(graph, nodes=nodes, constants=constants)


def _sink(graph: Graph, node: Node, context: PassContext) -> Node:
    op = node.op
    if not isinstance(op, Scan):
        return node
    first = op.carries + op.sequences([v.type.rank for v in node.inputs])
    pairs = list(zip(node.inputs, op.body.inputs, strict=True))
    sunk = [(v, inner) for v, inner in pairs[first:] if v in graph.constants]
    kept = [pair for pair in pairs if pair not in sunk]
    body = replace(
        op.body,
        inputs=tuple(inner for _, inner in kept),
        constants={**op.body.constants, **{inner: graph.constants[v] for v, inner in sunk}},
    )
    body = sink_constants(body, context)
    return replace(node, op=replace(op, body=body), inputs=tuple(v for v, _ in kept))
