"""layer_norm(x) * s -> layer_norm(x, s), and layer_norm(x, s) + b -> layer_norm(x, s, b)."""

from __future__ import annotations

from dlc.graph.graph import Value
from dlc.graph.ops.binary import Add, Mul
from dlc.graph.ops.norm import LayerNorm
from dlc.graph.rewrite import Match, Pattern, Refusal, Weight, rule
from dlc.te.types import is_const


@rule(Pattern(Mul, (Pattern(LayerNorm, ("x",)), Weight("s")), either_order=True))
def scale_into_layer_norm(match: Match) -> Value | Refusal:
    """Let the operator scale."""
    if reason := _why_not_per_column(match, "s"):
        return Refusal(reason)
    return match.call(match.op(LayerNorm), match["x"], match["s"])


@rule(Pattern(Add, (Pattern(LayerNorm, ("x", "s")), Weight("b")), either_order=True))
def bias_into_layer_norm(match: Match) -> Value | Refusal:
    """Let the operator add."""
    if reason := _why_not_per_column(match, "b"):
        return Refusal(reason)
    return match.call(match.op(LayerNorm), match["x"], match["s"], match["b"])


def _why_not_per_column(match: Match, name: str) -> str:
    x, norm = match["x"].type, match.op(LayerNorm)
    if norm.axis % x.rank != x.rank - 1:
        return "the norm is over several axes"
    constant = match[name].type
    if constant.rank != 1 or not is_const(x.shape[-1], constant.static_shape[0]):
        return "the constant has not one entry for each column"
    return ""
