"""x * sigmoid(x) -> silu(x), and x * sigmoid(alpha * x) -> silu(x, alpha=alpha)."""

from __future__ import annotations

from dlc.graph.graph import Value
from dlc.graph.ops.activation import Sigmoid, Silu
from dlc.graph.ops.binary import Mul
from dlc.graph.rewrite import Match, Pattern, Refusal, Weight, rule


@rule(Pattern(Mul, ("x", Pattern(Sigmoid, ("x",))), either_order=True))
def sigmoid_into_silu(match: Match) -> Value | Refusal:
    """Join both into one operator."""
    return match.call(Silu(), match["x"])


@rule(
    Pattern(
        Mul,
        ("x", Pattern(Sigmoid, (Pattern(Mul, ("x", Weight("alpha")), either_order=True),))),
        either_order=True,
    )
)
def scaled_sigmoid_into_silu(match: Match) -> Value | Refusal:
    """Join the three into one operator."""
    alpha = match.array("alpha")
    if alpha.size != 1 or alpha.ndim > match["x"].type.rank:
        return Refusal("alpha is not one number")
    return match.call(Silu(alpha=float(alpha.reshape(-1)[0])), match["x"])
