"""Hand constants to the graphs inside loops and branches, so that passes see them as constants.

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

from dlc.graph.graph import Graph, Node, Value
from dlc.graph.ops.bodies import HOLDERS, Captures, recapture
from dlc.graph.pass_ import PassContext, graph_pass


@graph_pass()
def sink_constants(graph: Graph, context: PassContext) -> Graph:
    """Move constant operands of loops and branches into their bodies, and on inward."""
    if not any(isinstance(n.op, HOLDERS) for n in graph.nodes):
        return graph
    nodes = tuple(_sink(graph, n, context) for n in graph.nodes)
    read = {v.name for n in nodes for v in n.inputs} | {v.name for v in graph.outputs}
    constants = {v: a for v, a in graph.constants.items() if v.name in read}
    return replace(graph, nodes=nodes, constants=constants)


def _sink(graph: Graph, node: Node, context: PassContext) -> Node:
    if not isinstance(node.op, HOLDERS):
        return node

    def change(part: Captures, given: tuple[Value, ...]) -> tuple[Graph, tuple[Value, ...]]:
        body = part.body
        pairs = list(zip(given, body.inputs[part.first :], strict=True))
        sunk = {inner: graph.constants[v] for v, inner in pairs if v in graph.constants}
        kept = tuple(v for v in body.inputs if v not in sunk)
        body = replace(body, inputs=kept, constants={**body.constants, **sunk})
        return sink_constants(body, context), tuple(v for v, inner in pairs if inner not in sunk)

    return recapture(node, change)
