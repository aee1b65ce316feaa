"""x / sqrt(mean(x**2) + epsilon) -> rms_norm(x), over the last axis, and rms_norm(x) * s ->
rms_norm(x, s).

Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", arXiv 1910.07467, equation 4.
"""

from __future__ import annotations

from collections.abc import Iterator

from dlc.graph.graph import Value
from dlc.graph.ops.binary import Add, Div, Mul, Pow
from dlc.graph.ops.elementwise import Reciprocal, Sqrt
from dlc.graph.ops.norm import RMSNorm
from dlc.graph.ops.reduce import Reduce
from dlc.graph.rewrite import Match, Pattern, Refusal, Rule, Scalar, Weight, rule
from dlc.graph.rules.parts_into_layer_norm import epsilon_of_last
from dlc.te.types import is_const


def _spellings() -> Iterator[Pattern]:
    for square in (Pattern(Pow, ("x", Scalar(2.0))), Pattern(Mul, ("x", "x"))):
        mean = Pattern(Reduce, (square,), name="mean")
        total = Pattern(Add, (mean, Weight("epsilon")), either_order=True)
        root = Pattern(Sqrt, (total,))
        yield Pattern(Div, ("x", root))
        inverses = (
            Pattern(Reciprocal, (root,)),
            Pattern(Div, (Scalar(1.0), root)),
            Pattern(Pow, (total, Scalar(-0.5))),
        )
        for inverse in inverses:
            yield Pattern(Mul, ("x", inverse), either_order=True)


def _into_rms_norm(match: Match) -> Value | Refusal:
    epsilon = epsilon_of_last(match, "mean")
    if isinstance(epsilon, Refusal):
        return epsilon
    return match.call(RMSNorm(axis=-1, epsilon=epsilon), match["x"])


PARTS_INTO_RMS_NORM = tuple(
    Rule("parts_into_rms_norm", spelling, _into_rms_norm) for spelling in _spellings()
)
"""One rule for each spelling of the square and of the inverse root."""


@rule(Pattern(Mul, (Pattern(RMSNorm, ("x",)), Weight("s")), either_order=True))
def scale_into_rms_norm(match: Match) -> Value | Refusal:
    """Let the operator scale."""
    x, s, norm = match["x"].type, match["s"].type, match.op(RMSNorm)
    if norm.axis % x.rank != x.rank - 1:
        return Refusal("the norm is over several axes")
    if s.rank != 1 or not is_const(x.shape[-1], s.static_shape[0]):
        return Refusal("the constant has not one entry for each column")
    return match.call(norm, match["x"], match["s"])
