"""The normal distribution's cumulative probability in few instructions."""

from __future__ import annotations

from dlc.codegen.llvm.arith import Arith
from dlc.codegen.llvm.coefficients import NORMCDF_SHORT, NORMCDF_SHORT_LIMIT
from dlc.codegen.llvm.ir import Val


def normcdf_short(a: Arith, x: Val) -> Val:
    """The probability of what is below x, right to 19 bits behind the point; 0 where it is less.

    A third of the instructions of the accurate one, because nothing is divided or exponentiated.
    """
    high, low = a.const(NORMCDF_SHORT_LIMIT, x), a.const(-NORMCDF_SHORT_LIMIT, x)
    y = a.select(a.test("fcmp ogt", x, high), high, x)  # NaN stays
    y = a.select(a.test("fcmp olt", y, low), low, y)
    scaled = a.op("fmul", y, a.const(2.0 / NORMCDF_SHORT_LIMIT**2, x))
    place = a.fma(scaled, y, a.const(-1.0, x))
    total = a.const(NORMCDF_SHORT[-1], x)
    for term in reversed(NORMCDF_SHORT[:-1]):
        total = a.fma(total, place, a.const(term, x))
    share = a.fma(y, total, a.const(0.5, x))
    zero = a.const(0.0, x)
    return a.select(a.test("fcmp olt", share, zero), zero, share)
