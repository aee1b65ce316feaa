"""Remove nodes and constants that no result depends on.

Before:
    def main(x: f32[2]):
        y: f32[2] = relu(x)
        z: f32[2] = neg(x)
        return y

After:
    def main(x: f32[2]):
        y: f32[2] = relu(x)
        return y

Position: after passes that leave unused nodes behind; last, so that nothing unused is compiled.
"""

from __future__ import annotations

from dataclasses import replace

from dlc.graph.graph import Graph, Node
from dlc.graph.pass_ import PassContext, graph_pass


@graph_pass(bodies=True)
def remove_dead_nodes(graph: Graph, context: PassContext) -> Graph:
    """Keep what the results need."""
    needed = {v.name for v in graph.outputs}
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if any(v.name in needed for v in node.outputs):
            kept.append(node)
            needed.update(v.name for v in node.inputs)
    constants = {v: a for v, a in graph.constants.items() if v.name in needed}
    if len(kept) == len(graph.nodes) and len(constants) == len(graph.constants):
        return graph
    return replace(graph, nodes=tuple(reversed(kept)), constants=constants)
