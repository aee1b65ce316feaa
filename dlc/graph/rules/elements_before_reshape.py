"""f(reshape(x), c) -> reshape(f(x, c')), where f computes each element by itself, and x is made by
a product with weights or by such an f of one: layers of rows, as exporters reshape them and back.

A reshape stands between kernels; in front of it, f is a part of the product's.

Before:
    p: f32[n * 64, 512] = matmul(x, w)
    q: f32[n, 64, 512] = reshape(p, shape=(n, 64, 512))
    y: f32[n, 64, 512] = add(q, c)

After:
    q: f32[n * 64, 512] = add(p, c_flat)
    y: f32[n, 64, 512] = reshape(q, shape=(n, 64, 512))
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from dlc.graph.edit import GraphEditor
from dlc.graph.graph import Node, Value
from dlc.graph.op import Fuse
from dlc.graph.ops.activation import Clip
from dlc.graph.ops.attributes import constants
from dlc.graph.ops.binary import Binary, PRelu, Where
from dlc.graph.ops.elementwise import Cast, Unary
from dlc.graph.ops.shape import Reshape
from dlc.graph.rewrite import Match, Pattern, Refusal, rule
from dlc.graph.rules.expand_into_broadcast import subclasses
from dlc.te.expr import ONE, Const, Expr
from dlc.te.simplify import surely_equal
from dlc.te.types import Shape, elements_of, is_const, same_shape

_DEPTH = 8  # operators that are followed: a bias, a norm of constants and the parts of a GELU
_KINDS = (Cast, Clip, PRelu, Where, *subclasses(Unary), *subclasses(Binary))

Group = tuple[range, range]
"""Axes before a reshape, and axes behind it, that have as many elements."""


@rule(Pattern(_KINDS))
def elements_before_reshape(match: Match) -> Value | Refusal:
    """Compute each element where the product is."""
    editor, result = match.editor, match.root.output.type.shape
    makers = [m for v in match.root.inputs if (m := editor.producer(v)) is not None]
    reshapes = [m for m in makers if isinstance(m.op, Reshape)]
    if not reshapes:
        return Refusal("no operand is reshaped")
    alone = [m for m in reshapes if editor.sole_user(m.output) is not None]
    if not alone:
        return Refusal("others read it, too, as the parts of a norm that is to be found")
    of_weights = [m for m in alone if _is_of_weights(editor, editor.producer(m.inputs[0]), _DEPTH)]
    if not of_weights:
        return Refusal("what is reshaped is not made by a product with weights")
    if any(_is_of_weights(editor, m, _DEPTH) for m in makers if m not in reshapes):
        return Refusal("another operand is made by one, and is not reshaped")
    reshape = of_weights[0]
    flat = reshape.inputs[0].type.shape
    if not same_shape(reshape.output.type.shape, result):
        return Refusal("the other operand makes it larger")
    groups = _groups(flat, result)
    shapes = [_flat_shape(v.type.shape, flat, result, groups) for v in match.root.inputs]
    found = [shape for shape in shapes if shape is not None]
    if len(found) < len(shapes):
        return Refusal("an operand repeats along a part of what one axis becomes")
    sources = [_source(editor, v) for v in match.root.inputs]
    for value, shape in zip(sources, found, strict=True):
        if editor.array(value) is not None and not all(isinstance(n, Const) for n in shape):
            return Refusal("only a run knows the shape that a constant would have")
    operands = [_in_shape(match, v, shape) for v, shape in zip(sources, found, strict=True)]
    return match.call(Reshape(shape=result), match.call(match.root.op, *operands))


def _flat_shape(own: Shape, flat: Shape, result: Shape, groups: Sequence[Group]) -> Shape | None:
    """The shape that an operand of `result` has beside `flat`; None where it has none."""
    if not own:
        return own
    if same_shape(own, result):
        return flat
    whole = (*(ONE,) * (len(result) - len(own)), *own)
    found: list[Expr] = []
    for before, after in groups:
        sizes, places = whole[after.start : after.stop], flat[before.start : before.stop]
        if all(is_const(n, 1) for n in sizes):
            found += [ONE] * len(places)
        elif same_shape(sizes, result[after.start : after.stop]):
            found += places
        else:
            return None
    return tuple(found)


def _source(editor: GraphEditor, value: Value) -> Value:
    """What a value is before it is reshaped."""
    maker = editor.producer(value)
    if maker is not None and isinstance(maker.op, Reshape):
        return _source(editor, maker.inputs[0])
    return value


def _in_shape(match: Match, value: Value, shape: Shape) -> Value:
    """A value with its elements in another shape."""
    if same_shape(value.type.shape, shape):
        return value
    if (array := match.editor.array(value)) is not None:
        return match.constant(array.reshape(constants(shape)), value)
    return match.call(Reshape(shape=shape), value)


def _is_of_weights(editor: GraphEditor, node: Node | None, depth: int) -> bool:
    """Whether a node is a contraction with a constant, or computes each element of one."""
    if node is None:
        return False
    if node.op.fuse is Fuse.ANCHOR:
        return any(editor.array(v) is not None for v in node.inputs)
    if not depth or not isinstance(node.op, _KINDS):
        return False
    return any(_is_of_weights(editor, editor.producer(v), depth - 1) for v in node.inputs)


def _groups(before: Shape, after: Shape) -> list[Group]:
    """The smallest runs of axes that have as many elements on both sides of a reshape."""
    found: list[Group] = []
    p = q = 0
    while p < len(before) and q < len(after):
        p_end, q_end = _run_end(before, after, p, q)
        found.append((range(p, p_end), range(q, q_end)))
        p, q = p_end, q_end
    return [*found, (range(p, len(before)), range(q, len(after)))]


def _run_end(before: Shape, after: Shape, p: int, q: int) -> tuple[int, int]:
    """Where the shortest runs end that begin at two places; all of the rest is one."""
    ends = product(range(p + 1, len(before) + 1), range(q + 1, len(after) + 1))
    for i, j in sorted(ends, key=sum):
        if surely_equal(elements_of(before[p:i]), elements_of(after[q:j])):
            return i, j
    return len(before), len(after)
