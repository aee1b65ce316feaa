"""Remove changes of shape that cancel, change nothing, or could be one.

Before:
    def main(x: f32[2, 3, 5]):
        a: f32[6, 5] = reshape(x, shape=(6, 5))
        b: f32[30] = reshape(a, shape=(30,))
        y: f32[30] = relu(b)
        return y

After:
    def main(x: f32[2, 3, 5]):
        b: f32[30] = reshape(x, shape=(30,))
        y: f32[30] = relu(b)
        return y

Position: after fold_constants, before apply_rules, whose patterns shape changes would interrupt.
Again after choose_layouts, which leaves reshapes of single pixels behind.
"""

from __future__ import annotations

from dlc.graph.graph import Graph
from dlc.graph.pass_ import PassContext, graph_pass
from dlc.graph.rewrite import rewrite_graph
from dlc.graph.rules import SHAPE_RULES


@graph_pass(bodies=True)
def simplify_shapes(graph: Graph, context: PassContext) -> Graph:
    """Apply the rules about shapes until none fits."""
    return rewrite_graph(graph, SHAPE_RULES, context)
