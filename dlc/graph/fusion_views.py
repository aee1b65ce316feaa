"""Which views are stored: lines that a pool would gather, and what was measured to be faster.

A contraction or a reduction reads the elements of its operand several times, or in long lines. What
moves them may be part of how it reads, or a kernel before it that writes them where they are read.
A pool reads whole vectors along the lines of an image, each of them several times: where a
transpose put these elements far from each other, 64 channels of 112 x 112 pixels take six times as
long as in both kernels (AVX2).
"""

from __future__ import annotations

from collections.abc import Callable

from dlc.graph.estimate import CALL, FAR_BYTES, bytes_of, node_cycles
from dlc.graph.forks import decide
from dlc.graph.graph import Graph, Node
from dlc.graph.op import Fuse
from dlc.graph.ops.pool import Pool
from dlc.graph.ops.shape import Transpose
from dlc.graph.pass_ import PassContext

COPIED, STORED = "copied", "stored"  # the ways
_READERS = (Fuse.ANCHOR, Fuse.REDUCTION)


def _gathers(view: Node, reader: Node, context: PassContext) -> bool:
    """Whether lanes side by side would read elements that are not."""
    on_cpu = context.target.gpu is None
    moves = isinstance(view.op, Transpose) and view.op.perm[-1] != len(view.op.perm) - 1
    return on_cpu and moves and isinstance(reader.op, Pool)


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
            default=STORED if any(_gathers(view, r, context) for r in readers) else COPIED,
            cycles=cycles,
        )  # fmt: skip
        return way == STORED

    return is_stored
