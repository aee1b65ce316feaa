"""conv(x * c, w) -> conv(x, w * c), for a constant c that differs by input channel or not at all.

The zeros of the pads stay zeros, scaled or not.
"""

from __future__ import annotations

import numpy as np

from dlc.graph.broadcast import along_axis, scale_groups
from dlc.graph.graph import Value
from dlc.graph.integers import is_kept_whole
from dlc.graph.ops.binary import Mul
from dlc.graph.ops.conv import Conv
from dlc.graph.rewrite import Match, Pattern, Refusal, Weight, rule


@rule(
    Pattern(
        Conv, (Pattern(Mul, ("x", Weight("c")), either_order=True, name="product"), Weight("w"))
    )
)
def scale_before_conv(match: Match) -> Value | Refusal:
    """Scale the weights instead of the operand."""
    conv, w = match.op(Conv), match.array("w")
    if match["x"].type != match["product"].type:
        return Refusal("the product repeats its operand")
    if is_kept_whole(match.context, w):
        return Refusal("the target multiplies such whole numbers faster")
    c = along_axis(match.array("c"), w.ndim, 1, w.shape[1] * conv.groups)
    if c is None:
        return Refusal("the factor differs within a channel")
    if not np.isfinite(c).all():
        return Refusal("a factor is not finite, and would change the zeros of the pads")
    scaled = scale_groups(w, c, conv.groups)
    weights = match.constant(scaled, match["w"], f"{match['w'].name}_scaled")
    return match.call(conv, match["x"], weights)
