"""0.5 * x * (1 + erf(x / sqrt(2))) -> gelu(x), and
0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) -> gelu(x, approximate="tanh"),
in the orders in which exporters write the products.

Source: Hendrycks and Gimpel, "Gaussian Error Linear Units (GELUs)", arXiv 1606.08415, section 2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from dlc.graph.graph import Value
from dlc.graph.ops.activation import Gelu
from dlc.graph.ops.binary import Add, Div, Mul, Pow
from dlc.graph.ops.elementwise import Erf, Tanh
from dlc.graph.rewrite import Match, Operand, Pattern, Rule, Scalar


def _mul(a: Operand, b: Operand) -> Pattern:
    return Pattern(Mul, (a, b), either_order=True)


def _add(a: Operand, b: Operand) -> Pattern:
    return Pattern(Add, (a, b), either_order=True)


def _products(factor: Operand) -> Iterator[Pattern]:
    """0.5 * x * (1 + factor), however it is grouped."""
    half, whole = Scalar(0.5), _add(factor, Scalar(1.0))
    yield _mul(_mul("x", whole), half)
    yield _mul(_mul("x", half), whole)
    yield _mul("x", _mul(whole, half))
    yield Pattern(Div, (_mul("x", whole), Scalar(2.0)))
    # 0.5 may have gone into the sum: 0.5 * factor + 0.5
    yield _mul("x", _add(_mul(factor, half), half))


ERF_ARGUMENTS = (
    Pattern(Div, ("x", Scalar(math.sqrt(2.0)))),
    _mul("x", Scalar(math.sqrt(0.5))),
)
CUBES = (
    Pattern(Pow, ("x", Scalar(3.0))),
    _mul(_mul("x", "x"), "x"),
    _mul(Pattern(Pow, ("x", Scalar(2.0))), "x"),
)
CUBIC_TERMS = tuple(_mul(cube, Scalar(0.044715)) for cube in CUBES) + (
    _mul(_mul(_mul("x", Scalar(0.044715)), "x"), "x"),
    _mul(_mul("x", "x"), _mul("x", Scalar(0.044715))),
)
FACTOR = Scalar(math.sqrt(2.0 / math.pi))
TANH_ARGUMENTS = tuple(_mul(_add("x", term), FACTOR) for term in CUBIC_TERMS)


def _into_erf_gelu(match: Match) -> Value:
    return match.call(Gelu(), match["x"])


def _into_tanh_gelu(match: Match) -> Value:
    return match.call(Gelu(approximate="tanh"), match["x"])


PARTS_INTO_GELU = tuple(
    Rule("parts_into_gelu", product, _into_erf_gelu)
    for argument in ERF_ARGUMENTS
    for product in _products(Pattern(Erf, (argument,)))
) + tuple(
    Rule("parts_into_gelu", product, _into_tanh_gelu)
    for argument in TANH_ARGUMENTS
    for product in _products(Pattern(Tanh, (argument,)))
)
"""One rule for each spelling. A scalar of another value is another function: nothing matches."""
