"""Compute equal things once (common subexpressions), and keep equal constants once.

Before:
    def main(x: f32[2]):
        a: f32[2] = relu(x)
        b: f32[2] = relu(x)
        y: f32[2] = add(a, b)
        return y

After:
    def main(x: f32[2]):
        a: f32[2] = relu(x)
        y: f32[2] = add(a, a)
        return y

Position: after the rules, which make nodes equal that were spelled differently. Again after
choose_layouts, which packs the same value once for each reader.

A node without operands may be a random generator: only those that hold nothing but sizes merge.
Loops and branches never do: their bodies hold constants, which do not count when operators are
compared.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np

from dlc.graph.graph import Graph, Node, Value
from dlc.graph.op import Array
from dlc.graph.ops.bodies import HOLDERS
from dlc.graph.ops.from_sizes import Range, SizeTensor
from dlc.graph.pass_ import PassContext, graph_pass

SMALL_BYTES = 1 << 16
"""Only constants up to this size are compared by content; large weights are hardly ever equal."""


@graph_pass(bodies=True)
def merge_equal_nodes(graph: Graph, context: PassContext) -> Graph:
    """Let the readers of an equal node read the first one."""
    same = _equal_constants(graph)
    results = {v.name for v in graph.outputs}
    seen: dict[tuple[object, ...], Node] = {}
    kept: list[Node] = []
    changed = bool(same)
    for node in graph.nodes:
        inputs = tuple(same.get(v.name, v) for v in node.inputs)
        if inputs != node.inputs:
            node = replace(node, inputs=inputs)
        first = node
        if _is_mergeable(node):
            key = (node.op, tuple(v.name for v in inputs), tuple(v.type for v in node.outputs))
            first = seen.setdefault(key, node)
        if first is node or any(v.name in results for v in node.outputs):
            kept.append(node)
            continue
        changed = True
        same.update({v.name: w for v, w in zip(node.outputs, first.outputs, strict=True)})
    if not changed:
        return graph
    read = {v.name for n in kept for v in n.inputs} | results
    constants = {v: a for v, a in graph.constants.items() if v.name in read}
    return replace(graph, nodes=tuple(kept), constants=constants)


def _is_mergeable(node: Node) -> bool:
    if isinstance(node.op, HOLDERS):
        return False
    return bool(node.inputs) or isinstance(node.op, SizeTensor | Range)


def _equal_constants(graph: Graph) -> dict[str, Value]:
    """Constants that repeat an earlier one, by name."""
    results = {v.name for v in graph.outputs}
    seen: dict[tuple[object, ...], Value] = {}
    same: dict[str, Value] = {}
    for value, array in graph.constants.items():
        if array.nbytes > SMALL_BYTES:
            continue
        first = seen.setdefault((value.type, digest(array)), value)
        if first is not value and value.name not in results:
            same[value.name] = first
    return same


def digest(array: Array) -> bytes:
    """A number that tells apart the bytes of different arrays."""
    return hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=16).digest()
