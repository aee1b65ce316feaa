"""clip(x + 3, 0, 6) / 6 -> hard_sigmoid(x, alpha=1/6, beta=0.5), and
x * hard_sigmoid(x, alpha=1/6, beta=0.5) -> hard_swish(x).

Source: Howard et al., "Searching for MobileNetV3", arXiv 1905.02244, section 5.2.
"""

from __future__ import annotations

import math

from dlc.graph.graph import Value
from dlc.graph.ops.activation import Clip, HardSigmoid, HardSwish
from dlc.graph.ops.binary import Add, Div, Mul
from dlc.graph.rewrite import Match, Pattern, Refusal, Rule, Scalar, rule

SIXTH = 1.0 / 6.0
CLIPPED = Pattern(Clip, (Pattern(Add, ("x", Scalar(3.0)), either_order=True),))


def _into_hard_sigmoid(match: Match) -> Value | Refusal:
    clip = match.op(Clip)
    if clip.min != 0.0 or clip.max != 6.0:
        return Refusal(f"clips at {clip.min} and {clip.max}, not at 0 and 6")
    return match.call(HardSigmoid(alpha=SIXTH, beta=0.5), match["x"])


def _into_hard_swish(match: Match) -> Value | Refusal:
    clip = match.op(Clip)
    if clip.min != 0.0 or clip.max != 6.0:
        return Refusal(f"clips at {clip.min} and {clip.max}, not at 0 and 6")
    return match.call(HardSwish(), match["x"])


PRODUCT = Pattern(Mul, ("x", CLIPPED), either_order=True)
CLIP_INTO_HARD_SIGMOID = (
    Rule("clip_into_hard_sigmoid", Pattern(Div, (CLIPPED, Scalar(6.0))), _into_hard_sigmoid),
    Rule(
        "clip_into_hard_sigmoid",
        Pattern(Mul, (CLIPPED, Scalar(SIXTH)), either_order=True),
        _into_hard_sigmoid,
    ),
    Rule("clip_into_hard_swish", Pattern(Div, (PRODUCT, Scalar(6.0))), _into_hard_swish),
    Rule(
        "clip_into_hard_swish",
        Pattern(Mul, (PRODUCT, Scalar(SIXTH)), either_order=True),
        _into_hard_swish,
    ),
)


@rule(Pattern(Mul, ("x", Pattern(HardSigmoid, ("x",))), either_order=True))
def hard_sigmoid_into_hard_swish(match: Match) -> Value | Refusal:
    """Join both into one operator."""
    inner = match.op(HardSigmoid)
    if not math.isclose(inner.alpha, SIXTH, rel_tol=1e-6) or inner.beta != 0.5:
        return Refusal(f"the slope is {inner.alpha} and the offset {inner.beta}")
    return match.call(HardSwish(), match["x"])
