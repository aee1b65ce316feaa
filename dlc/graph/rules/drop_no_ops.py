"""f(x) -> x, where f changes nothing: identity, a cast to the same type, a reshape or expansion to
the same shape, a slice of everything, a pad by nothing, a concatenation of one, x * 1.
"""

from __future__ import annotations

from dlc.graph.graph import Value
from dlc.graph.ops.binary import Mul
from dlc.graph.ops.elementwise import Cast, Identity
from dlc.graph.ops.shape import Concat, Expand, Pad, Reshape, Slice, Transpose
from dlc.graph.rewrite import Match, Pattern, Refusal, Weight, rule
from dlc.te.types import is_const


@rule(Pattern((Identity, Cast, Reshape, Expand, Slice, Pad, Concat, Transpose), ("x",)))
def drop_no_op(match: Match) -> Value | Refusal:
    """Read the operand itself."""
    x, op = match["x"], match.root.op
    if x.type != match.root.output.type:
        return Refusal("the type changes")
    if isinstance(op, Transpose) and tuple(op.perm) != tuple(range(x.type.rank)):
        return Refusal("dimensions of one size change places")
    if isinstance(op, Slice) and op.steps:
        return Refusal("the order is reversed")
    if isinstance(op, Pad) and not all(is_const(b, 0) for b in op.before):
        return Refusal("what one end gains the other loses")
    return x


@rule(Pattern(Mul, ("x", Weight("factor")), either_order=True))
def drop_mul_by_one(match: Match) -> Value | Refusal:
    """Read the operand itself; the product is exact."""
    if match["x"].type != match.root.output.type:
        return Refusal("the factor repeats the operand")
    if not (match.array("factor") == 1).all():
        return Refusal("the factor is not one")
    return match["x"]
