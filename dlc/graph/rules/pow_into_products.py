"""pow(x, 2) -> x * x, pow(x, 3) -> x * x * x, pow(x, -1) -> 1 / x, pow(x, 1) -> x, of floats.

pow(x, 0.5) -> |sqrt(x)|, but |x| for minus infinity, of which the power is infinite.

A power takes some sixty instructions, a product one, a root and what becomes of its sign and of
infinity four. Two roundings are less than the last digit.

Source: IEEE 754-2019, 9.2.1: the powers of -0 and of minus infinity have no sign.
"""

from __future__ import annotations

from dlc.graph.graph import Value
from dlc.graph.ops.binary import Mul, Pow, Where
from dlc.graph.ops.elementwise import Abs, IsInf, Reciprocal, Sqrt
from dlc.graph.rewrite import Match, Pattern, Refusal, Weight, rule


@rule(Pattern(Pow, ("x", Weight("exponent"))))
def pow_into_products(match: Match) -> Value | Refusal:
    """Multiply as often as the exponent says."""
    x, exponents = match["x"], match.array("exponent")
    if x.type != match.root.output.type:
        return Refusal("the exponent repeats the operand")
    if not x.type.dtype.is_float:
        return Refusal("integers round their powers")
    found = set(exponents.reshape(-1).tolist())
    if len(found) != 1:
        return Refusal("there are several exponents")
    match found.pop():
        case 1:
            return x
        case 2:
            return match.call(Mul(), x, x)
        case 3:
            return match.call(Mul(), match.call(Mul(), x, x), x)
        case 0.5:
            root = match.call(Sqrt(), x)
            is_lowest = match.call(IsInf(detect_positive=0), x)
            return match.call(Abs(), match.call(Where(), is_lowest, x, root))
        case -1:
            return match.call(Reciprocal(), x)
        case other:
            return Refusal(f"{other} is no exponent that a few products stand for")
