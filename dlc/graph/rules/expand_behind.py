"""f(expand(x)) -> expand(f(x)), where f computes each element by itself, or joins elements along
axes that are not repeated: a mask of rows is counted once and not for each of their columns.
"""

from __future__ import annotations

from dlc.graph.graph import Value
from dlc.graph.ops.activation import Clip
from dlc.graph.ops.elementwise import Cast, Unary
from dlc.graph.ops.reduce import Reduce
from dlc.graph.ops.shape import Expand
from dlc.graph.rewrite import Match, Pattern, Refusal, rule
from dlc.graph.rules.expand_into_broadcast import subclasses
from dlc.te.expr import ONE
from dlc.te.simplify import surely_equal


@rule(Pattern((Cast, Clip, *subclasses(Unary)), (Pattern(Expand, ("x",), shared=True),)))
def expand_behind_elements(match: Match) -> Value | Refusal:
    """Compute each element before it is repeated."""
    return match.call(match.op(Expand), match.call(match.root.op, match["x"]))


@rule(Pattern(Reduce, (Pattern(Expand, ("x",), shared=True),)))
def expand_behind_reduce(match: Match) -> Value | Refusal:
    """Join elements before the results are repeated."""
    op, x = match.op(Reduce), match["x"].type
    wanted = match.op(Expand).shape
    if x.rank < len(wanted):
        return Refusal("the expansion adds axes")
    wanted = (ONE,) * (x.rank - len(wanted)) + wanted
    axes = {d % x.rank for d in op.axes}
    if any(wanted[d] != ONE and not surely_equal(wanted[d], x.shape[d]) for d in axes):
        return Refusal("what is joined is repeated, or may be")
    kept = [(d, ONE if d in axes else n) for d, n in enumerate(wanted)]
    shape = tuple(n for d, n in kept if op.keepdims or d not in axes)
    return match.call(Expand(shape=shape), match.call(op, match["x"]))
