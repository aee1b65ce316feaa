"""f(transpose(x), transpose(y), c) -> transpose(f(x, y, c')), where f computes each element by
itself, pads or concatenates, and somebody behind it turns the result back: layers whose channels
come last, around convolutions whose channels come first. The transposes then meet, and are gone.

Before:
    a: f32[n, 8, 8, 3] = transpose(x, perm=(0, 2, 3, 1))
    b: f32[n, 8, 8, 3] = mul(a, c)
    y: f32[n, 3, 8, 8] = transpose(b, perm=(0, 3, 1, 2))

After:
    b: f32[n, 3, 8, 8] = mul(x, c_turned)
    a: f32[n, 8, 8, 3] = transpose(b, perm=(0, 2, 3, 1))
    y: f32[n, 3, 8, 8] = transpose(a, perm=(0, 3, 1, 2))
"""

from __future__ import annotations

from dataclasses import replace

from dlc.graph.edit import GraphEditor
from dlc.graph.graph import Node, Value
from dlc.graph.op import Op
from dlc.graph.ops.activation import Clip
from dlc.graph.ops.binary import Binary
from dlc.graph.ops.elementwise import Cast, Unary
from dlc.graph.ops.shape import Concat, Pad, Transpose, undone
from dlc.graph.rewrite import Match, Pattern, Refusal, rule
from dlc.graph.rules.expand_into_broadcast import subclasses

_DEPTH = 8
"""Operators that are followed: a norm, an activation, a sum and a pad are 7."""
_KINDS = (Cast, Clip, *subclasses(Unary), *subclasses(Binary), Concat, Pad)


@rule(Pattern(_KINDS))
def elements_before_transpose(match: Match) -> Value | Refusal:
    """Compute each element where it lies."""
    editor, root = match.editor, match.root
    makers = [editor.producer(v) for v in root.inputs]
    perm = next((m.op.perm for m in makers if m and isinstance(m.op, Transpose)), None)
    if perm is None:
        return Refusal("no operand is transposed")
    operands: list[Value] = []
    for value, maker in zip(root.inputs, makers, strict=True):
        array = editor.array(value)
        if _is_turned(maker, perm):
            assert maker is not None
            operands.append(maker.inputs[0])
        elif array is not None and array.ndim <= len(perm):
            whole = array.reshape((1,) * (len(perm) - array.ndim) + array.shape)
            turned = whole.transpose(undone(perm))
            operands.append(value if array.ndim == 0 else match.constant(turned, value))
        else:
            return Refusal("an operand is transposed otherwise, or not at all")
    if not _is_turned_back(editor, root.output, perm, _DEPTH):
        return Refusal("nobody turns the result back")
    return match.call(Transpose(perm=perm), match.call(_turned(root.op, perm), *operands))


def _turned(op: Op, perm: tuple[int, ...]) -> Op:
    """The operator on the axes that were called `perm` before."""
    match op:
        case Concat(axis=axis):
            return Concat(axis=perm[axis])
        case Pad(before=before, after=after):
            before, after = (tuple(side[d] for d in undone(perm)) for side in (before, after))
            return replace(op, before=before, after=after)
        case _:
            return op


def _is_turned(maker: Node | None, perm: tuple[int, ...]) -> bool:
    return maker is not None and maker.op == Transpose(perm=perm)


def _is_turned_back(editor: GraphEditor, value: Value, perm: tuple[int, ...], depth: int) -> bool:
    """Whether a transpose that undoes `perm` reads a value, or what this rule moves before it."""
    back = Transpose(perm=undone(perm))
    users = editor.users(value)
    if any(user.op == back for user in users):
        return True
    return depth > 0 and any(
        isinstance(user.op, _KINDS)
        and all(v == value or _turns(editor, v, perm, depth - 1) for v in user.inputs)
        and _is_turned_back(editor, user.output, perm, depth - 1)
        for user in users
    )


def _turns(editor: GraphEditor, value: Value, perm: tuple[int, ...], depth: int) -> bool:
    """Whether this rule makes a value one that is transposed, or it is a constant."""
    maker = editor.producer(value)
    if maker is None:
        return editor.array(value) is not None
    if _is_turned(maker, perm):
        return True
    moves = isinstance(maker.op, _KINDS) and depth > 0
    return moves and all(_turns(editor, v, perm, depth - 1) for v in maker.inputs)
