"""Compute matrix products of one operand as one: the rows are read once (Q, K and V of attention).

Before:
    def main(x: f32[6, 5]):
        wq: f32[5, 8] = const()
        wk: f32[5, 8] = const()
        q: f32[6, 8] = matmul(x, wq)
        k: f32[6, 8] = matmul(x, wk)
        y: f32[6, 8] = add(q, k)
        return y

After:
    def main(x: f32[6, 5]):
        q_merged: f32[5, 16] = const()
        q_all: f32[6, 16] = matmul(x, q_merged)
        q: f32[6, 8] = slice(q_all, starts=(0, 0), sizes=(6, 8))
        k: f32[6, 8] = slice(q_all, starts=(0, 8), sizes=(6, 8))
        y: f32[6, 8] = add(q, k)
        return y

Position: after the rules, which fold scales into each matrix; before pack_matmul_weights.

A constant added to each product is added to the whole; the slices stand behind it, so that it
still joins the product's kernel. Products that a loop reads stay: it needs each in one piece.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dlc.graph.broadcast import along_axis
from dlc.graph.edit import GraphEditor
from dlc.graph.graph import Graph, Node, Value
from dlc.graph.op import Array
from dlc.graph.ops.attributes import as_sizes
from dlc.graph.ops.binary import Add
from dlc.graph.ops.matmul import MatMul
from dlc.graph.ops.shape import Reshape, Slice
from dlc.graph.pass_ import PassContext, graph_pass
from dlc.graph.views import reads_views


@graph_pass(after=("apply_rules",), bodies=True)
def merge_parallel_matmuls(graph: Graph, context: PassContext) -> Graph:
    """Merge products that share their left operand and have constant right ones."""
    editor = GraphEditor(graph)
    lanes = context.target.lanes(4)
    for products in _families(graph.nodes, editor, lanes):
        _merge(editor, products)
    return editor.finish()


def _families(nodes: Iterable[Node], editor: GraphEditor, lanes: int) -> list[list[Node]]:
    """Products of one operand whose columns fill whole panels, so that slices cut none."""
    found: dict[tuple[object, ...], list[Node]] = {}
    for node in nodes:
        if not isinstance(node.op, MatMul):
            continue
        x, w = node.inputs
        array = editor.array(w)
        if array is None or array.ndim != 2 or x.type.rank < 2 or not w.type.dtype.is_float:
            continue
        if array.shape[1] % lanes == 0 and _is_read_in_parts(editor, node.output):
            found.setdefault((x.name, w.type.dtype), []).append(node)
    return [family for family in found.values() if len(family) > 1]


def _is_read_in_parts(editor: GraphEditor, value: Value) -> bool:
    """Whether nobody needs a value in memory of its own, who would have to copy its slice."""
    pending = [value]
    while pending:
        value = pending.pop()
        if editor.is_output(value):
            return False
        for user in editor.users(value):
            if isinstance(user.op, Reshape) or _adds_bias(editor, user):
                pending.append(user.output)
            elif not reads_views(user):
                return False
    return True


def _adds_bias(editor: GraphEditor, node: Node) -> bool:
    return isinstance(node.op, Add) and any(editor.array(v) is not None for v in node.inputs)


def _merge(editor: GraphEditor, products: list[Node]) -> None:
    first = products[0]
    name = first.output.name
    x = first.inputs[0]
    arrays = [_array(editor, n) for n in products]
    dtype = first.inputs[1].type.dtype
    merged = editor.constant(np.concatenate(arrays, axis=1), dtype, f"{name}_merged")
    whole = editor.call(MatMul(), x, merged, at=first, hint=f"{name}_all")
    results = [n.output for n in products]
    biases = [_bias(editor, n, a.shape[1]) for n, a in zip(products, arrays, strict=True)]
    known = [b for b in biases if b is not None]
    if len(known) == len(products):
        vector = np.concatenate([b for _, b in known])
        bias = editor.constant(vector, dtype, f"{name}_bias")
        whole = editor.call(Add(), whole, bias, at=first, hint=f"{name}_biased")
        results = [n.output for n, _ in known]
    start = 0
    for result, array in zip(results, arrays, strict=True):
        rank, columns = whole.type.rank, array.shape[1]
        op = Slice(
            starts=as_sizes((*(0,) * (rank - 1), start)),
            sizes=as_sizes((*whole.type.shape[:-1], columns)),
        )
        part = editor.call(op, whole, at=first, hint=f"{result.name}_part")
        editor.replace(result, part, keep_name=True)
        start += columns


def _array(editor: GraphEditor, node: Node) -> Array:
    array = editor.array(node.inputs[1])
    assert array is not None, "a family has constant right operands"
    return array


def _bias(editor: GraphEditor, node: Node, columns: int) -> tuple[Node, Array] | None:
    """The one reader of a product, if it adds a constant to each column, and that constant."""
    user = editor.sole_user(node.output)
    if user is None or not isinstance(user.op, Add) or user.output.type != node.output.type:
        return None
    if editor.is_output(user.output):
        return None
    other = user.inputs[1] if user.inputs[0] == node.output else user.inputs[0]
    array = editor.array(other)
    if array is None:
        return None
    rank = node.output.type.rank
    vector = along_axis(array, rank, rank - 1, columns)
    return None if vector is None else (user, vector)
