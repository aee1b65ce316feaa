"""Take the constants of the graphs inside scans, loops and branches out, as operands of the scans.

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
fuse_groups. What several bodies hold, as two branches of the same weights, is lifted once.
"""

from __future__ import annotations

from dataclasses import replace

from dlc.graph.edit import GraphEditor
from dlc.graph.graph import Graph, Value
from dlc.graph.op import Array
from dlc.graph.ops.bodies import HOLDERS, Captures, recapture
from dlc.graph.pass_ import PassContext, graph_pass
from dlc.graph.passes.merge_equal_nodes import digest
from dlc.graph.sizes import bodies
from dlc.te.types import TensorType


@graph_pass(after=("sink_constants",), bodies=True)
def lift_constants(graph: Graph, context: PassContext) -> Graph:
    """Move constants of bodies to this graph; inner bodies have been treated before."""
    editor = GraphEditor(graph)
    lifted: dict[tuple[TensorType, bytes], Value] = {}

    def lift(value: Value, array: Array) -> Value:
        key = (value.type, digest(array))
        if key not in lifted:
            lifted[key] = editor.constant(array, value.type.dtype, value.name)
        return lifted[key]

    def change(part: Captures, given: tuple[Value, ...]) -> tuple[Graph, tuple[Value, ...]]:
        inner = part.body.constants
        outer = tuple(lift(v, a) for v, a in inner.items())
        body = replace(part.body, inputs=(*part.body.inputs, *inner), constants={})
        return body, (*given, *outer)

    for node in graph.nodes:
        if any(body.constants for body in bodies(node.op)) and isinstance(node.op, HOLDERS):
            editor.update(recapture(node, change))
    return editor.finish()
