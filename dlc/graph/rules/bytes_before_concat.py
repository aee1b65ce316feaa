"""cast(f(concat(x, y))) -> concat(cast(f(x)), cast(f(y))), where the cast makes bytes and f works
on each element: what quantized models put beside each other has a scale of its own in each part.
Floats that nobody else reads are then never in memory, and a part that was bytes before is a
function of these.

Before:
    a: f32[n, 5] = concat(x, y, axis=1)
    b: f32[n, 5] = quotient(a, s, t)
    c: f32[n, 5] = round(b)
    z: u8[n, 5] = cast(c, to=u8)

After:
    b: f32[n, 3] = quotient(x, s, t)
    c: f32[n, 3] = round(b)
    d: u8[n, 3] = cast(c, to=u8)
    e: f32[n, 2] = quotient(y, s, t)
    f: f32[n, 2] = round(e)
    g: u8[n, 2] = cast(f, to=u8)
    z: u8[n, 5] = concat(d, g, axis=1)
"""

from __future__ import annotations

from dlc.graph.edit import GraphEditor
from dlc.graph.graph import Node, Value
from dlc.graph.op import Fuse
from dlc.graph.ops.elementwise import Cast
from dlc.graph.ops.precision import BYTES
from dlc.graph.ops.shape import Concat
from dlc.graph.rewrite import Match, Pattern, Refusal, rule

_DEPTH = 8
"""Operators that are followed: a quantization has five."""
_MOST = 16
"""Parts, each of which gets operators of its own."""


@rule(Pattern(Cast))
def bytes_before_concat(match: Match) -> Value | Refusal:
    """Make bytes of each part."""
    editor, root = match.editor, match.root
    if match.context.target.gpu is not None:
        return Refusal("what it gains on a GPU has not been measured")
    if root.output.type.dtype not in BYTES:
        return Refusal("it makes no bytes")
    chain = [root]
    while True:
        value = _operand(editor, chain[-1])
        maker = None if value is None else editor.producer(value)
        if value is None or maker is None or len(chain) > _DEPTH:
            return Refusal("no parts are put beside each other")
        if editor.sole_user(value) is None:
            return Refusal("somebody else reads what becomes bytes")
        if isinstance(maker.op, Concat):
            break
        chain.append(maker)
    if not value.type.dtype.is_float or len(maker.inputs) > _MOST:
        return Refusal("the parts are no floats, or too many")
    parts: list[Value] = []
    for part in maker.inputs:
        found = part
        for node in reversed(chain):
            varies = _operand(editor, node)
            found = match.call(node.op, *(found if v == varies else v for v in node.inputs))
        parts.append(found)
    return match.call(maker.op, *parts)


def _operand(editor: GraphEditor, node: Node) -> Value | None:
    """What an operator computes each element of; None where others are no single constants."""
    varying = [v for v in node.inputs if not _is_single(editor, v)]
    if node.op.fuse is not Fuse.ELEMENTWISE or len(varying) != 1:
        return None
    (value,) = varying
    return value if value.type.shape == node.output.type.shape else None


def _is_single(editor: GraphEditor, value: Value) -> bool:
    array = editor.array(value)
    return array is not None and array.size == 1
