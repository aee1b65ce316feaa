"""where(isnan(x), 0, x) -> nan_to_zero(x), on GPUs.

Exporters put it behind the softmax of an attention. A constant's value is not known in loops, where
the schedule has to see that it is 0.
"""

from __future__ import annotations

from dlc.graph.graph import Value
from dlc.graph.ops.binary import Where
from dlc.graph.ops.elementwise import IsNaN, NanToZero
from dlc.graph.rewrite import Match, Pattern, Refusal, Weight, rule


@rule(Pattern(Where, (Pattern(IsNaN, ("x",)), Weight("zero"), "x")))
def where_into_nan_to_zero(match: Match) -> Value | Refusal:
    """Join both into one operator."""
    zero = match.array("zero")
    if match.context.target.gpu is None:
        return Refusal("the target is no GPU")
    if zero.size != 1 or zero.ndim > match["x"].type.rank:
        return Refusal("what replaces NaN is not one number")
    if zero.reshape(-1)[0] != 0:
        return Refusal("what replaces NaN is not 0")
    return match.call(NanToZero(), match["x"])
