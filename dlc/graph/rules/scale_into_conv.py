"""conv(x, w) * c -> conv(x, w * c), for a constant c that differs by channel or not at all."""

from __future__ import annotations

from dlc.graph.broadcast import along_axis
from dlc.graph.graph import Value
from dlc.graph.integers import is_kept_whole
from dlc.graph.ops.binary import Mul
from dlc.graph.ops.conv import Conv
from dlc.graph.rewrite import Match, Pattern, Refusal, Weight, rule


@rule(Pattern(Mul, (Pattern(Conv, ("x", Weight("w")), name="y"), Weight("c")), either_order=True))
def scale_into_conv(match: Match) -> Value | Refusal:
    """Scale the weights instead of the result."""
    w = match.array("w")
    if is_kept_whole(match.context, w):
        return Refusal("the target multiplies such whole numbers faster")
    rank = match["y"].type.rank
    c = along_axis(match.array("c"), rank, 1, w.shape[0])
    if c is None:
        return Refusal("the factor differs within a channel")
    scaled = w * c.reshape(-1, *(1,) * (rank - 1))
    weights = match.constant(scaled, match["w"], f"{match['w'].name}_scaled")
    return match.call(match.op(Conv), match["x"], weights)
