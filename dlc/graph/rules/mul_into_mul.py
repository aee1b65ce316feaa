"""(x * a) * b -> x * (a * b), for constants a and b, as the scales of quantized operands."""

from __future__ import annotations

import numpy as np

from dlc.core.types import DType
from dlc.graph.graph import Value
from dlc.graph.ops.binary import Mul
from dlc.graph.rewrite import Match, Refusal, rule
from dlc.graph.rules.twice import twice, why_apart

LARGEST_EXPONENT = 100
"""A product of constants up to two to this, and not less than its inverse, is a normal float32."""


@rule(twice(Mul))
def mul_into_mul(match: Match) -> Value | Refusal:
    """Multiply the constants while compiling: that rounds once less."""
    if match["x"].type.dtype not in (DType.F32, DType.F64):
        return Refusal("products of other types wrap around or overflow early")
    a, b = match.array("a"), match.array("b")
    both = a * b
    if reason := why_apart(match, both):
        return Refusal(reason)
    large = np.abs(np.frexp(both)[1]).max(initial=0) > LARGEST_EXPONENT
    if not np.isfinite(both).all() or ((both == 0) != ((a == 0) | (b == 0))).any() or large:
        return Refusal("the product of the constants is not finite, too small or too large")
    return match.call(Mul(), match["x"], match.constant(both, match["a"]))
