"""x * tanh(softplus(x)) -> mish(x)."""

from __future__ import annotations

from dlc.graph.graph import Value
from dlc.graph.ops.activation import Mish, Softplus
from dlc.graph.ops.binary import Mul
from dlc.graph.ops.elementwise import Tanh
from dlc.graph.rewrite import Match, Pattern, Refusal, rule


@rule(Pattern(Mul, ("x", Pattern(Tanh, (Pattern(Softplus, ("x",)),))), either_order=True))
def parts_into_mish(match: Match) -> Value | Refusal:
    """Join the three into one operator."""
    return match.call(Mish(), match["x"])
