"""Elementary functions as IR: polynomials and bit operations, no library calls, no tables.

Largest errors, measured in units in the last place (ULP) by tests/codegen/test_math.py: exp 0.9,
log 0.8, log1p 0.9, sin and cos 1.5 (2.3 of f64 without FMA), sigmoid 2.6, erf 1.5, tanh 3.0,
normcdf of f64 2.4, of f32 4 + 2 x**2 down to -6, below that off by 2**-29 at most and 0 below -13;
pow 0.6 (1.1 of f64); without FMA exp 1.0, tanh 3.1, normcdf 3.1. All hold for all arguments; an
exponential without denormals may be off by 1.0 in the uppermost power of two.

Source: the algorithms are those of fdlibm (https://www.netlib.org/fdlibm/): argument reduction by
Cody and Waite, log by way of s = f / (2 + f) in f64; for large angles see `far_angle.py`. The
coefficients are our own.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from dlc.codegen.llvm import coefficients, narrow
from dlc.codegen.llvm.arith import Arith
from dlc.codegen.llvm.exponential import (
    BIAS,
    EXP,
    INTEGER,
    LIFT,
    LN2_HI,
    LN2_LO,
    MANTISSA_BITS,
    ROUNDER,
    Exponential,
)
from dlc.codegen.llvm.ir import Val, constant
from dlc.codegen.llvm.normal import normcdf, normcdf_short
from dlc.codegen.llvm.polynomial import polynomial
from dlc.codegen.llvm.trig import Trig
from dlc.te.expr import UnOp

SIGMOID_LIMIT = 40.0  # far beyond where it rounds to 1
TANH_LIMIT = 40.0  # far beyond where it rounds to 1, and exp does not overflow
# Near 0, and the logarithm of 1 - erf beyond 1, up to where erf rounds to 1.
ERF = {
    "float": (coefficients.ERF_F32, coefficients.LOG_ERFC_F32),
    "double": (coefficients.ERF_F64, coefficients.LOG_ERFC_F64),
}
ERF_LIMIT = {"float": 4.0, "double": 6.0}


class Math(Exponential):
    """Emits elementary functions for scalars and vectors of f32 and f64."""

    def __init__(self, arith: Arith) -> None:
        super().__init__(arith)
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
            UnOp.NORMCDF: lambda x: normcdf(self, x),
            UnOp.NORMCDF_SHORT: lambda x: normcdf_short(self, x),
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

    def sigmoid(self, x: Val) -> Val:
        """1 / (1 + exp(-x)), both scaled down by a power of two, so that the sum stays finite.

        Where that is small it is about exp(x), and as exact as exp(-x) is: nothing cancels. The
        highest exponent, that of infinity, stands for 0, so that what is far below does not
        underflow.
        """
        a, elem = self.arith, x.elem
        y = self.at_most(x, SIGMOID_LIMIT)
        y = self.at_least(y, -(BIAS[elem] + 1 + LIFT[elem]) * math.log(2))
        rounder, unit = self.rounder(x, -LIFT[elem]), self.const(2.0 ** -LIFT[elem], x)
        _, exponent, growth = self.exp_reduced(a.neg(y), None, rounder)
        return a.op("fdiv", unit, a.fma(growth, self.power_of_two(exponent, elem), unit))

    def tanh(self, x: Val) -> Val:
        """t / (t + 2) with t = exp(2 |x|) - 1, and x's sign.

        An error of t counts for less the larger it is, so one float will do for log(2). With s the
        half of what is left of 2 |x|, exp(2 s) - 1 is s + s (1 + 2 s + ...), which rounds less
        than s (2 + 2 s + ...).
        """
        a, one = self.arith, self.const(1.0, x)
        y = self.at_most(a.call("fabs", x), TANH_LIMIT)
        half_ln2 = math.log(2) / 2
        n, exponent = self.nearest(y, half_ln2)
        s = a.fma(a.neg(n), self.const(half_ln2, x), y)
        table = (1.0, *(c * 2.0**k for k, c in enumerate(EXP[x.elem], 2)))
        growth = a.fma(s, polynomial(self.arith, s, table), s)
        power = self.power_of_two(exponent, x.elem)
        t = a.fma(growth, power, a.op("fsub", power, one))
        return a.with_sign(a.op("fdiv", t, a.op("fadd", t, self.const(2.0, x))), x)

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
        near = a.fma(x, polynomial(self.arith, a.op("fmul", x, x), table), x)
        y = self.at_most(size, ERF_LIMIT[x.elem])
        power, one = polynomial(self.arith, y, far_table), self.const(1.0, x)
        n, exponent = self.nearest(power, math.log(2))
        r = a.fma(a.neg(n), self.const(math.log(2), x), power)
        growth = polynomial(self.arith, r, (1.0, 1.0, *EXP[x.elem]))
        far = a.fma(a.neg(growth), self.power_of_two(exponent, x.elem), one)
        far = a.with_sign(far, x)
        return a.select(a.test("fcmp olt", size, one), near, far)

    # log.

    def log(self, x: Val, rest: Val | None = None) -> Val:
        """The natural logarithm, of x and a rest that is smaller than its last place."""
        a = self.arith
        found = self._log_positive(x, rest)
        zero, infinity = self.const(0.0, x), self.const(math.inf, x)
        found = a.select(a.test("fcmp oeq", x, zero), self.const(-math.inf, x), found)
        found = a.select(a.test("fcmp olt", x, zero), self.const(math.nan, x), found)
        # infinity and NaN are their own logarithms
        return a.select(a.test("fcmp ult", x, infinity), self._keep_nan(x, found), x)

    def log1p(self, x: Val) -> Val:
        """log(1 + x), with what the sum loses by rounding; -0 stays.

        Source: the rest of a sum is that of D. E. Knuth, The Art of Computer Programming 2,
        4.2.2, theorem B.
        """
        a, one = self.arith, self.const(1.0, x)
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
        half_square = a.op("fmul", a.op("fmul", f, f), self.const(0.5, x))
        tail = self._log_tail(f, half_square)
        if rest is not None:
            tail = a.op("fadd", tail, a.op("fdiv", rest, x))
        low = a.fma(exponent, self.const(LN2_LO[elem], x), tail)
        inner = a.op("fsub", f, a.op("fsub", half_square, low))
        return a.fma(exponent, self.const(LN2_HI[elem], x), inner)

    def mantissa_and_exponent(self, x: Val) -> tuple[Val, Val]:
        """f and k with x = 2**k * (1 + f), where 1 + f is between sqrt(1/2) and sqrt(2)."""
        a, elem = self.arith, x.elem
        bits, kind = MANTISSA_BITS[elem], INTEGER[elem]
        smallest = self.const(2.0 ** (1 - BIAS[elem]), x)
        tiny = a.test("fcmp olt", x, smallest)
        x = a.select(tiny, a.op("fmul", x, self.const(2.0**bits, x)), x)
        whole = a.convert("bitcast", x, kind)
        # The bits of sqrt(1/2): the mantissa is brought into [sqrt(1/2), sqrt(2)).
        root = a.const(0x3F3504F3 if kind == "i32" else 0x3FE6A09E667F3BCD, whole)
        k = a.op("ashr", a.op("sub", whole, root), a.const(bits, whole))
        mantissa = a.op("sub", whole, a.op("shl", k, a.const(bits, whole)))
        f = a.op("fsub", a.convert("bitcast", mantissa, elem), self.const(1.0, x))
        exponent = self._small_integer(k, elem)
        lift = a.select(tiny, self.const(-float(bits), x), self.const(0.0, x))
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
            return a.op("fmul", cube, polynomial(self.arith, f, coefficients.LOG_F32))
        s = a.op("fdiv", f, a.op("fadd", f, self.const(2.0, f)))
        z = a.op("fmul", s, s)
        rest = a.op("fmul", z, polynomial(self.arith, z, coefficients.LOG_F64))
        return a.op("fmul", s, a.op("fadd", half_square, rest))
