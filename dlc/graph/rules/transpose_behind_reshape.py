"""reshape(transpose(reshape(x))) -> transpose(reshape(x)), where each matrix of a stack is turned,
and the reshapes merge and split the axes of the stack alone (the keys of attention).

A transpose of what a reshape makes is index arithmetic in its reader; what a reshape reads is
stored.
"""

from __future__ import annotations

from dlc.graph.graph import Value
from dlc.graph.ops.shape import Reshape, Transpose
from dlc.graph.rewrite import Match, Pattern, Refusal, rule
from dlc.te.types import same_shape


@rule(Pattern(Reshape, (Pattern(Transpose, (Pattern(Reshape, ("x",), shared=True),), name="y"),)))
def transpose_behind_reshape(match: Match) -> Value | Refusal:
    """Split the stack before its matrices are turned."""
    turned, result = match["y"].type, match.root.output.type
    perm = match.op(Transpose).perm
    last = turned.rank - 1
    if perm != (*range(last - 1), last, last - 1):
        return Refusal("more than the last two axes change places")
    if not same_shape(turned.shape[-2:], result.shape[-2:]):
        return Refusal("the reshape takes matrices apart")
    *stack, rows, columns = result.shape
    split = match.call(Reshape(shape=(*stack, columns, rows)), match["x"])
    axes = result.rank - 2
    return match.call(Transpose(perm=(*range(axes), axes + 1, axes)), split)
