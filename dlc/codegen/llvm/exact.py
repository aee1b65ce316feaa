"""Sums of two floats that are a product, exactly.

Source: Dekker, "A floating-point technique for extending the available precision", Numer. Math. 18
(1971).
"""

from __future__ import annotations

from typing import NamedTuple

from dlc.codegen.llvm.arith import Arith
from dlc.codegen.llvm.exponential import INTEGER, MANTISSA_BITS
from dlc.codegen.llvm.ir import Val


class Pair(NamedTuple):
    """The sum of two floats, the second at most half a unit of the first."""

    high: Val
    low: Val


def product(a: Arith, x: Val, y: Val) -> Pair:
    """x * y rounded, and what it lost by that."""
    total = a.op("fmul", x, y)
    if a.has_fma:
        return Pair(total, a.fma(x, y, a.neg(total)))
    (x1, x2), (y1, y2) = halves(a, x), halves(a, y)
    lost = a.op("fsub", a.op("fmul", x1, y1), total)
    lost = a.op("fadd", lost, a.op("fmul", x1, y2))
    lost = a.op("fadd", lost, a.op("fmul", x2, y1))
    return Pair(total, a.op("fadd", lost, a.op("fmul", x2, y2)))


def halves(a: Arith, x: Val) -> tuple[Val, Val]:
    """x as a sum of two floats of half the digits, whose products are exact."""
    elem = x.elem
    bits = a.convert("bitcast", x, INTEGER[elem])
    mask = -1 << (MANTISSA_BITS[elem] + 2) // 2
    high = a.convert("bitcast", a.op("and", bits, a.const(mask, bits)), elem)
    return high, a.op("fsub", x, high)
