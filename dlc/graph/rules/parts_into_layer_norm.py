"""d / sqrt(mean(d**2) + epsilon) with d = x - mean(x) -> layer_norm(x), over the last axis.

Source: Ba, Kiros and Hinton, "Layer Normalization", arXiv 1607.06450, equation 3.
"""

from __future__ import annotations

from dlc.graph.graph import Value
from dlc.graph.ops.binary import Add, Div, Mul, Pow, Sub
from dlc.graph.ops.elementwise import Sqrt
from dlc.graph.ops.norm import LayerNorm
from dlc.graph.ops.reduce import Reduce
from dlc.graph.rewrite import Match, Operand, Pattern, Refusal, Rule, Scalar, Weight

CENTRED = Pattern(Sub, ("x", Pattern(Reduce, ("x",), name="mean")), name="d")


def _deviation(square: Operand) -> Pattern:
    variance = Pattern(Reduce, (square,), name="variance")
    return Pattern(Sqrt, (Pattern(Add, (variance, Weight("epsilon")), either_order=True),))


def _into_layer_norm(match: Match) -> Value | Refusal:
    epsilon = epsilon_of_last(match, "mean", "variance")
    if isinstance(epsilon, Refusal):
        return epsilon
    return match.call(LayerNorm(axis=-1, epsilon=epsilon), match["x"])


def epsilon_of_last(match: Match, *means: str) -> float | Refusal:
    """The epsilon of a norm by some means, all over the last axis of "x"."""
    rank, epsilon = match["x"].type.rank, match.array("epsilon")
    for name in means:
        found = match.maker(name)
        assert isinstance(found, Reduce)
        if found.kind != "mean" or not found.keepdims:
            return Refusal("not a mean that keeps its axis")
        if tuple(a % rank for a in found.axes) != (rank - 1,):
            return Refusal("not over the last axis alone")
    if epsilon.size != 1 or not epsilon.reshape(-1)[0] >= 0:
        return Refusal("epsilon is not one number of at least 0")
    return float(epsilon.reshape(-1)[0])


PARTS_INTO_LAYER_NORM = tuple(
    Rule("parts_into_layer_norm", Pattern(Div, (CENTRED, _deviation(square))), _into_layer_norm)
    for square in (Pattern(Pow, ("d", Scalar(2.0))), Pattern(Mul, ("d", "d")))
)
"""One rule for each spelling of the square."""
