"""The exponential function as IR, and its parts: what else is made of powers of e begins here."""

from __future__ import annotations

import math

from dlc.codegen.llvm import coefficients
from dlc.codegen.llvm.arith import Arith
from dlc.codegen.llvm.ir import Val
from dlc.codegen.llvm.polynomial import polynomial
from dlc.codegen.llvm.scalef import has_scalef, scalef

LN2_HI = {"float": 0.693145751953125, "double": 6.93147180369123816490e-01}
LN2_LO = {"float": 1.42860682030941723212e-6, "double": 1.90821492927058770002e-10}
# Results of exp beyond these are infinite, or zero.
EXP_RANGE = {"float": (-104.0, 88.75), "double": (-746.0, 709.8)}
# A power of two that is multiplied by this one is no denormal where a result is neither 0.
LIFT = {"float": 24, "double": 53}
# The lowest numbers whose exp is no denormal.
LOWEST_NORMAL = {"float": -87.33654022216797, "double": -708.3964185322641}
# Adding this to a number rounds it to an integer, which then lies in the lowest bits.
ROUNDER = {"float": 1.5 * 2.0**23, "double": 1.5 * 2.0**52}
MANTISSA_BITS = {"float": 23, "double": 52}
INTEGER = {"float": "i32", "double": "i64"}
BIAS = {"float": 127, "double": 1023}
EXP = {"float": coefficients.EXP_F32, "double": coefficients.EXP_F64}


