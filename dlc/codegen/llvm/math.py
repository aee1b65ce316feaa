"""Elementary functions as IR: polynomials and bit operations, no library calls, no tables.

Largest errors, measured in units in the last place (ULP) by tests/codegen/test_math.py: exp 0.9,
log 0.8, log1p 0.9, sin and cos 1.5 (2.3 of f64 without FMA), sigmoid 2.6, erf 1.5, tanh 3.0,
normcdf of f64 2.4, of f32 4.5 down to -2, then 2.5 more for each unit, and 0 below -8; pow 0.6 (1.1
of f64); without FMA exp 1.0, tanh 3.1, normcdf 3.1. All hold for all arguments; an exponential
without denormals may be off by 1.0 in the uppermost power of two.

Source: the algorithms are those of fdlibm (https://www.netlib.org/fdlibm/): argument reduction by
Cody and Waite, log by way of s = f / (2 + f) in f64; for large angles see `far_angle.py`. The
coefficients are our own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from dlc.codegen.llvm import coefficients, narrow
from dlc.codegen.llvm.arith import Arith
from dlc.codegen.llvm.ir import Val, constant
from dlc.codegen.llvm.normal import normcdf_short
from dlc.codegen.llvm.scalef import has_scalef, scalef
from dlc.codegen.llvm.trig import Trig
from dlc.te.expr import UnOp

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
SIGMOID_LIMIT = 40.0  # far beyond where it rounds to 1
TANH_LIMIT = 40.0  # far beyond where it rounds to 1, and exp does not overflow
# Near 0, and the logarithm of 1 - erf beyond 1, up to where erf rounds to 1.
ERF = {
    "float": (coefficients.ERF_F32, coefficients.LOG_ERFC_F32),
    "double": (coefficients.ERF_F64, coefficients.LOG_ERFC_F64),
}
ERF_LIMIT = {"float": 4.0, "double": 6.0}
NORMCDF_LIMIT = {"float": 14.47, "double": 38.63}  # below minus that there is only 0


class Math:
    """Emits elementary functions for scalars and vectors of f32 and f64."""

    def __init__(self, arith: Arith) -> None:
        self.arith = arith
        self.trig = Trig(arith)

    def unary(self, op: UnOp, x: Val) -> Val:
        """`op(x)` for a float."""
        a = self.arith
        emit: dict[UnOp, Callable[[Val], Val]] = {
            UnOp.EXP: self.exp,
            UnOp.LOG: self.log,
            UnOp.LOG1P: self.log1p,
            UnOp.TANH: self.tanh,
            UnOp.SIGMOID: self.sigmoid,
            UnOp.ERF: self.erf,
            UnOp.NORMCDF: self.normcdf,
            UnOp.NORMCDF_SHORT: lambda x: normcdf_short(a, x),
            UnOp.SIN: lambda x: self.trig.sin_or_cos(x, cos=False),
            UnOp.COS: lambda x: self.trig.sin_or_cos(x, cos=True),
            UnOp.SQRT: lambda x: a.call("sqrt", x),
            UnOp.ABS: lambda x: a.call("fabs", x),
            UnOp.FLOOR: a.floor,
            UnOp.CEIL: lambda x: a.neg(a.floor(a.neg(x))),
            UnOp.ROUND: a.round_even,
            UnOp.LRINT: a.lrint,
            UnOp.FLUSH: lambda x: narrow.flushed(a, x),
            UnOp.TF32: lambda x: narrow.tf32(a, x),
        }
        return emit[op](x)

    def _const(self, value: float, x: Val) -> Val:
        return self.arith.const(value, x)

    def polynomial(self, x: Val, table: Sequence[float]) -> Val:
        """A polynomial by Horner's rule, constant term first."""
        total = self._const(table[-1], x)
        for c in reversed(table[:-1]):
            total = self.arith.fma(total, x, self._const(c, x))
        return total

    # exp and what is made of it.

    def _nearest(self, x: Val, unit: float, rounder: Val | None = None) -> tuple[Val, Val]:
        """The whole number nearest to x / unit: as a float, and as the exponent of a power of two.

        The exponent, bias and all, is in the lowest bits of an integer.
        """
        a, rounder = self.arith, rounder or self._rounder(x)
        shifted = a.fma(x, self._const(1 / unit, x), rounder)
        return a.op("fsub", shifted, rounder), a.convert("bitcast", shifted, INTEGER[x.elem])

    def _rounder(self, x: Val, lift: int = 0) -> Val:
        return self._const(ROUNDER[x.elem] + BIAS[x.elem] + lift, x)

    def _reduced(self, x: Val, rounder: Val | None = None) -> tuple[Val, Val, Val]:
        """`n`, as a float and as an exponent, and r, where x = n * log(2) + r."""
        n, exponent = self._nearest(x, math.log(2), rounder)
        return n, exponent, self._rest(x, n)

    def _rest(self, x: Val, n: Val) -> Val:
        """x - n * log(2)."""
        a, minus_n = self.arith, self.arith.neg(n)
        r = a.fma(minus_n, self._const(LN2_HI[x.elem], x), x)
        return a.fma(minus_n, self._const(LN2_LO[x.elem], x), r)

    def _exp_parts(self, x: Val, rounder: Val | None = None) -> tuple[Val, Val, Val]:
        """The same with exp(r) - 1 for r."""
        a = self.arith
        n, exponent, r = self._reduced(x, rounder)
        tail = a.op("fmul", a.op("fmul", r, r), self.polynomial(r, EXP[x.elem]))
        return n, exponent, a.op("fadd", r, tail)

    def _power_of_two(self, exponent: Val, elem: str) -> Val:
        """The power of two with an exponent; what a rounder leaves above it is shifted out."""
        a = self.arith
        bits = a.op("shl", exponent, a.const(MANTISSA_BITS[elem], exponent))
        return a.convert("bitcast", bits, elem)

    def _lift(self, x: Val, *, never_above_0: bool = False) -> tuple[Val, Val]:
        """A rounder for the exponents of x / log(2), lifted so that all are those of numbers.

        Also the power of two that brings a product down again: its only rounding is the last one.
        The lowest exponent, `_lowest`, stands for 0: a product that underflows takes a hundred
        times as long as others.
        """
        lift = LIFT[x.elem]
        low, down = self._rounder(x, lift), self._const(2.0**-lift, x)
        if never_above_0:
            return low, down
        a, below = self.arith, self._is_negative(x)
        up = self._const(2.0, x)
        return a.select(below, low, self._rounder(x, -1)), a.select(below, down, up)

    def _lowest(self, elem: str) -> float:
        return -(BIAS[elem] + LIFT[elem]) * math.log(2)

    def _is_negative(self, x: Val) -> Val:
        """Whether the sign of x is set: blends of x86 test just that."""
        bits = self.arith.convert("bitcast", x, INTEGER[x.elem])
        return self.arith.test("icmp slt", bits, self.arith.const(0, bits))

    def _scale(self, x: Val, exponent: Val, down: Val) -> Val:
        """x * 2**exponent * down, rounded once, also where the result is denormal or infinite."""
        a = self.arith
        return a.op("fmul", a.op("fmul", x, self._power_of_two(exponent, x.elem)), down)

    def _at_most(self, x: Val, high: float) -> Val:
        """min(x, high); NaN stays."""
        bound = self._const(high, x)
        return self.arith.select(self.arith.test("fcmp olt", bound, x), bound, x)

    def _at_least(self, x: Val, low: float) -> Val:
        bound = self._const(low, x)
        return self.arith.select(self.arith.test("fcmp ogt", bound, x), bound, x)

    def exp(self, x: Val, rest: Val | None = None, *, flushed: bool = False) -> Val:
        """The exponential function, of x and a rest that is smaller than its last place.

        Results that would be denormal are 0 if `flushed`, at no cost.
        """
        a, elem = self.arith, x.elem
        low, high = EXP_RANGE[elem]
        low = LOWEST_NORMAL[elem] if flushed else low
        if has_scalef(a, x):  # which takes n as a float of any size
            kept = a.test("fcmp uge", x, self._const(low, x))
            n, _, growth = self._exp_reduced(self._at_most(x, high), rest)
            return scalef(a, growth, n, kept)
        if flushed and rest is None and a.has_fma and elem == "float":
            return self._exp_without_denormals(x)
        bounded = self._at_least(self._at_most(x, high), low if flushed else self._lowest(elem))
        rounder, down = self._lift(bounded)
        _, exponent, growth = self._exp_reduced(bounded, rest, rounder)
        found = self._scale(growth, exponent, down)
        return self._flush_below(x, low, found) if flushed else found

    def _exp_reduced(
        self, x: Val, rest: Val | None, rounder: Val | None = None
    ) -> tuple[Val, Val, Val]:
        """`n`, as a float and as an exponent, and exp(r), where x + rest = n * log(2) + r."""
        a = self.arith
        if rest is None and a.has_fma:
            n, exponent, r = self._reduced(x, rounder)
            return n, exponent, self.polynomial(r, (1.0, 1.0, *EXP[x.elem]))
        n, exponent, more = self._exp_parts(x, rounder)
        if rest is not None:
            more = a.op("fadd", more, a.fma(more, rest, rest))
        return n, exponent, a.op("fadd", self._const(1.0, x), more)

    def _exp_without_denormals(self, x: Val) -> Val:
        """exp of float32s, 0 where that is denormal.

        Where it is not, one product scales it, but for the uppermost power of two: a polynomial
        that is right up to log(2) spares that one. Numbers far below are not bounded: whatever
        they give is dropped.
        """
        a, rounder = self.arith, self._rounder(x)
        shifted = a.fma(x, self._const(1 / math.log(2), x), rounder)
        top = self._rounder(x, BIAS[x.elem])
        shifted = a.select(a.test("fcmp olt", shifted, top), shifted, top)
        r = self._rest(x, a.op("fsub", shifted, rounder))
        growth = self.polynomial(r, (1.0, 1.0, *coefficients.EXP_WIDE_F32))
        power = self._power_of_two(a.convert("bitcast", shifted, INTEGER[x.elem]), x.elem)
        return self._flush_below(x, LOWEST_NORMAL[x.elem], a.op("fmul", growth, power))

    def _flush_below(self, x: Val, low: float, found: Val) -> Val:
        """0 where x is below a number."""
        a = self.arith
        return a.select(a.test("fcmp uge", x, self._const(low, x)), found, self._const(0.0, x))

    def sigmoid(self, x: Val) -> Val:
        """1 / (1 + exp(-x)), both scaled down by a power of two, so that the sum stays finite.

        Where that is small it is about exp(x), and as exact as exp(-x) is: nothing cancels. The
        highest exponent, that of infinity, stands for 0, so that what is far below does not
        underflow.
        """
        a, elem = self.arith, x.elem
        y = self._at_most(x, SIGMOID_LIMIT)
        y = self._at_least(y, -(BIAS[elem] + 1 + LIFT[elem]) * math.log(2))
        rounder, unit = self._rounder(x, -LIFT[elem]), self._const(2.0 ** -LIFT[elem], x)
        _, exponent, growth = self._exp_reduced(a.neg(y), None, rounder)
        return a.op("fdiv", unit, a.fma(growth, self._power_of_two(exponent, elem), unit))

    def tanh(self, x: Val) -> Val:
        """t / (t + 2) with t = exp(2 |x|) - 1, and x's sign.

        An error of t counts for less the larger it is, so one float will do for log(2). With s the
        half of what is left of 2 |x|, exp(2 s) - 1 is s + s (1 + 2 s + ...), which rounds less
        than s (2 + 2 s + ...).
        """
        a, one = self.arith, self._const(1.0, x)
        y = self._at_most(a.call("fabs", x), TANH_LIMIT)
        half_ln2 = math.log(2) / 2
        n, exponent = self._nearest(y, half_ln2)
        s = a.fma(a.neg(n), self._const(half_ln2, x), y)
        table = (1.0, *(c * 2.0**k for k, c in enumerate(EXP[x.elem], 2)))
        growth = a.fma(s, self.polynomial(s, table), s)
        power = self._power_of_two(exponent, x.elem)
        t = a.fma(growth, power, a.op("fsub", power, one))
        return a.with_sign(a.op("fdiv", t, a.op("fadd", t, self._const(2.0, x))), x)

    def erf(self, x: Val) -> Val:
        """A polynomial up to 1, else 1 - exp(p(x)).

        That is at least 0.84, exp at most 0.16: its errors count little, as those of one float for
        log(2).
        """
        a = self.arith
        size = a.call("fabs", x)
        near_table, far_table = ERF[x.elem]
        # x + x * (p - 1) loses less than x * p.
        table = (near_table[0] - 1.0, *near_table[1:])
        near = a.fma(x, self.polynomial(a.op("fmul", x, x), table), x)
        y = self._at_most(size, ERF_LIMIT[x.elem])
        power, one = self.polynomial(y, far_table), self._const(1.0, x)
        n, exponent = self._nearest(power, math.log(2))
        r = a.fma(a.neg(n), self._const(math.log(2), x), power)
        growth = self.polynomial(r, (1.0, 1.0, *EXP[x.elem]))
        far = a.fma(a.neg(growth), self._power_of_two(exponent, x.elem), one)
        far = a.with_sign(far, x)
        return a.select(a.test("fcmp olt", size, one), near, far)

    def normcdf(self, x: Val) -> Val:
        """The share of a normal distribution below x, to the last digits where it is near 0, too.

        Below 0 it is exp(-x**2 / 2) R(-x) with a smooth R, a polynomial in t = 1 / (1 + 0.3 |x|);
        what its factors lose by rounding, and x**2 and t, is made good at the end.

        Source: the form is that of W. J. Cody, "Rational Chebyshev approximations for the error
        function", Math. Comp. 23 (1969).
        """
        a, one, half = self.arith, self._const(1.0, x), self._const(0.5, x)
        if a.has_fma and x.elem == "float":
            return self._normcdf_by_logarithm(x)
        limit = NORMCDF_LIMIT[x.elem]
        size = a.call("fabs", x)
        y = self._at_most(size, limit)
        square, lost = self._product(y, y)
        minus_half = a.neg(half)
        rounder, down = self._lift(x, never_above_0=True)
        n, exponent, more = self._exp_parts(a.op("fmul", square, minus_half), rounder)
        total = a.op("fadd", one, more)
        slope = self._const(coefficients.NORMCDF_SLOPE[x.elem], x)
        divisor = a.fma(y, slope, one)
        t = a.op("fdiv", one, divisor)
        off = a.fma(y, slope, a.op("fsub", one, divisor))
        off = a.fma(a.neg(t), off, a.fma(a.neg(t), divisor, one))
        table = coefficients.NORMCDF_F32 if x.elem == "float" else coefficients.NORMCDF_F64
        ratio, ratio_rest = self._product(t, self.polynomial(a.op("fsub", t, half), table))
        share = a.fma(lost, minus_half, a.op("fadd", off, off))
        rest = a.fma(ratio, a.fma(total, share, more), ratio_rest)
        share = a.op("fadd", ratio, rest)
        if has_scalef(a, x):
            below = scalef(a, share, n, a.test("fcmp uge", self._const(limit, x), size))
        else:
            below = self._scale(share, exponent, down)
        return a.select(a.test("fcmp olt", x, self._const(0.0, x)), below, a.op("fsub", one, below))

    def _normcdf_by_logarithm(self, x: Val) -> Val:
        """The share below a float32, by way of exp(s - x**2 / 2) with a polynomial s in |x|.

        The whole multiples of log(2) are subtracted from the square before it is rounded. Nothing
        is divided and nothing made good, so that this takes half of the operations; below
        -`LOG_NORMCDF_LIMIT`, where less than 2**-50 is left, it is 0.
        """
        a = self.arith
        size = a.call("fabs", x)
        place = a.op("fsub", size, self._const(coefficients.LOG_NORMCDF_CENTRE, x))
        slow = self.polynomial(place, coefficients.LOG_NORMCDF_F32)
        minus_half = a.op("fmul", size, self._const(-0.5, x))
        n, exponent = self._nearest(a.fma(minus_half, size, slow), math.log(2))
        high = a.op("fmul", n, self._const(-LN2_HI[x.elem], x))
        r = a.op("fadd", a.fma(minus_half, size, high), slow)
        r = a.fma(n, self._const(-LN2_LO[x.elem], x), r)
        growth = self.polynomial(r, (1.0, 1.0, *EXP[x.elem]))
        below = a.op("fmul", growth, self._power_of_two(exponent, x.elem))
        limit, zero = self._const(coefficients.LOG_NORMCDF_LIMIT, x), self._const(0.0, x)
        below = a.select(a.test("fcmp ogt", size, limit), zero, below)
        above = a.op("fsub", self._const(1.0, x), below)
        return a.select(self._is_negative(x), below, above)

    def _product(self, x: Val, y: Val) -> tuple[Val, Val]:
        """x * y rounded, and what it lost by that."""
        a = self.arith
        product = a.op("fmul", x, y)
        if a.has_fma:
            return product, a.fma(x, y, a.neg(product))
        (x1, x2), (y1, y2) = self.halves(x), self.halves(y)
        lost = a.op("fsub", a.op("fmul", x1, y1), product)
        lost = a.op("fadd", lost, a.op("fmul", x1, y2))
        lost = a.op("fadd", lost, a.op("fmul", x2, y1))
        return product, a.op("fadd", lost, a.op("fmul", x2, y2))

    def halves(self, x: Val) -> tuple[Val, Val]:
        """x as a sum of two floats of half the digits, whose products are exact."""
        a, elem = self.arith, x.elem
        bits = a.convert("bitcast", x, INTEGER[elem])
        mask = -1 << (MANTISSA_BITS[elem] + 2) // 2
        high = a.convert("bitcast", a.op("and", bits, a.const(mask, bits)), elem)
        return high, a.op("fsub", x, high)

    # log.

    def log(self, x: Val, rest: Val | None = None) -> Val:
        """The natural logarithm, of x and a rest that is smaller than its last place."""
        a = self.arith
        found = self._log_positive(x, rest)
        zero, infinity = self._const(0.0, x), self._const(math.inf, x)
        found = a.select(a.test("fcmp oeq", x, zero), self._const(-math.inf, x), found)
        found = a.select(a.test("fcmp olt", x, zero), self._const(math.nan, x), found)
        # infinity and NaN are their own logarithms
        return a.select(a.test("fcmp ult", x, infinity), self._keep_nan(x, found), x)

    def log1p(self, x: Val) -> Val:
        """log(1 + x), with what the sum loses by rounding; -0 stays.

        Source: the rest of a sum is that of D. E. Knuth, The Art of Computer Programming 2,
        4.2.2, theorem B.
        """
        a, one = self.arith, self._const(1.0, x)
        total = a.op("fadd", one, x)
        added = a.op("fsub", total, one)
        rest = a.op("fsub", one, a.op("fsub", total, added))
        rest = a.op("fadd", rest, a.op("fsub", x, added))
        return a.call("copysign", self.log(total, rest), x)

    def _keep_nan(self, x: Val, found: Val) -> Val:
        return self.arith.select(self.arith.is_nan(x), x, found)

    def _log_positive(self, x: Val, rest: Val | None) -> Val:
        """log(x + rest) for finite x above 0."""
        a, elem = self.arith, x.elem
        f, exponent = self.mantissa_and_exponent(x)
        half_square = a.op("fmul", a.op("fmul", f, f), self._const(0.5, x))
        tail = self._log_tail(f, half_square)
        if rest is not None:
            tail = a.op("fadd", tail, a.op("fdiv", rest, x))
        low = a.fma(exponent, self._const(LN2_LO[elem], x), tail)
        inner = a.op("fsub", f, a.op("fsub", half_square, low))
        return a.fma(exponent, self._const(LN2_HI[elem], x), inner)

    def mantissa_and_exponent(self, x: Val) -> tuple[Val, Val]:
        """f and k with x = 2**k * (1 + f), where 1 + f is between sqrt(1/2) and sqrt(2)."""
        a, elem = self.arith, x.elem
        bits, kind = MANTISSA_BITS[elem], INTEGER[elem]
        smallest = self._const(2.0 ** (1 - BIAS[elem]), x)
        tiny = a.test("fcmp olt", x, smallest)
        x = a.select(tiny, a.op("fmul", x, self._const(2.0**bits, x)), x)
        whole = a.convert("bitcast", x, kind)
        # The bits of sqrt(1/2): the mantissa is brought into [sqrt(1/2), sqrt(2)).
        root = a.const(0x3F3504F3 if kind == "i32" else 0x3FE6A09E667F3BCD, whole)
        k = a.op("ashr", a.op("sub", whole, root), a.const(bits, whole))
        mantissa = a.op("sub", whole, a.op("shl", k, a.const(bits, whole)))
        f = a.op("fsub", a.convert("bitcast", mantissa, elem), self._const(1.0, x))
        exponent = self._small_integer(k, elem)
        lift = a.select(tiny, self._const(-float(bits), x), self._const(0.0, x))
        return f, a.op("fadd", exponent, lift)

    def _small_integer(self, k: Val, elem: str) -> Val:
        """An integer as a float; 64-bit integers by bits, since few CPUs can convert them."""
        a = self.arith
        if elem == "float":
            return a.convert("sitofp", k, elem)
        rounder = constant(ROUNDER[elem], elem, k.lanes)
        start = a.convert("bitcast", rounder, "i64")
        return a.op("fsub", a.convert("bitcast", a.op("add", k, start), elem), rounder)

    def _log_tail(self, f: Val, half_square: Val) -> Val:
        """log(1 + f) - f + f**2 / 2."""
        a = self.arith
        if f.elem == "float":
            cube = a.op("fmul", a.op("fmul", f, f), f)
            return a.op("fmul", cube, self.polynomial(f, coefficients.LOG_F32))
        s = a.op("fdiv", f, a.op("fadd", f, self._const(2.0, f)))
        z = a.op("fmul", s, s)
        rest = a.op("fmul", z, self.polynomial(z, coefficients.LOG_F64))
        return a.op("fmul", s, a.op("fadd", half_square, rest))
