"""x / c -> x * (1 / c), for a constant c of powers of two, where both round alike."""

from __future__ import annotations

import numpy as np

from dlc.graph.graph import Value
from dlc.graph.ops.binary import Div, Mul
from dlc.graph.rewrite import Match, Pattern, Refusal, Weight, rule

LARGEST_EXPONENT = {"f16": 14, "bf16": 126, "f32": 126, "f64": 1022}
"""The inverses of powers of two up to here are normal numbers, and so are exact."""


@rule(Pattern(Div, ("x", Weight("c"))))
def div_into_mul(match: Match) -> Value | Refusal:
    """Multiply by the inverse, which is exact."""
    dtype, c = match["c"].type.dtype, match.array("c")
    if not dtype.is_float:
        return Refusal("integers divide with a remainder")
    if not np.isfinite(c).all() or not c.all():
        return Refusal("a divisor is zero or not finite")
    mantissa, exponent = np.frexp(c)
    if not (np.abs(mantissa) == 0.5).all():
        return Refusal("a divisor is no power of two, and its inverse would be rounded")
    if np.abs(exponent - 1).max(initial=0) > LARGEST_EXPONENT[dtype.value]:
        return Refusal("an inverse is too small or too large for the type")
    return match.call(Mul(), match["x"], match.constant(1.0 / c, match["c"]))
