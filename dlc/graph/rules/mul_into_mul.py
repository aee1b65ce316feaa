"""(x * a) * b -> x * (a * b), for constants a and b, as the scales of quantized operands."""

from __future__ import annotations

import numpy as np

from dlc.core.types import DType
from dlc.graph.graph import Value
from dlc.graph.ops.binary import Mul
from dlc.graph.rewrite import Match, Pattern, Refusal, Weight, rule

LARGEST_EXPONENT = 100
"""A product of constants up to two to this, and not less than its inverse, is a normal float32."""


@rule(
    Pattern(
        Mul,
        (Pattern(Mul, ("x", Weight("a")), either_order=True, name="inner"), Weight("b")),
        either_order=True,
    )
)
def mul_into_mul(match: Match) -> Value | Refusal:
    """Multiply the constants while compiling: that rounds once less."""
    if match.editor.array(match["x"]) is not None:
        return Refusal("all operands are constants, which folding multiplies")
    if match["x"].type.dtype not in (DType.F32, DType.F64):
        return Refusal("products of other types wrap around or overflow early")
    if match["x"].type != match.root.output.type:
        return Refusal("a constant repeats the operand")
    a, b = match.array("a"), match.array("b")
    both = a * b
    if both.size > max(a.size, b.size):
        return Refusal("the product of the constants is larger than both")
    large = np.abs(np.frexp(both)[1]).max(initial=0) > LARGEST_EXPONENT
    if not np.isfinite(both).all() or ((both == 0) != ((a == 0) | (b == 0))).any() or large:
        return Refusal("the product of the constants is not finite, too small or too large")
    return match.call(Mul(), match["x"], match.constant(both, match["a"]))