class Exponential:
    """Emits exponential functions for scalars and vectors of f32 and f64.

    Source: fdlibm (https://www.netlib.org/fdlibm/), argument reduction by Cody and Waite.
    """

    def __init__(self, arith: Arith) -> None:
        self.arith = arith

    def const(self, value: float, x: Val) -> Val:
        """A number, the same in each lane of x."""
        return self.arith.const(value, x)

    def nearest(self, x: Val, unit: float, rounder: Val | None = None) -> tuple[Val, Val]:
        """The whole number nearest to x / unit: as a float, and as the exponent of a power of two.

        The exponent, bias and all, is in the lowest bits of an integer.
        """
        a, rounder = self.arith, rounder or self.rounder(x)
        shifted = a.fma(x, self.const(1 / unit, x), rounder)
        return a.op("fsub", shifted, rounder), a.convert("bitcast", shifted, INTEGER[x.elem])

    def rounder(self, x: Val, lift: int = 0) -> Val:
        """What rounds to whole numbers when it is added, whose lowest bits are an exponent's."""
        return self.const(ROUNDER[x.elem] + BIAS[x.elem] + lift, x)

    def _reduced(self, x: Val, rounder: Val | None = None) -> tuple[Val, Val, Val]:
        """`n`, as a float and as an exponent, and r, where x = n * log(2) + r."""
        n, exponent = self.nearest(x, math.log(2), rounder)
        return n, exponent, self._rest(x, n)

    def _rest(self, x: Val, n: Val) -> Val:
        """x - n * log(2)."""
        a, minus_n = self.arith, self.arith.neg(n)
        r = a.fma(minus_n, self.const(LN2_HI[x.elem], x), x)
        return a.fma(minus_n, self.const(LN2_LO[x.elem], x), r)

    def exp_parts(self, x: Val, rounder: Val | None = None) -> tuple[Val, Val, Val]:
        """`n`, as a float and as an exponent, and exp(r) - 1, where x = n * log(2) + r."""
        a = self.arith
        n, exponent, r = self._reduced(x, rounder)
        tail = a.op("fmul", a.op("fmul", r, r), polynomial(self.arith, r, EXP[x.elem]))
        return n, exponent, a.op("fadd", r, tail)

    def power_of_two(self, exponent: Val, elem: str) -> Val:
        """The power of two with an exponent; what a rounder leaves above it is shifted out."""
        a = self.arith
        bits = a.op("shl", exponent, a.const(MANTISSA_BITS[elem], exponent))
        return a.convert("bitcast", bits, elem)

    def lift(self, x: Val, *, never_above_0: bool = False) -> tuple[Val, Val]:
        """A rounder for the exponents of x / log(2), lifted so that all are those of numbers.

        Also the power of two that brings a product down again: its only rounding is the last one.
        The lowest exponent, `_lowest`, stands for 0: a product that underflows takes a hundred
        times as long as others.
        """
        lift = LIFT[x.elem]
        low, down = self.rounder(x, lift), self.const(2.0**-lift, x)
        if never_above_0:
            return low, down
        a, below = self.arith, self.is_negative(x)
        up = self.const(2.0, x)
        return a.select(below, low, self.rounder(x, -1)), a.select(below, down, up)

    def _lowest(self, elem: str) -> float:
        return -(BIAS[elem] + LIFT[elem]) * math.log(2)

    def is_negative(self, x: Val) -> Val:
        """Whether the sign of x is set: blends of x86 test just that."""
        bits = self.arith.convert("bitcast", x, INTEGER[x.elem])
        return self.arith.test("icmp slt", bits, self.arith.const(0, bits))

    def scale(self, x: Val, exponent: Val, down: Val) -> Val:
        """x * 2**exponent * down, rounded once, also where the result is denormal or infinite."""
        a = self.arith
        return a.op("fmul", a.op("fmul", x, self.power_of_two(exponent, x.elem)), down)

    def at_most(self, x: Val, high: float) -> Val:
        """min(x, high); NaN stays."""
        bound = self.const(high, x)
        return self.arith.select(self.arith.test("fcmp olt", bound, x), bound, x)

    def at_least(self, x: Val, low: float) -> Val:
        """max(x, low); NaN stays."""
        bound = self.const(low, x)
        return self.arith.select(self.arith.test("fcmp ogt", bound, x), bound, x)

    def exp(self, x: Val, rest: Val | None = None, *, flushed: bool = False) -> Val:
        """The exponential function, of x and a rest that is smaller than its last place.

        Results that would be denormal are 0 if `flushed`, at no cost.
        """
        a, elem = self.arith, x.elem
        low, high = EXP_RANGE[elem]
        low = LOWEST_NORMAL[elem] if flushed else low
        if has_scalef(a, x):  # which takes n as a float of any size
            kept = a.test("fcmp uge", x, self.const(low, x))
            n, _, growth = self.exp_reduced(self.at_most(x, high), rest)
            return scalef(a, growth, n, kept)
        if flushed and rest is None and a.has_fma and elem == "float":
            return self._exp_without_denormals(x)
        bounded = self.at_least(self.at_most(x, high), low if flushed else self._lowest(elem))
        rounder, down = self.lift(bounded)
        _, exponent, growth = self.exp_reduced(bounded, rest, rounder)
        found = self.scale(growth, exponent, down)
        return self._flush_below(x, low, found) if flushed else found

    def exp_reduced(
        self, x: Val, rest: Val | None, rounder: Val | None = None
    ) -> tuple[Val, Val, Val]:
        """`n`, as a float and as an exponent, and exp(r), where x + rest = n * log(2) + r."""
        a = self.arith
        if rest is None and a.has_fma:
            n, exponent, r = self._reduced(x, rounder)
            return n, exponent, polynomial(self.arith, r, (1.0, 1.0, *EXP[x.elem]))
        n, exponent, more = self.exp_parts(x, rounder)
        if rest is not None:
            more = a.op("fadd", more, a.fma(more, rest, rest))
        return n, exponent, a.op("fadd", self.const(1.0, x), more)

    def _exp_without_denormals(self, x: Val) -> Val:
        """exp of float32s, 0 where that is denormal.

        Where it is not, one product scales it, but for the uppermost power of two: a polynomial
        that is right up to log(2) spares that one. Numbers far below are not bounded: whatever
        they give is dropped.
        """
        a, rounder = self.arith, self.rounder(x)
        shifted = a.fma(x, self.const(1 / math.log(2), x), rounder)
        top = self.rounder(x, BIAS[x.elem])
        shifted = a.select(a.test("fcmp olt", shifted, top), shifted, top)
        r = self._rest(x, a.op("fsub", shifted, rounder))
        growth = polynomial(self.arith, r, (1.0, 1.0, *coefficients.EXP_WIDE_F32))
        power = self.power_of_two(a.convert("bitcast", shifted, INTEGER[x.elem]), x.elem)
        return self._flush_below(x, LOWEST_NORMAL[x.elem], a.op("fmul", growth, power))

    def _flush_below(self, x: Val, low: float, found: Val) -> Val:
        """0 where x is below a number."""
        a = self.arith
        return a.select(a.test("fcmp uge", x, self.const(low, x)), found, self.const(0.0, x))
