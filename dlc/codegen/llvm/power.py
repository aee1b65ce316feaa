"""Powers: of floats by way of logarithms, of integers by squaring.

float64 takes the logarithm as a sum of two floats, because its error counts as often as the
exponent of the result is large: y * log(x) is up to 709, of which 10 bits stand before the point.

Source: the sums of two floats are those of Dekker, "A floating-point technique for extending the
available precision", Numer. Math. 18 (1971).
"""

from __future__ import annotations

import math

from dlc.codegen.llvm.arith import Arith
from dlc.codegen.llvm.exact import Pair, product
from dlc.codegen.llvm.exponential import EXP_RANGE, LN2_HI, LN2_LO
from dlc.codegen.llvm.ir import Val, phi_text
from dlc.codegen.llvm.math import Math
from dlc.codegen.llvm.polynomial import polynomial
from dlc.core.types import DType

THIRD = (1 / 3, 1.850371707708594e-17)
# log((1 + s) / (1 - s)) = 2 s (1 + z / 3 + z**2 (1 / 5 + z / 7 + ...)) for z = s**2, at most 0.03.
LOG_TAIL = tuple(1 / n for n in range(5, 27, 2))


class Power:
    """Emits powers for scalars and vectors."""

    def __init__(self, math_: Math) -> None:
        self.math = math_
        self.arith: Arith = math_.arith

    def of_floats(self, x: Val, y: Val, exponent: float | None) -> Val:
        """x ** y; `exponent` is y where it is a constant."""
        a = self.arith
        if exponent == 1.0:
            return x
        if exponent == 2.0:
            return a.op("fmul", x, x)
        if exponent == -1.0:
            return a.op("fdiv", a.const(1.0, x), x)
        if exponent == 0.5:
            root = a.call("sqrt", a.op("fadd", x, a.const(0.0, x)))  # -0 gives 0
            lowest = a.test("fcmp oeq", x, a.const(-math.inf, x))
            return a.select(lowest, a.const(math.inf, x), root)
        if x.elem == "double":
            return self._signed_power(x, y, self._of_sizes(a.call("fabs", x), y))
        wide_x, wide_y = a.convert("fpext", x, "double"), a.convert("fpext", y, "double")
        found = self.math.exp(a.op("fmul", wide_y, self.math.log(a.call("fabs", wide_x))))
        return a.convert("fptrunc", self._signed_power(wide_x, wide_y, found), x.elem)

    def _of_sizes(self, x: Val, y: Val) -> Val:
        """x ** y of float64 for x of at least 0."""
        a = self.arith
        log = self._log(x)
        limits = self.math.log(x)  # infinite or NaN where x is 0, infinite or NaN
        rough = a.op("fmul", y, limits)
        low, high = EXP_RANGE["double"]
        inside = a.op(
            "and",
            a.test("fcmp olt", rough, a.const(high, x)),
            a.test("fcmp ogt", rough, a.const(low, x)),
        )
        exact = product(a, y, log.high)
        lost = a.fma(y, log.low, exact.low)
        power = a.select(inside, exact.high, rough)
        return self.math.exp(power, a.select(inside, lost, a.const(0.0, x)))

    def _log(self, x: Val) -> Pair:
        """The natural logarithm of a finite x above 0."""
        a = self.arith
        f, exponent = self.math.mantissa_and_exponent(x)
        s = self._quotient(f)
        z = product(a, s.high, s.high)
        twice = a.op("fadd", s.high, s.high)
        z = Pair(z.high, a.fma(twice, s.low, z.low))
        third, rest = (a.const(part, x) for part in THIRD)
        first = product(a, z.high, third)
        first = Pair(first.high, a.fma(z.high, rest, a.fma(z.low, third, first.low)))
        square = a.op("fmul", z.high, z.high)
        tail = self._sum(first.high, a.op("fmul", square, polynomial(a, z.high, LOG_TAIL)))
        tail = Pair(tail.high, a.op("fadd", tail.low, first.low))
        more = product(a, s.high, tail.high)
        more_low = a.fma(s.high, tail.low, a.fma(s.low, tail.high, more.low))
        total = self._sum(s.high, more.high)
        two = a.const(2.0, x)
        high = a.op("fmul", total.high, two)
        low = a.op("fmul", a.op("fadd", total.low, a.op("fadd", more_low, s.low)), two)
        whole = self._sum(a.op("fmul", exponent, a.const(LN2_HI["double"], x)), high)
        lost = a.fma(exponent, a.const(LN2_LO["double"], x), low)
        return self._sum(whole.high, a.op("fadd", whole.low, lost))

    def _quotient(self, f: Val) -> Pair:
        """f / (2 + f)."""
        a = self.arith
        two = a.const(2.0, f)
        divisor = self._sum(two, f)
        high = a.op("fdiv", f, divisor.high)
        back = product(a, high, divisor.high)
        rest = a.op("fsub", a.op("fsub", f, back.high), back.low)
        rest = a.op("fsub", rest, a.op("fmul", high, divisor.low))
        return Pair(high, a.op("fdiv", rest, divisor.high))

    def _sum(self, x: Val, y: Val) -> Pair:
        """x + y, where x is 0 or not smaller than y."""
        a = self.arith
        total = a.op("fadd", x, y)
        return Pair(total, a.op("fsub", y, a.op("fsub", total, x)))

    def _signed_power(self, x: Val, y: Val, found: Val) -> Val:
        """The power of x from the power of |x|."""
        a = self.arith
        zero, one, infinity = (a.const(v, x) for v in (0.0, 1.0, math.inf))
        whole = a.test("fcmp oeq", a.round_even(y), y)
        half = a.op("fmul", y, a.const(0.5, x))
        odd = a.op("and", whole, a.test("fcmp une", a.round_even(half), half))
        bits = a.convert("bitcast", x, "i64")
        minus = a.test("icmp slt", bits, a.const(0, bits))
        found = a.select(a.op("and", minus, odd), a.neg(found), found)
        below = a.op("and", a.test("fcmp olt", x, zero), a.test("fcmp one", x, a.neg(infinity)))
        not_whole = a.op("xor", whole, a.const(True, whole))
        found = a.select(a.op("and", below, not_whole), a.const(math.nan, x), found)
        unit = a.test("fcmp oeq", a.call("fabs", x), one)
        endless = a.test("fcmp oeq", a.call("fabs", y), infinity)
        always_one = a.op("or", a.test("fcmp oeq", x, one), a.test("fcmp oeq", y, zero))
        return a.select(a.op("or", always_one, a.op("and", unit, endless)), one, found)

    def of_integers(self, x: Val, y: Val, dtype: DType) -> Val:
        """x ** y of integers by squaring; for y < 0, 1 / x**-y without its fraction."""
        a, builder = self.arith, self.arith.builder
        one, zero = a.const(1, x), a.const(0, x)
        odd_y = a.test("icmp ne", a.op("and", y, one), zero)
        start, head, after = builder.current, builder.block("pow"), builder.block("pow.end")
        builder.jump(head)
        builder.enter(head)
        total, base, left = (Val(builder.name(), x.elem, x.lanes) for _ in range(3))
        builder.open_scope()
        odd = a.test("icmp ne", a.op("and", left, one), zero)
        new_total = a.select(odd, a.op("mul", total, base), total)
        new_base, new_left = a.op("mul", base, base), a.op("lshr", left, one)
        more = a.test("icmp ne", new_left, zero)
        if more.lanes:
            more = builder.call(f"llvm.vector.reduce.or.v{more.lanes}i1", Val("", "i1"), more)
        builder.branch(more, head, after)
        for name, old, new in ((total, one, new_total), (base, x, new_base), (left, y, new_left)):
            head.phis.append(phi_text(name.ref, name, [(old, start), (new, head)]))
        builder.close_scope()
        builder.enter(after)
        if not dtype.is_signed:
            return new_total
        minus_one = a.const(-1, x)
        unit = a.select(a.test("icmp eq", x, one), one, zero)
        signs = a.select(odd_y, minus_one, one)
        unit = a.select(a.test("icmp eq", x, minus_one), signs, unit)
        return a.select(a.test("icmp slt", y, zero), unit, new_total)
