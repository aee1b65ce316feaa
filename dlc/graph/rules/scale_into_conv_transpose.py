"""conv_transpose(x, w) * c -> conv_transpose(x, w * c), for a constant c that differs by channel or
not at all.
"""

from __future__ import annotations

from dlc.graph.broadcast import along_axis, scale_groups
from dlc.graph.graph import Value
from dlc.graph.integers import is_kept_whole
from dlc.graph.ops.binary import Mul
from dlc.graph.ops.conv import ConvTranspose
from dlc.graph.rewrite import Match, Pattern, Refusal, Weight, rule


@rule(
    Pattern(
        Mul, (Pattern(ConvTranspose, ("x", Weight("w")), name="y"), Weight("c")), either_order=True
    )
)
def scale_into_conv_transpose(match: Match) -> Value | Refusal:
    """Scale the weights instead of the result."""
    conv, w = match.op(ConvTranspose), match.array("w")
    if is_kept_whole(match.context, w):
        return Refusal("the target multiplies such whole numbers faster")
    c = along_axis(match.array("c"), w.ndim, 1, w.shape[1] * conv.groups)
    if c is None:
        return Refusal("the factor differs within a channel")
    scaled = scale_groups(w, c, conv.groups)  # a row's columns are its group's results
    weights = match.constant(scaled, match["w"], f"{match['w'].name}_scaled")
    return match.call(conv, match["x"], weights)
