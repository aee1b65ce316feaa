"""Which views are stored: none, unless a reader was measured to be faster on rows side by side.

A contraction or a reduction reads the elements of its operand several times, or in long lines. What
moves them may be part of how it reads, or a kernel before it that writes them where they are read.
"""

from __future__ import annotations

from collections.abc import Callable

from dlc.graph.estimate import CALL, FAR_BYTES, bytes_of, node_cycles
from dlc.graph.forks import decide
from dlc.graph.graph import Graph, Node
from dlc.graph.op import Fuse
from dlc.graph.pass_ import PassContext

COPIED, STORED = "copied", "stored"  # the ways
_READERS = (Fuse.ANCHOR, Fuse.REDUCTION)


def stored_views(graph: Graph, context: PassContext) -> Callable[[Node], bool]:
    """Whether a view that could be copied into its readers is stored instead."""

    def is_stored(view: Node) -> bool:
        users = graph.users.get(view.output, ())
        readers = [user for user in users if user.op.fuse in _READERS]
        if not readers:
            return False

        def cycles() -> tuple[float, float]:
            time = sum(node_cycles([reader], context.target) for reader in readers)
            return time, time + 2 * bytes_of(view.outputs) / FAR_BYTES + CALL

        way = decide(
            context, graph, [view, *readers], kind="view", version=1, options=(COPIED, STORED),
            default=COPIED, cycles=cycles,
        )  # fmt: skip
        return way == STORED

    return is_stored
