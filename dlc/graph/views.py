"""Which values can be read through a view, and which nodes can write into a part of a tensor."""

from __future__ import annotations

from dlc.graph.graph import Graph, Node, Value
from dlc.graph.op import Fuse
from dlc.graph.ops.shape import Empty, Expand, Insert, Pad, Reshape, Slice, Transpose
from dlc.te.expr import Const

VIEWS = (Slice, Transpose, Expand, Reshape)


def reads_views(node: Node) -> bool:
    """Whether a node computes the address of each element it reads, so that a slice costs nothing.

    A reshape renames whole memory, and an opaque node is handed whole buffers.
    """
    return node.op.fuse is not Fuse.OPAQUE and not isinstance(node.op, Reshape)


def writes_boxes(node: Node | None) -> bool:
    """Whether a kernel makes the node's result element by element, and so can place it anywhere."""
    if node is None or len(node.outputs) != 1 or node.op.fuse is Fuse.OPAQUE:
        return False
    return not isinstance(node.op, (*VIEWS, Empty, Insert))


def root_of(graph: Graph, value: Value) -> Value:
    """The value whose memory a view reads, or the value itself."""
    node = graph.producers.get(value)
    while node is not None and isinstance(node.op, VIEWS):
        value = node.inputs[0]
        node = graph.producers.get(value)
    return value


def zero_pad_amounts(node: Node) -> tuple[tuple[int, int], ...] | None:
    """For each axis how many zeros a pad puts before and after; None for any other node."""
    op = node.op
    if not isinstance(op, Pad) or op.mode != "constant" or op.value != 0:
        return None
    pairs = list(zip(op.before, op.after, strict=True))
    amounts = [
        (int(b.value), int(a.value))
        for b, a in pairs
        if isinstance(b, Const) and isinstance(a, Const) and b.value >= 0 and a.value >= 0
    ]
    return tuple(amounts) if len(amounts) == len(pairs) else None
