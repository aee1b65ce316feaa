"""Rough times of graph nodes: by these ways of a decision are ordered before any is measured."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from dlc.core.target import Target
from dlc.graph.graph import Node, Value
from dlc.graph.op import Fuse
from dlc.graph.ops.conv import Conv
from dlc.te.affine import with_sizes
from dlc.te.expr import Const, Expr
from dlc.te.types import const_or

OPEN = 64  # what a variable of a size is taken for
FMA_SHARE = 0.8  # of the peak, that sums of products reach
FAR_BYTES = 8.0  # bytes in a cycle from beyond the second cache, and to it
CALL = 2000.0  # cycles that one more kernel costs, with the meeting of threads behind it


def size_of(size: Expr) -> int:
    """A size, of which each variable is taken for so many: at least 1, if it is not known."""
    if isinstance(size, Const):
        return int(size.value)
    return max(1, const_or(with_sizes(size, OPEN), OPEN))


def elements(value: Value) -> int:
    """How many elements a tensor has."""
    return prod(map(size_of, value.type.shape))


def bytes_of(values: Iterable[Value]) -> int:
    """How many bytes tensors have together."""
    return sum(elements(v) * v.type.dtype.size_bytes for v in values)


def node_cycles(nodes: Iterable[Node], target: Target) -> float:
    """The time of some nodes as one kernel, on one core: its arithmetic and its memory."""
    members = list(nodes)
    made = {v for n in members for v in n.outputs}
    read = {v for n in members for v in n.inputs if v not in made}
    operations = sum(_operations(node) for node in members)
    memory = bytes_of([*read, *members[-1].outputs]) / FAR_BYTES
    return operations / (2 * target.lanes(4) * FMA_SHARE) + memory + CALL


def _operations(node: Node) -> float:
    """Multiply-adds of a contraction, elements read or written by all else."""
    written = sum(map(elements, node.outputs))
    if node.op.fuse is not Fuse.ANCHOR or len(node.inputs) < 2:
        return max([written, *map(elements, node.inputs)])
    return written * _summands(node)


def _summands(node: Node) -> float:
    """How many products each result of a contraction is the sum of, about.

    Weights of a convolution stand last: columns first, or blocks of columns, and all summands of
    each.
    """
    x, out = node.inputs[0].type, node.outputs[0].type
    if x.shape[:-1] == out.shape[:-1]:
        return size_of(x.shape[-1])  # a product of matrices
    w = max(reversed(node.inputs[1:]), key=lambda v: v.type.rank)
    columns = size_of(w.type.shape[0])
    if not isinstance(node.op, Conv):
        columns *= size_of(out.shape[-1])  # of one block
    return max(1.0, elements(w) / max(1, columns))
