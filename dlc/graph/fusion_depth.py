"""How far a kernel is fused with what follows it: as far as it can be, unless less was faster.

What joins needs registers and reads operands of its own between the sums. As a kernel of its own it
writes and reads one more tensor instead.
"""

from __future__ import annotations

from collections.abc import Sequence

from dlc.graph.estimate import CALL, FAR_BYTES, bytes_of, node_cycles
from dlc.graph.forks import decide
from dlc.graph.fusion import Decide
from dlc.graph.graph import Graph, Node
from dlc.graph.op import Fuse
from dlc.graph.pass_ import PassContext

_ROOTS = (Fuse.ANCHOR, Fuse.REDUCTION)


def depth_of(graph: Graph, context: PassContext) -> Decide:
    """How deep groups of a graph are fused."""

    def depth(root: Node, regions: Sequence[Sequence[Node]]) -> int:
        most = len(regions)
        ends = [n for n in range(most) if _is_costly(graph, regions[n])]
        if root.op.fuse not in _ROOTS or not ends:
            return most
        members = [root, *(node for region in regions for node in region)]
        way = decide(
            context, graph, members, kind="fusion", version=1,
            options=tuple(map(str, (*ends, most))), default=str(most),
            cycles=lambda: tuple(_cycles(root, regions, n, context) for n in (*ends, most)),
        )  # fmt: skip
        return int(way)

    return depth


def _is_costly(graph: Graph, region: Sequence[Node]) -> bool:
    """Whether a region is more than cheap arithmetic on what is in registers: whether it moves
    elements, or reads another tensor that a run brings.
    """
    if any(node.op.fuse is not Fuse.ELEMENTWISE for node in region):
        return True
    made = {v for node in region for v in node.outputs}
    read = {v for node in region for v in node.inputs if v not in made and v not in graph.constants}
    return len(read) > 1


def _cycles(
    root: Node, regions: Sequence[Sequence[Node]], depth: int, context: PassContext
) -> float:
    """The time of the group, and of what does not join it as one more kernel."""
    members = [root, *(node for region in regions for node in region)]
    whole = node_cycles(members, context.target)
    if depth == len(regions):
        return whole
    last = regions[depth - 1][-1] if depth else root
    return whole + 2 * bytes_of(last.outputs) / FAR_BYTES + CALL
