"""Pad bytes instead of the numbers that are made of them.

Before:
    def main(q: u8[2, 5]):
        z: i32[()] = const(3)
        a: i32[2, 5] = cast(q, to=i32)
        b: i32[2, 5] = sub(a, z)
        p: i32[2, 7] = pad(b, before=(0, 1), after=(0, 1))
        y: i32[2, 7] = neg(p)
        return y

After:
    def main(q: u8[2, 5]):
        z: i32[()] = const(3)
        p_1: u8[2, 7] = pad(q, before=(0, 1), after=(0, 1), value=3.0)
        p_2: i32[2, 7] = cast(p_1, to=i32)
        p: i32[2, 7] = sub(p_2, z)
        y: i32[2, 7] = neg(p)
        return y

Position: after share_halos, so that one pad serves all readers; before fuse_groups, which keeps
the bytes in memory and has each reader make the numbers.
"""

from __future__ import annotations

from dataclasses import replace

from dlc.graph.edit import GraphEditor
from dlc.graph.graph import Graph, Node, Value
from dlc.graph.integers import type_range
from dlc.graph.op import Op
from dlc.graph.ops.binary import Add, Sub
from dlc.graph.ops.elementwise import Cast
from dlc.graph.ops.shape import Pad
from dlc.graph.pass_ import PassContext, graph_pass
from dlc.te.expr import ONE

Step = tuple[Op, tuple[Value, ...]]
"""An operator on the way from bytes to numbers, and its other operand: one number, or none."""


@graph_pass(after=("share_halos",), bodies=True)
def pad_bytes(graph: Graph, context: PassContext) -> Graph:
    """Move pads before what widens bytes."""
    editor = GraphEditor(graph)
    for node in graph.nodes:
        if isinstance(node.op, Pad) and node.op.mode == "constant":
            _move(editor, node, node.op)
    return editor.finish()


def _move(editor: GraphEditor, node: Node, pad: Pad) -> None:
    """Pad what the operand is made of, if that is bytes and one of them stands for the fill."""
    value, fill = node.inputs[0], pad.value
    steps: list[Step] = []
    while editor.sole_user(value) is not None:
        maker = editor.producer(value)
        step = None if maker is None else _step(editor, maker)
        if maker is None or step is None:
            break
        steps.append(step)
        if isinstance(maker.op, Add | Sub) and (array := editor.array(maker.inputs[1])) is not None:
            fill += float(array.item()) * (1 if isinstance(maker.op, Sub) else -1)
        value = maker.inputs[0]
    limits = type_range(value.type.dtype)
    if not steps or value.type.dtype.size_bytes > 1 or limits is None:
        return
    if editor.sole_user(value) is None or not limits[0] <= fill <= limits[1] or fill % 1:
        return
    unpadded = node.inputs
    padded = editor.call(replace(pad, value=fill), value, at=node)
    for op, numbers in reversed(steps[1:]):
        padded = editor.call(op, padded, *numbers, at=node)
    editor.update(replace(node, op=steps[0][0], inputs=(padded, *steps[0][1])))
    editor.discard(unpadded)


def _step(editor: GraphEditor, maker: Node) -> Step | None:
    """A node that keeps its operand's shape and adds, subtracts or converts no more than that."""
    if isinstance(maker.op, Cast) and maker.inputs[0].type.dtype.is_int:
        return maker.op, ()
    if isinstance(maker.op, Add | Sub) and not maker.inputs[0].type.dtype.is_float:
        number = maker.inputs[1]
        inside = number.type.rank <= maker.inputs[0].type.rank
        if editor.array(number) is not None and number.type.elems == ONE and inside:
            return maker.op, (number,)
    return None
