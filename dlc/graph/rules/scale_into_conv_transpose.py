"""conv_transpose(x, w) * c -> conv_transpose(x, w * c), for a constant c that differs by channel or
not at all.
"""

from __future__ import annotations

import numpy as np

from dlc.graph.broadcast import along_axis
from dlc.graph.graph import Value
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
    rank = match["y"].type.rank
    c = along_axis(match.array("c"), rank, 1, w.shape[1] * conv.groups)
    if c is None:
        return Refusal("the factor differs within a channel")
    # Row i of the weights belongs to a group, and its columns to that group's results.
    rows = np.repeat(c.reshape(conv.groups, w.shape[1]), w.shape[0] // conv.groups, axis=0)
    scaled = w * rows.reshape(*w.shape[:2], *(1,) * (rank - 2))
    weights = match.constant(scaled, match["w"], f"{match['w'].name}_scaled")
    return match.call(conv, match["x"], weights)
