"""reshape(transpose(x)) -> transpose(reshape(x)) and reshape(slice(x)) -> slice(reshape(x)), where
the outer reshape nothing but adds or drops axes of one, and x is reshaped itself.

The reshapes are then one, and what is left is index arithmetic in the reader.
"""

from __future__ import annotations

from dlc.graph.graph import Value
from dlc.graph.ops.binary import Mul
from dlc.graph.ops.matmul import MatMul
from dlc.graph.ops.shape import Reshape, Slice, Transpose, undone
from dlc.graph.rewrite import Match, Pattern, Refusal, rule
from dlc.graph.rules.one_before_moves import is_read_by, moves_units, takes_one, wide_axes
from dlc.te.expr import ZERO, Expr


@rule(
    Pattern(
        Reshape,
        (Pattern(Transpose, (Pattern((Reshape, Slice), None, name="x", shared=True),), name="y"),),
    )
)
def units_before_transpose(match: Match) -> Value | Refusal:
    """Add or drop axes of one before the others change places."""
    x, y, result = match["x"].type.shape, match["y"].type.shape, match.root.output.type.shape
    perm = match.op(Transpose).perm
    if not moves_units(y, result):
        return Refusal("the reshape moves more than axes of one")
    if not is_read_by(match, MatMul, Mul):
        return Refusal("not a product alone reads it, and each reader would turn it")
    place = {d: n for n, d in enumerate(wide_axes(x))}  # of what is wide, behind all units
    units = len(result) - len(place)
    wide = [units + place[perm[d]] for d in wide_axes(y)]
    unit = [d for d in range(len(result)) if d not in wide_axes(result)]
    order = dict(zip((*unit, *wide_axes(result)), (*range(units), *wide), strict=True))
    turned = tuple(order[d] for d in range(len(result)))
    shape = tuple(result[d] for d in undone(turned))
    return match.call(Transpose(perm=turned), match.call(Reshape(shape=shape), match["x"]))


@rule(
    Pattern(
        Reshape, (Pattern(Slice, (Pattern(Reshape, None, name="x", shared=True),), name="part"),)
    )
)
def units_before_slice(match: Match) -> Value | Refusal:
    """Add or drop axes of one before a part is taken."""
    x, part, result = (v.type.shape for v in (match["x"], match["part"], match.root.output))
    op = next(n.op for n in match.nodes if isinstance(n.op, Slice))
    if takes_one(op, x):
        return Refusal("one element is taken, which goes before the reshape")
    if not moves_units(part, result):
        return Refusal("the reshape moves more than axes of one")
    if not is_read_by(match, Transpose):
        return Refusal("no transpose reads it, with which it would be one move")
    shape, steps = list(result), [1] * len(result)
    starts: list[Expr] = [ZERO] * len(result)
    for before, after in zip(wide_axes(part), wide_axes(result), strict=True):
        shape[after], starts[after], steps[after] = x[before], op.starts[before], op.strides[before]
    whole = match.call(Reshape(shape=tuple(shape)), match["x"])
    return match.call(Slice(starts=tuple(starts), sizes=result, steps=tuple(steps)), whole)
