"""x / c -> quotient(x, c, 1 / c), for a constant c, which needs no division."""

from __future__ import annotations

import numpy as np

from dlc.core.types import DType
from dlc.graph.graph import Value
from dlc.graph.ops.binary import Div
from dlc.graph.ops.quotient import Quotient
from dlc.graph.rewrite import Match, Pattern, Refusal, Weight, rule

LARGEST_EXPONENT = 60
"""Divisors of up to two to this, and not less than its inverse, leave nothing over too small."""


@rule(Pattern(Div, ("x", Weight("c"))))
def div_into_quotient(match: Match) -> Value | Refusal:
    """Multiply by the inverse, and correct the result."""
    c = match.array("c")
    if match["c"].type.dtype is not DType.F32:
        return Refusal("the divisor is no f32")
    if not match.context.has_fma:
        return Refusal("the target has no fused multiply-add")
    if not np.isfinite(c).all() or not c.all():
        return Refusal("a divisor is zero or not finite")
    if np.abs(np.frexp(c)[1]).max(initial=0) > LARGEST_EXPONENT:
        return Refusal("a divisor is too small or too large")
    inverse = match.constant(1.0 / c, match["c"], f"{match['c'].name}_inverse")
    return match.call(Quotient(), match["x"], match["c"], inverse)
