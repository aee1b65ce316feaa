"""Find the first elements of rows by the bits of their keys, not by comparing them in pairs.

The first few of many rows are put in order by insertion, `first_keys` instead of what is chosen
and then sorted.

Before:
    def main(x: f32[2, 1000]):
        y: f32[2, 3]
        i: i64[2, 3]
        y, i = top_k(x, k=3)
        return y, i

After:
    def main(x: f32[2, 1000]):
        y_1: u32[2, 1000] = bit_cast(x, of=f32, to=u32)
        y_2: u32[2, 1000] = order_keys(y_1, of=f32, largest=True)
        y_3: i64[2, 3] = smallest(y_2, k=3)
        y_4: u32[2, 3] = gather_elements(y_2, y_3, axis=1)
        y_5: u32[2, 3]
        y_6: i64[2, 3]
        y_5, y_6 = top_k(y_4, k=3, axis=1, largest=False)
        i: i64[2, 3] = gather_elements(y_3, y_6, axis=1)
        y: f32[2, 3] = gather_elements(x, i, axis=1)
        return y, i

Position: after halve_floats, which gives elements another type. On a GPU pairs are compared: it has
threads for them, and a sort by digits is steps in order.
"""

from __future__ import annotations

from math import prod

from dlc.core.target import Target
from dlc.graph.edit import GraphEditor
from dlc.graph.graph import Graph, Node, Value, call
from dlc.graph.ops.attributes import normal_axis
from dlc.graph.ops.bits import BitCast
from dlc.graph.ops.first_keys import FirstKeys
from dlc.graph.ops.gather import GatherElements
from dlc.graph.ops.order import OrderKeys, SortOrder, has_order, key_type
from dlc.graph.ops.shape import Reshape, Transpose, undone
from dlc.graph.ops.smallest import Smallest
from dlc.graph.ops.sort import FEW, TopK
from dlc.graph.pass_ import PassContext, graph_pass
from dlc.te.expr import ONE, Const, Expr
from dlc.te.simplify import canonical
from dlc.te.types import TensorType, const_or_none

_NARROWEST = 4
"""Bytes of the keys and places that are compared: narrower ones are widened."""
_MOST_INSERTED = 16
"""First keys of a row, which lie in registers or near by."""
_AS_CHEAP = 2
"""First keys that each key passes in the time that a bound on them takes for it."""
_BOUND_COST = 5000
"""Keys that pass one of the first ones in the time in which a row waits for its bound."""
_SHORT = 64
"""Keys of a row that are put in order fast enough where rows may be fewer than lanes."""


@graph_pass(after=("halve_floats",), bodies=True)
def sort_by_digits(graph: Graph, context: PassContext) -> Graph:
    """Replace each TopK of long or open rows, or of few of many."""
    if context.target.gpu is not None:
        return graph
    editor = GraphEditor(graph)
    for old in graph.nodes:
        node = editor.current(old)  # which may read what another sort has become
        if node is None or not isinstance(node.op, TopK):
            continue
        if has_order(node.inputs[0].type.dtype):
            axis = normal_axis(node.op, node.op.axis, node.inputs[0].type.rank)
            lanes = _inserted(node.inputs[0].type, axis, node.op.k, context.target)
            if lanes or not _is_few(node.inputs[0].type.shape[axis]):
                _sort(editor, node, node.op, axis, lanes)
    return editor.finish()


def _is_few(size: Expr) -> bool:
    return isinstance(size, Const) and int(size.value) <= FEW


def _inserted(x: TensorType, axis: int, k: Expr, target: Target) -> int:
    """How many rows go together whose first elements are put in order by insertion; 0: none.

    Each key passes all of the first k. Other rows are searched by a bound, for which a row waits.
    """
    rows = canonical(prod(x.shape[:axis] + x.shape[axis + 1 :], start=ONE))
    size, lanes = x.shape[axis], target.lanes(max(_NARROWEST, x.dtype.size_bytes))
    if not isinstance(k, Const) or not 1 <= int(k.value) <= _MOST_INSERTED:
        return 0
    length = const_or_none(size)
    passed = int(k.value) - _AS_CHEAP
    if passed > 0 and (length is None or passed * length > _BOUND_COST):
        return 0
    if isinstance(rows, Const):
        return lanes if int(rows.value) >= lanes else 0
    return 0 if length is None or length > _SHORT else lanes


def _sort(editor: GraphEditor, node: Node, top: TopK, axis: int, lanes: int) -> None:
    """Sort rows: the axis is made the last one, and the others are made one."""
    (x,) = node.inputs
    order = (*(d for d in range(x.type.rank) if d != axis), axis)
    moved = x if axis == x.type.rank - 1 else editor.call(Transpose(perm=order), x, at=node)
    *outer, size = moved.type.shape
    rows = _shaped(editor, node, moved, (canonical(prod(outer, start=ONE)), size))
    places = _places(editor, node, top, rows, lanes)
    values = editor.call(GatherElements(axis=1), rows, places, at=node)
    for result, made in zip(node.outputs, (values, places), strict=True):
        made = _shaped(editor, node, made, (*outer, top.k))
        if moved is not x:
            made = editor.call(Transpose(perm=undone(order)), made, at=node)
        editor.replace(result, made)


def _places(editor: GraphEditor, node: Node, top: TopK, rows: Value, lanes: int) -> Value:
    """Where the first k elements of each row are."""
    of = rows.type.dtype
    bits = rows
    if of is not key_type(of):
        bits = editor.call(BitCast(of=of, to=key_type(of)), rows, at=node)
    keys = editor.call(OrderKeys(of=of, largest=top.largest), bits, at=node)
    if lanes:
        return editor.call(FirstKeys(k=top.k, lanes=lanes), keys, at=node)
    if top.k == rows.type.shape[1]:
        return editor.call(SortOrder(k=top.k), keys, at=node)
    chosen = editor.call(Smallest(k=top.k), keys, at=node)
    theirs = editor.call(GatherElements(axis=1), keys, chosen, at=node)
    return editor.call(GatherElements(axis=1), chosen, _order(editor, node, theirs), at=node)


def _order(editor: GraphEditor, node: Node, keys: Value) -> Value:
    size = keys.type.shape[1]
    if not _is_few(size):
        return editor.call(SortOrder(k=size), keys, at=node)
    names = tuple(editor.fresh(node.outputs[0].name) for _ in range(2))
    pairs = call(TopK(k=size, axis=1, largest=False), keys, name=names, source=node.source)
    return editor.add(pairs, at=node).outputs[1]


def _shaped(editor: GraphEditor, node: Node, value: Value, shape: tuple[Expr, ...]) -> Value:
    if value.type.shape == shape:
        return value
    return editor.call(Reshape(shape=shape), value, at=node)
