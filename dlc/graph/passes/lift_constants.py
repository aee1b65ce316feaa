"""Take the constants of the graphs inside scans out, as operands of the scans.

Before:
    def main(t: size, h: f32[1, 3], x: f32[t, 1, 3]):
        def step(h: f32[1, 3], x: f32[1, 3]):
            k: f32[3, 3] = const()
            p: f32[1, 3] = matmul(h, k)
            n: f32[1, 3] = add(p, x)
            return n
        y: f32[1, 3] = scan(h, x, body=step, carries=1)
        return y

After:
    def main(t: size, h: f32[1, 3], x: f32[t, 1, 3]):
        k: f32[3, 3] = const()
        def step(h: f32[1, 3], x: f32[1, 3], k: f32[3, 3]):
            p: f32[1, 3] = matmul(h, k)
            n: f32[1, 3] = add(p, x)
            return n
        y: f32[1, 3] = scan(h, x, k, body=step, carries=1)
        return y

Position: after all passes that look at constants, which sink_constants has handed to bodies; before
fuse_groups.
"""

from __future__ import annotations

from dataclasses import replace

from dlc.graph.edit import GraphEditor
from dlc.graph.graph import Graph
from dlc.graph.ops.scan import Scan
from dlc.graph.pass_ import PassContext, graph_pass


@graph_pass(after=("sink_constants",), bodies=True)
def lift_constants(graph: Graph, context: PassContext) -> Graph:
    """Move constants of bodies to this graph; inner bodies have been treated before."""
    editor = GraphEditor(graph)
    for node in graph.nodes:
        op = node.op
        if not isinstance(op, Scan) or not op.body.constants:
            continue
        inner = op.body.constants
        outer = tuple(editor.constant(a, v.type.dtype, v.name) for v, a in inner.items())
        body = replace(op.body, inputs=(*op.body.inputs, *inner), constants={})
        editor.update(replace(node, op=replace(op, body=body), inputs=(*node.inputs, *outer)))
    return editor.finish()
