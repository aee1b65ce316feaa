"""The normal distribution's cumulative probability, in full and in few instructions."""

from __future__ import annotations

from dlc.codegen.llvm import coefficients
from dlc.codegen.llvm.exact import product
from dlc.codegen.llvm.exponential import BIAS, INTEGER, Exponential
from dlc.codegen.llvm.ir import Val
from dlc.codegen.llvm.polynomial import polynomial
from dlc.codegen.llvm.scalef import has_scalef, scalef

NORMCDF_LIMIT = {"float": 14.47, "double": 38.63}  # below minus that there is only 0


def normcdf(e: Exponential, x: Val) -> Val:
    """The share of a normal distribution below x.

    Of float64, and without multiply-adds, it is right to the last digits where it is near 0, too:
    below 0 it is exp(-x**2 / 2) R(-x) with a smooth R, a polynomial in t = 1 / (1 + 0.3 |x|);
    what its factors lose by rounding, and x**2 and t, is made good at the end.

    Source: the form is that of W. J. Cody, "Rational Chebyshev approximations for the error
    function", Math. Comp. 23 (1969).
    """
    a = e.arith
    if a.has_fma and x.elem == "float":
        return _by_power(e, x)
    one, half = e.const(1.0, x), e.const(0.5, x)
    limit = NORMCDF_LIMIT[x.elem]
    size = a.call("fabs", x)
    y = e.at_most(size, limit)
    square, lost = product(a, y, y)
    minus_half = a.neg(half)
    rounder, down = e.lift(x, never_above_0=True)
    n, exponent, more = e.exp_parts(a.op("fmul", square, minus_half), rounder)
    total = a.op("fadd", one, more)
    slope = e.const(coefficients.NORMCDF_SLOPE[x.elem], x)
    divisor = a.fma(y, slope, one)
    t = a.op("fdiv", one, divisor)
    off = a.fma(y, slope, a.op("fsub", one, divisor))
    off = a.fma(a.neg(t), off, a.fma(a.neg(t), divisor, one))
    table = coefficients.NORMCDF_F32 if x.elem == "float" else coefficients.NORMCDF_F64
    ratio, ratio_rest = product(a, t, polynomial(a, a.op("fsub", t, half), table))
    share = a.fma(lost, minus_half, a.op("fadd", off, off))
    rest = a.fma(ratio, a.fma(total, share, more), ratio_rest)
    share = a.op("fadd", ratio, rest)
    if has_scalef(a, x):
        below = scalef(a, share, n, a.test("fcmp uge", e.const(limit, x), size))
    else:
        below = e.scale(share, exponent, down)
    return a.select(a.test("fcmp olt", x, e.const(0.0, x)), below, a.op("fsub", one, below))


def _by_power(e: Exponential, x: Val) -> Val:
    """The share below a float32, by way of two to the power of a polynomial in |x|.

    Rounding the power costs digits where little is left, as many as `1 + x**2` has. Nothing is
    divided and nothing made good, so that this takes a third of the operations. The lowest
    exponent stands for 0: so do all powers below it.
    """
    a = e.arith
    power = polynomial(a, a.call("fabs", x), coefficients.POWER_NORMCDF_F32)
    power = e.at_least(power, -BIAS[x.elem])
    rounder = e.rounder(x)
    shifted = a.op("fadd", power, rounder)
    rest = a.op("fsub", power, a.op("fsub", shifted, rounder))
    growth = polynomial(a, rest, (1.0, *coefficients.EXP2_F32))
    exponent = a.convert("bitcast", shifted, INTEGER[x.elem])
    below = a.op("fmul", growth, e.power_of_two(exponent, x.elem))
    above = a.op("fsub", e.const(1.0, x), below)
    return a.select(e.is_negative(x), below, above)


def normcdf_short(e: Exponential, x: Val) -> Val:
    """The probability of what is below x, right to 19 bits behind the point; 0 where it is less.

    A third of the instructions of the accurate one, because nothing is divided or exponentiated.
    """
    a, limit = e.arith, coefficients.NORMCDF_SHORT_LIMIT
    y = e.at_least(e.at_most(x, limit), -limit)
    scaled = a.op("fmul", y, e.const(2.0 / limit**2, x))
    place = a.fma(scaled, y, e.const(-1.0, x))
    share = a.fma(y, polynomial(a, place, coefficients.NORMCDF_SHORT), e.const(0.5, x))
    zero = e.const(0.0, x)
    return a.select(a.test("fcmp olt", share, zero), zero, share)
