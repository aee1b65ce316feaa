"""Elementary functions as IR: polynomials and bit operations, no library calls, no tables.

Largest errors, measured in units in the last place (ULP) by tests/codegen/test_math.py: exp 0.9,
log 0.8, log1p 0.9, sin and cos 1.5 (1.7 of f64 without FMA), sigmoid 1.7, erf 1.5, tanh 1.1,
normcdf 2.4, pow 0.6 (1.1 of f64); without FMA exp 1.0, tanh 1.3, normcdf 3.1. All hold for all
arguments.

Source: the algorithms are those of fdlibm (https://www.netlib.org/fdlibm/): argument reduction by
Cody and Waite, log by way of s = f / (2 + f) in f64; for large angles see `far_angle.py`. The
coefficients are our own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from dlc.codegen.llvm import coefficients, narrow
from dlc.codegen.llvm.arith import Arith
from dlc.codegen.llvm.ir import Val, constant, type_of
from dlc.codegen.llvm.normal import normcdf_short
from dlc.codegen.llvm.trig import Trig
from dlc.te.expr import UnOp

LN2_HI = {"float": 0.693145751953125, "double": 6.93147180369123816490e-01}
LN2_LO = {"float": 1.42860682030941723212e-6, "double": 1.90821492927058770002e-10}
# Results of exp beyond these are infinite, or zero.
EXP_RANGE = {"float": (-104.0, 88.75), "double": (-746.0, 709.8)}
# The lowest numbers whose exp is no denormal.
LOWEST_NORMAL = {"float": -87.33654022216797, "double": -708.3964185322641}
# Adding this to a number rounds it to an integer, which then lies in the lowest bits.
ROUNDER = {"float": 1.5 * 2.0**23, "double": 1.5 * 2.0**52}
MANTISSA_BITS = {"float": 23, "double": 52}
INTEGER = {"float": "i32", "double": "i64"}
BIAS = {"float": 127, "double": 1023}
SCALEF_LANES = {"float": 16, "double": 8}
EXP = {"float": coefficients.EXP_F32, "double": coefficients.EXP_F64}
TANH = {"float": coefficients.TANH_F32, "double": coefficients.TANH_F64}
TANH_LIMIT = 0.7  # up to where tanh is a polynomial
# Near 0, and the logarithm of 1 - erf beyond 1, up to where erf rounds to 1.
ERF = {
    "float": (coefficients.ERF_F32, coefficients.LOG_ERFC_F32),
    "double": (coefficients.ERF_F64, coefficients.LOG_ERFC_F64),
}
ERF_LIMIT = {"float": 4.0, "double": 6.0}
NORMCDF_LIMIT = {"float": 14.25, "double": 38.6}  # below minus that there is only 0


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

    def _nearest(self, x: Val, unit: float) -> tuple[Val, Val]:
        """The whole number nearest to x / unit: as a float, and as the exponent of a power of two.

        The exponent, bias and all, is in the lowest bits of an integer.
        """
        a, rounder = self.arith, self._rounder(x)
        shifted = a.fma(x, self._const(1 / unit, x), rounder)
        return a.op("fsub", shifted, rounder), a.convert("bitcast", shifted, INTEGER[x.elem])

    def _rounder(self, x: Val) -> Val:
        return self._const(ROUNDER[x.elem] + BIAS[x.elem], x)

    def _reduced(self, x: Val) -> tuple[Val, Val, Val]:
        """`n`, as a float and as an exponent, and r, where x = n * log(2) + r."""
        a, elem = self.arith, x.elem
        n, exponent = self._nearest(x, math.log(2))
        minus_n = a.neg(n)
        r = a.fma(minus_n, self._const(LN2_HI[elem], x), x)
        return n, exponent, a.fma(minus_n, self._const(LN2_LO[elem], x), r)

    def _exp_parts(self, x: Val) -> tuple[Val, Val, Val]:
        """The same with exp(r) - 1 for r."""
        a = self.arith
        n, exponent, r = self._reduced(x)
        tail = a.op("fmul", a.op("fmul", r, r), self.polynomial(r, EXP[x.elem]))
        return n, exponent, a.op("fadd", r, tail)

    def _power_of_two(self, exponent: Val, elem: str) -> Val:
        """The power of two with an exponent; what a rounder leaves above it is shifted out."""
        a = self.arith
        bits = a.op("shl", exponent, a.const(MANTISSA_BITS[elem], exponent))
        return a.convert("bitcast", bits, elem)

    def _scale(self, x: Val, n: Val, exponent: Val, kept: Val) -> Val:
        """x * 2**n, rounded once, also where the result is denormal or infinite; 0 if not `kept`.

        A product that underflows takes a hundred times as long as others, and all those that are
        masked out of a softmax would.
        """
        a = self.arith
        if self._has_scalef(x):
            return self._scalef(x, n, kept)
        start = a.convert("bitcast", self._rounder(x), exponent.elem)
        half_n = a.op("ashr", a.op("sub", exponent, start), a.const(1, start))
        first = a.op("add", half_n, a.const(BIAS[x.elem], start))
        second = self._power_of_two(a.op("sub", exponent, half_n), x.elem)
        half = a.op("fmul", x, self._power_of_two(first, x.elem))
        return a.op("fmul", half, a.select(kept, second, self._const(0.0, x)))

    def _has_scalef(self, x: Val) -> bool:
        """Whether AVX-512's vscalef takes this many lanes."""
        target = self.arith.target
        whole = bool(x.lanes) and x.lanes % SCALEF_LANES[x.elem] == 0
        return "avx512f" in target.features and self.arith.is_x86 and whole

    def _scalef(self, x: Val, n: Val, kept: Val) -> Val:
        """The same by AVX-512's vscalef, one register at a time."""
        builder, width = self.arith.builder, SCALEF_LANES[x.elem]
        kind = type_of(x.elem, width)
        name = f"llvm.x86.avx512.mask.scalef.{'ps' if width == 16 else 'pd'}.512"
        mask = f"i{width}"
        builder.declarations.use(name, kind, f"{kind}, {kind}, {kind}, {mask}, i32")
        parts = []
        for first in range(0, x.lanes, width):
            one, two, lanes = (self._lanes(v, first, width) for v in (x, n, kept))
            chosen = builder.op(f"bitcast {lanes} to {mask}", mask)
            operands = f"{one}, {two}, {kind} zeroinitializer, {chosen}, i32 4"
            parts.append(builder.op(f"call {kind} @{name}({operands})", x.elem, width))
        return self._join(parts)

    def _lanes(self, x: Val, first: int, count: int) -> Val:
        if count == x.lanes:
            return x
        picked = ", ".join(f"i32 {first + n}" for n in range(count))
        text = f"shufflevector {x}, {x.type} poison, <{count} x i32> <{picked}>"
        return self.arith.builder.op(text, x.elem, count)

    def _join(self, parts: list[Val]) -> Val:
        """Vectors one behind the other; each step joins all so far with the next."""
        total = parts[0]
        for part in parts[1:]:
            lanes = total.lanes + part.lanes
            wide = self._widen(part, total.lanes)
            picked = ", ".join(f"i32 {n}" for n in range(lanes))
            text = f"shufflevector {total}, {wide}, <{lanes} x i32> <{picked}>"
            total = self.arith.builder.op(text, part.elem, lanes)
        return total

    def _widen(self, x: Val, lanes: int) -> Val:
        if x.lanes == lanes:
            return x
        picked = ", ".join(f"i32 {n}" if n < x.lanes else "i32 poison" for n in range(lanes))
        text = f"shufflevector {x}, {x.type} poison, <{lanes} x i32> <{picked}>"
        return self.arith.builder.op(text, x.elem, lanes)

    def _at_most(self, x: Val, high: float) -> Val:
        """min(x, high); NaN stays."""
        bound = self._const(high, x)
        return self.arith.select(self.arith.test("fcmp olt", bound, x), bound, x)

    def _at_least(self, x: Val, low: float) -> Val:
        bound = self._const(low, x)
        return self.arith.select(self.arith.test("fcmp ogt", bound, x), bound, x)

    def exp(
        self,
        x: Val,
        rest: Val | None = None,
        *,
        never_above_0: bool = False,
        flushed: bool = False,
    ) -> Val:
        """The exponential function, of x and a rest that is smaller than its last place.

        Results that would be denormal are 0 if `flushed`, at no cost.
        """
        a = self.arith
        low, high = EXP_RANGE[x.elem]
        low = LOWEST_NORMAL[x.elem] if flushed else low
        kept = a.test("fcmp uge", x, self._const(low, x))
        bounded = x if never_above_0 else self._at_most(x, high)
        if not self._has_scalef(x):  # which takes n as a float of any size
            bounded = self._at_least(bounded, low)
        if rest is None and a.has_fma:
            n, exponent, r = self._reduced(bounded)
            return self._scale(self.polynomial(r, (1.0, 1.0, *EXP[x.elem])), n, exponent, kept)
        n, exponent, more = self._exp_parts(bounded)
        if rest is not None:
            more = a.op("fadd", more, a.fma(more, rest, rest))
        return self._scale(a.op("fadd", self._const(1.0, x), more), n, exponent, kept)

    def sigmoid(self, x: Val) -> Val:
        """1 / (1 + exp(-x)), by way of z = exp(-|x|), which cannot overflow.

        Above 0 that is y = d / (1 + z) with d = 1, below with d = z. The quotient is off by what
        1 + z and the division lose by rounding; d - z y is y again, but off by z times as much.
        """
        a, one = self.arith, self._const(1.0, x)
        z = self.exp(a.neg(a.call("fabs", x)), never_above_0=True)
        below = a.test("fcmp olt", x, self._const(0.0, x))
        dividend = a.select(below, z, one)
        quotient = a.op("fdiv", dividend, a.op("fadd", one, z))
        return a.fma(a.neg(quotient), z, dividend)

    def tanh(self, x: Val) -> Val:
        """A polynomial near 0, else 1 - 2 / (1 + e) with e = exp(2 |x|), and x's sign.

        An error of e counts for less the larger it is, so one float will do for log(2).
        """
        a, one, two = self.arith, self._const(1.0, x), self._const(2.0, x)
        y = self._at_most(a.call("fabs", x), 40.0)
        z = a.op("fmul", y, y)
        near = a.fma(a.op("fmul", y, z), self.polynomial(z, TANH[x.elem]), y)
        half_ln2 = math.log(2) / 2
        n, exponent = self._nearest(y, half_ln2)
        half_r = a.fma(a.neg(n), self._const(half_ln2, x), y)
        table = (1.0, 1.0, *EXP[x.elem])
        growth = self.polynomial(half_r, [c * 2.0**k for k, c in enumerate(table)])
        divisor = a.fma(growth, self._power_of_two(exponent, x.elem), one)
        far = a.op("fsub", one, a.op("fdiv", two, divisor))
        close = a.test("fcmp olt", y, self._const(TANH_LIMIT, x))
        return a.call("copysign", a.select(close, near, far), x)

    def erf(self, x: Val) -> Val:
        """A polynomial up to 1, else 1 - exp(p(x))."""
        a = self.arith
        size = a.call("fabs", x)
        near_table, far_table = ERF[x.elem]
        # x + x * (p - 1) loses less than x * p.
        table = (near_table[0] - 1.0, *near_table[1:])
        near = a.fma(x, self.polynomial(a.op("fmul", x, x), table), x)
        y = self._at_most(size, ERF_LIMIT[x.elem])
        _, exponent, more = self._exp_parts(self.polynomial(y, far_table))
        one = self._const(1.0, x)
        total = a.op("fadd", one, more)
        far = a.fma(a.neg(total), self._power_of_two(exponent, x.elem), one)
        far = a.call("copysign", far, x)
        return a.select(a.test("fcmp olt", size, one), near, far)

    def normcdf(self, x: Val) -> Val:
        """The share of a normal distribution below x, to the last digits where it is near 0, too.

        Below 0 it is exp(-x**2 / 2) R(-x) with a smooth R, a polynomial in t = 1 / (1 + 0.3 |x|);
        what its factors lose by rounding, and x**2 and t, is made good at the end.

        Source: the form is that of W. J. Cody, "Rational Chebyshev approximations for the error
        function", Math. Comp. 23 (1969).
        """
        a, one, half = self.arith, self._const(1.0, x), self._const(0.5, x)
        limit = NORMCDF_LIMIT[x.elem]
        size = a.call("fabs", x)
        y = self._at_most(size, limit)
        square, lost = self._product(y, y)
        minus_half = a.neg(half)
        n, exponent, more = self._exp_parts(a.op("fmul", square, minus_half))
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
        kept = a.test("fcmp uge", self._const(limit, x), size)
        below = self._scale(a.op("fadd", ratio, rest), n, exponent, kept)
        return a.select(a.test("fcmp olt", x, self._const(0.0, x)), below, a.op("fsub", one, below))

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
