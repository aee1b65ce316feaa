"""Make every node that computes a kernel of its own.

Before:
    def main(x: f32[4, 6], w: f32[6, 5], b: f32[5]):
        m: f32[4, 5] = matmul(x, w)
        s: f32[4, 5] = add(m, b)
        return s

After:
    def main(x: f32[4, 6], w: f32[6, 5], b: f32[5]):
        def matmul(x: f32[4, 6], w: f32[6, 5]):
            m: f32[4, 5] = matmul(x, w)
            return m
        m: f32[4, 5] = fused(x, w, body=matmul)
        def add(m: f32[4, 5], b: f32[5]):
            s: f32[4, 5] = add(m, b)
            return s
        s: f32[4, 5] = fused(m, b, body=add)
        return s

Position: in place of fuse_groups, where a model is compiled without optimisation.
"""

from __future__ import annotations

from dlc.graph.fusion import is_free
from dlc.graph.graph import Graph
from dlc.graph.pass_ import PassContext, graph_pass
from dlc.graph.passes.fuse_groups import form_groups


@graph_pass(after=("lift_constants",))
def group_nodes(graph: Graph, context: PassContext) -> Graph:
    """Replace each node by a `FusedGroup` node that holds it alone."""
    return form_groups(graph, lambda g: [(n,) for n in g.nodes if not is_free(n)])
