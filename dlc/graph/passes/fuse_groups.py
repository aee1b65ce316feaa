"""Put nodes that become one kernel into one group.

Before:
    def main(x: f32[4, 6], w: f32[6, 5], b: f32[5]):
        m: f32[4, 5] = matmul(x, w)
        s: f32[4, 5] = add(m, b)
        y: f32[4, 5] = relu(s)
        return y

After:
    def main(x: f32[4, 6], w: f32[6, 5], b: f32[5]):
        def matmul_add_relu(x: f32[4, 6], w: f32[6, 5], b: f32[5]):
            m: f32[4, 5] = matmul(x, w)
            s: f32[4, 5] = add(m, b)
            y: f32[4, 5] = relu(s)
            return y
        y: f32[4, 5] = matmul_add_relu(x, w, b)
        return y

Position: last, after layouts are chosen and dead nodes are gone; lowering needs every node that
computes to be in a group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from dlc.graph.attention import join_attention
from dlc.graph.fusion import groups, is_free
from dlc.graph.fusion_depth import depth_of
from dlc.graph.fusion_views import stored_views
from dlc.graph.gpu_groups import join_launches
from dlc.graph.graph import Graph, Node
from dlc.graph.joined import copied_nodes, group_body, kept_values
from dlc.graph.ops.bodies import HOLDERS, map_bodies
from dlc.graph.ops.fused import FusedGroup
from dlc.graph.pass_ import PassContext, graph_pass
from dlc.graph.sizes import bound_sizes
from dlc.graph.strips import join_strips

NAME_LENGTH = 48
Partition = Callable[[Graph], Sequence[tuple[Node, ...]]]


@graph_pass(after=("choose_layouts",))
def fuse_groups(graph: Graph, context: PassContext) -> Graph:
    """Replace the nodes of each kernel by one `FusedGroup` node."""
    return form_groups(graph, lambda body: kernels(body, context))


def kernels(graph: Graph, context: PassContext) -> list[tuple[Node, ...]]:
    """The nodes of each kernel."""
    is_cpu = context.target.gpu is None
    found = groups(
        graph, depth_of(graph, context), stored_views(graph, context), widens_halves=is_cpu
    )
    planes = context.planes if context.has_matrix_engine else 0
    pairs = context.multiplies_pairs
    found = join_attention(graph, found, context.target, planes, pairs=pairs)
    if is_cpu:
        return join_strips(graph, found, context)
    return join_launches(graph, found, context.target)


def form_groups(graph: Graph, partition: Partition) -> Graph:
    """The graph with one `FusedGroup` node for the nodes of each kernel, also in bodies."""
    nodes: dict[int, Node] = {}
    position = {n.outputs: i for i, n in enumerate(graph.nodes)}  # a member may stand for a node
    taken: Counter[str] = Counter()
    bound = [(i, name) for i, n in enumerate(graph.nodes) for name in bound_sizes((n,))]
    inside: set[int] = set()  # ids of nodes that rename memory inside of a group
    found = list(partition(graph))
    copied = copied_nodes(found)
    for members in found:
        last = members[-1]
        inside |= {id(n) for n in members if is_free(n)}
        place = position[last.outputs]
        if len(members) == 1 and isinstance(last.op, HOLDERS):
            op = map_bodies(last.op, lambda body: form_groups(body, partition))
            nodes[place] = replace(last, op=op)
            continue
        known = tuple(name for binder, name in bound if binder < place)
        nodes[place] = _group(graph, known, members, taken, copied)
    nodes |= {position[n.outputs]: n for n in graph.nodes if is_free(n) and id(n) not in inside}
    return replace(graph, nodes=tuple(nodes[i] for i in sorted(nodes)))


def _group(
    graph: Graph,
    known: tuple[str, ...],
    members: tuple[Node, ...],
    taken: Counter[str],
    copied: frozenset[int],
) -> Node:
    name = "_".join(dict.fromkeys(n.op.name for n in members))[:NAME_LENGTH]
    taken[name] += 1
    unique = name if taken[name] == 1 else f"{name}_{taken[name]}"
    kept = kept_values(graph, members, copied)
    body = group_body((*graph.sizes, *known), members, unique, kept)
    sources = ", ".join(dict.fromkeys(n.source for n in members if n.source))
    return Node(FusedGroup(body=body), body.inputs, body.outputs, sources)
