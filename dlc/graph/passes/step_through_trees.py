"""On a GPU, walk through trees a step at a time: each row and tree of a step has a thread.

Before:
    def main(n: size, x: f32[n, 9]):
        roots: i32[2] = const()
        depths: i32[2] = const(2, 2)
        links: i32[9, 4] = const()
        splits: f32[9] = const()
        y: i32[2, n] = tree_walk(x, roots, depths, links, splits, tests=('le',), steps=2)
        return y

After:
    def main(n: size, x: f32[n, 9]):
        roots: i32[2] = const()
        links: i32[9, 4] = const()
        splits: f32[9] = const()
        y_1: i32[2, 1] = reshape(roots, shape=(2, 1))
        y_2: i32[2, n] = tree_step(x, y_1, links, splits, tests=('le',))
        y: i32[2, n] = tree_step(x, y_2, links, splits, tests=('le',))
        return y

Position: before constants are folded. A CPU walks with several rows side by side.
"""

from __future__ import annotations

from dlc.graph.edit import GraphEditor
from dlc.graph.graph import Graph
from dlc.graph.ops.shape import Reshape
from dlc.graph.ops.trees import TreeStep, TreeWalk
from dlc.graph.pass_ import PassContext, graph_pass
from dlc.te.expr import ONE


@graph_pass(bodies=True)
def step_through_trees(graph: Graph, context: PassContext) -> Graph:
    """Replace each TreeWalk."""
    if context.target.gpu is None:
        return graph
    editor = GraphEditor(graph)
    for node in graph.nodes:
        if isinstance(node.op, TreeWalk) and node.op.steps:
            x, at, _, links, thresholds = node.inputs
            step = TreeStep(tests=node.op.tests, nan_holds=node.op.nan_holds)
            at = editor.call(Reshape(shape=(*at.type.shape, ONE)), at, at=node)
            for _ in range(node.op.steps):
                at = editor.call(step, x, at, links, thresholds, at=node)
            editor.replace(node.outputs[0], at)
    return editor.finish()
