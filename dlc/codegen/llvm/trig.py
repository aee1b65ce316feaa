"""sin and cos. The reduction of the angle is most of the work."""

from __future__ import annotations

import itertools
import math

from dlc.codegen.llvm import coefficients
from dlc.codegen.llvm.arith import Arith
from dlc.codegen.llvm.ir import Val, constant

# pi / 2 as a sum: three floats for FMA, and three doubles of which the first two end in zeros, so
# that their products with small integers are exact.
# Source: the digits of pi; the split into 33-bit parts is that of fdlibm's e_rem_pio2.c.
HALF_PI_F32 = (1.57079637050628662109375, -4.371138828673793e-08, -1.7151245100058819e-15)
HALF_PI_F64 = (1.57079632673412561417e00, 6.07710050630396597660e-11, 2.02226624879595063154e-21)
HALF_PI_FMA = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591833e-33)
# The bits of 2 / pi, most significant word first, behind 8 zero bits.
TWO_OVER_PI_WORDS = (
    0x00A2F983, 0x6E4E4415, 0x29FC2757, 0xD1F534DD, 0xC0DB6295, 0x993C4390, 0x41FE5163,
)  # fmt: skip
# Beyond this the float32 reduction by three constants loses bits.
FAR_F32 = 2.0**17


class Trig:
    """Emits sin and cos for scalars and vectors of f32 and f64."""

    def __init__(self, arith: Arith) -> None:
        self.arith = arith

    def sin_or_cos(self, x: Val, *, cos: bool) -> Val:
        """sin(x) or cos(x)."""
        a = self.arith
        if x.elem == "double":
            r, quadrant = self._reduce_f64(x)
        else:
            r, quadrant = self._reduce_f32(x)
        z = a.op("fmul", r, r)
        sine, cosine = self._sine(r, z), self._cosine(z)
        one = a.const(1, quadrant)
        if cos:
            quadrant = a.op("add", quadrant, one)
        swapped = a.test("icmp ne", a.op("and", quadrant, one), a.const(0, quadrant))
        chosen = a.select(swapped, cosine, sine)
        two = a.const(2, quadrant)
        minus = a.test("icmp ne", a.op("and", quadrant, two), a.const(0, quadrant))
        found = a.select(minus, a.neg(chosen), chosen)
        if cos:
            return found
        return a.select(a.test("fcmp oeq", x, a.const(0.0, x)), x, found)  # the sign of zero

    def _polynomial(self, z: Val, table: tuple[float, ...]) -> Val:
        total = self.arith.const(table[-1], z)
        for c in reversed(table[:-1]):
            total = self.arith.fma(total, z, self.arith.const(c, z))
        return total

    def _sine(self, r: Val, z: Val) -> Val:
        a = self.arith
        table = coefficients.SIN_F32 if r.elem == "float" else coefficients.SIN_F64
        return a.fma(a.op("fmul", r, z), self._polynomial(z, table), r)

    def _cosine(self, z: Val) -> Val:
        a = self.arith
        table = coefficients.COS_F32 if z.elem == "float" else coefficients.COS_F64
        one = a.const(1.0, z)
        half = a.op("fmul", z, a.const(0.5, z))
        near = a.op("fsub", one, half)
        lost = a.op("fsub", a.op("fsub", one, near), half)
        return a.op("fadd", near, a.fma(a.op("fmul", z, z), self._polynomial(z, table), lost))

    def _rounded(self, x: Val) -> tuple[Val, Val]:
        """The nearest multiple of pi / 2: how many, as a float and as an integer."""
        a = self.arith
        rounder = a.const(1.5 * 2.0 ** (23 if x.elem == "float" else 52), x)
        shifted = a.fma(x, a.const(2 / math.pi, x), rounder)
        kind = "i32" if x.elem == "float" else "i64"
        return a.op("fsub", shifted, rounder), a.convert("bitcast", shifted, kind)

    def _subtract(self, x: Val, n: Val, parts: tuple[float, ...]) -> Val:
        a = self.arith
        minus = a.neg(n)
        for part in parts:
            x = a.fma(minus, a.const(part, x), x)
        return x

    def _reduce_f64(self, x: Val) -> tuple[Val, Val]:
        n, quadrant = self._rounded(x)
        parts = HALF_PI_FMA if self.arith.has_fma else HALF_PI_F64
        return self._subtract(x, n, parts), quadrant

    def _reduce_f32(self, x: Val) -> tuple[Val, Val]:
        """The remainder by pi / 2 and the quadrant; a branch for angles that are far away."""
        a, builder = self.arith, self.arith.builder
        if a.has_fma:
            n, near_quadrant = self._rounded(x)
            near = self._subtract(x, n, HALF_PI_F32)
        else:
            wide, quadrant = self._reduce_f64(a.convert("fpext", x, "double"))
            near, near_quadrant = (
                a.convert("fptrunc", wide, "float"),
                a.convert("trunc", quadrant, "i32"),
            )
        far = a.test("fcmp uge", a.call("fabs", x), a.const(FAR_F32, x))
        test = far
        if far.lanes:
            test = builder.call(f"llvm.vector.reduce.or.v{far.lanes}i1", Val("", "i1"), far)
        start, slow, after = builder.current, builder.block("far"), builder.block("near")
        builder.branch(test, slow, after)
        builder.enter(slow)
        builder.open_scope()
        r, quadrant = self._payne_hanek(x)
        r, quadrant = a.select(far, r, near), a.select(far, quadrant, near_quadrant)
        builder.close_scope()
        end = builder.current
        builder.jump(after)
        builder.enter(after)
        return (
            builder.phi([(near, start), (r, end)]),
            builder.phi([(near_quadrant, start), (quadrant, end)]),
        )

    def _payne_hanek(self, x: Val) -> tuple[Val, Val]:
        """x * 2 / pi modulo 4, from the 96 bits of 2 / pi that matter for the exponent of x."""
        a, lanes = self.arith, x.lanes

        def c(value: int) -> Val:
            return constant(value, "i64", lanes)

        bits = a.convert("zext", a.convert("bitcast", x, "i32"), "i64")
        exponent = a.op("and", a.op("lshr", bits, c(23)), c(255))
        mantissa = a.op("or", a.op("and", bits, c(0x7FFFFF)), c(0x800000))
        first = a.op("sub", exponent, c(144))  # where the window starts; negative for near lanes
        number = a.op("and", a.op("lshr", first, c(5)), c(3))
        shift = a.op("and", first, c(31))
        odd = a.test("icmp ne", a.op("and", number, c(1)), c(0))
        high = a.test("icmp ne", a.op("and", number, c(2)), c(0))
        words = [c(w) for w in TWO_OVER_PI_WORDS]
        picked = [
            a.select(high, a.select(odd, w[3], w[2]), a.select(odd, w[1], w[0]))
            for w in (words[n : n + 4] for n in range(4))
        ]
        window = []
        for one, two in itertools.pairwise(picked):
            pair = a.op("or", a.op("shl", one, c(32)), two)
            window.append(a.op("lshr", a.op("shl", pair, shift), c(32)))
        top = a.op("shl", a.op("mul", mantissa, window[0]), c(32))
        low = a.op("lshr", a.op("mul", mantissa, window[2]), c(32))
        product = a.op("add", a.op("add", top, a.op("mul", mantissa, window[1])), low)
        quadrant = a.op("lshr", a.op("add", product, c(1 << 61)), c(62))
        fraction = a.convert("sitofp", a.op("shl", product, c(2)), "double")
        r = a.op("fmul", fraction, constant(math.pi / 2 * 2.0**-64, "double", lanes))
        r = a.convert("fptrunc", r, "float")
        minus = a.test("fcmp olt", x, a.const(0.0, x))
        r = a.select(minus, a.neg(r), r)
        quadrant = a.select(minus, a.op("sub", c(0), quadrant), quadrant)
        infinite = a.test("icmp eq", exponent, c(255))
        r = a.select(infinite, a.const(math.nan, r), r)
        return r, a.convert("trunc", quadrant, "i32")
