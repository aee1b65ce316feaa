"""slice(transpose(x)) -> transpose(slice(x)) and slice(reshape(x)) -> reshape(slice(x)), where the
slice takes one element of an axis, a reshape follows, and the inner one nothing but adds or drops
axes of one.

Multi-head attention, as a layer of PyTorch exports it, stacks queries, keys and values, turns the
stack, and takes it apart again. Taken apart first, each is a part of what the product makes.
"""

from __future__ import annotations

from dlc.graph.graph import Value
from dlc.graph.op import Op
from dlc.graph.ops.shape import Reshape, Slice, Transpose, undone
from dlc.graph.rewrite import Match, Pattern, Refusal, rule
from dlc.te.expr import ONE, ZERO, Expr
from dlc.te.types import Shape, is_const, same_shape


def takes_one(op: Slice, whole: Shape) -> bool:
    """Whether a slice leaves one element of an axis of more."""
    return any(
        is_const(n, 1) and not is_const(size, 1) for n, size in zip(op.sizes, whole, strict=True)
    )


def wide_axes(shape: Shape) -> list[int]:
    """The axes that have not surely one element."""
    return [d for d, n in enumerate(shape) if not is_const(n, 1)]


def moves_units(before: Shape, after: Shape) -> bool:
    """Whether shapes differ in axes of one element alone."""
    wide = (tuple(s[d] for d in wide_axes(s)) for s in (before, after))
    return same_shape(*wide)


def is_read_by(match: Match, *kinds: type[Op]) -> bool:
    """Whether one operator alone reads the result, of one of these kinds."""
    user = match.editor.sole_user(match.root.output)
    return user is not None and isinstance(user.op, kinds)


@rule(Pattern(Slice, (Pattern(Transpose, ("x",), name="y", shared=True),)))
def one_before_transpose(match: Match) -> Value | Refusal:
    """Take the element before axes change places."""
    op, perm = match.op(Slice), match.op(Transpose).perm
    if not takes_one(op, match["y"].type.shape):
        return Refusal("the slice takes more than one element of each axis")
    if not is_read_by(match, Reshape):
        return Refusal("no reshape follows, with which the move would be one")
    back = undone(perm)
    before = Slice(
        starts=tuple(op.starts[d] for d in back),
        sizes=tuple(op.sizes[d] for d in back),
        steps=tuple(op.strides[d] for d in back),
    )
    return match.call(Transpose(perm=perm), match.call(before, match["x"]))


@rule(Pattern(Slice, (Pattern(Reshape, ("x",), name="y", shared=True),)))
def one_before_reshape(match: Match) -> Value | Refusal:
    """Take the element before axes of one come or go."""
    op, x, y = match.op(Slice), match["x"].type.shape, match["y"].type.shape
    if not takes_one(op, y):
        return Refusal("the slice takes more than one element of each axis")
    if not is_read_by(match, Reshape):
        return Refusal("no reshape follows, with which the move would be one")
    if not moves_units(x, y):
        return Refusal("the reshape moves more than axes of one")
    units = set(range(len(y))) - set(wide_axes(y))
    if any(not is_const(op.sizes[d], 1) for d in units):
        return Refusal("the slice takes nothing of an axis of one")
    pairs = list(zip(wide_axes(x), wide_axes(y), strict=True))
    if any(is_const(op.sizes[after], 1) and before == len(x) - 1 for before, after in pairs):
        return Refusal("the axis is the last one, whose parts are taken behind reshapes")
    starts: list[Expr] = [ZERO] * len(x)
    sizes: list[Expr] = [ONE] * len(x)
    steps = [1] * len(x)
    for before, after in pairs:
        starts[before], sizes[before] = op.starts[after], op.sizes[after]
        steps[before] = op.strides[after]
    part = Slice(starts=tuple(starts), sizes=tuple(sizes), steps=tuple(steps))
    result = Reshape(shape=match.root.output.type.shape)
    return match.call(result, match.call(part, match["x"]))
