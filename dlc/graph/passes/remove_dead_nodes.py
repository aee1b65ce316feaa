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
from dlc.graph.ops.bind_sizes import BindSizes
from dlc.graph.pass_ import PassContext, graph_pass
from dlc.graph.sizes import bound_sizes, names_in, sizes_read


@graph_pass(bodies=True)
def remove_dead_nodes(graph: Graph, context: PassContext) -> Graph:
    """Keep what the results need."""
    needed = {v.name for v in graph.outputs}
    sizes = set(names_in(n for v in graph.outputs for n in v.type.shape))
    binds = any(isinstance(n.op, BindSizes) for n in graph.nodes)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if _is_needed(node, needed, sizes):
            kept.append(node)
            needed.update(v.name for v in node.inputs)
            sizes |= sizes_read(node) if binds else set()
    constants = {v: a for v, a in graph.constants.items() if v.name in needed}
    if len(kept) == len(graph.nodes) and len(constants) == len(graph.constants):
        return graph
    return replace(graph, nodes=tuple(reversed(kept)), constants=constants)


def _is_needed(node: Node, values: set[str], sizes: set[str]) -> bool:
    if isinstance(node.op, BindSizes) and node.op.required:
        return True
    if not sizes.isdisjoint(bound_sizes((node,))):
        return True
    return any(v.name in values for v in node.outputs)
