"""sin and cos. The reduction of the angle is most of the work."""

from __future__ import annotations

import math
from collections.abc import Callable

from dlc.codegen.llvm import coefficients
from dlc.codegen.llvm.arith import Arith
from dlc.codegen.llvm.far_angle import NEAREST_F64, FarAngle
from dlc.codegen.llvm.ir import Val
from dlc.codegen.llvm.polynomial import polynomial

# pi / 2 as a sum: three floats for FMA, and three doubles of which the first two end in zeros, so
# that their products with small integers are exact.
# Source: the digits of pi; the split into 33-bit parts is that of fdlibm's e_rem_pio2.c.
HALF_PI_F32 = (1.57079637050628662109375, -4.371138828673793e-08, -1.7151245100058819e-15)
HALF_PI_F64 = (1.57079632673412561417e00, 6.07710050630396597660e-11, 2.02226624879595063154e-21)
HALF_PI_FMA = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591833e-33)
# Beyond these the reduction by three constants loses bits.
FAR_F32 = 2.0**17
FAR_F64 = {True: 2.0**30, False: 2.0**NEAREST_F64}  # with FMA, and without


class Trig:
    """Emits sin and cos for scalars and vectors of f32 and f64."""

    def __init__(self, arith: Arith) -> None:
        self.arith = arith
        self.far = FarAngle(arith)

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

    def _sine(self, r: Val, z: Val) -> Val:
        a = self.arith
        table = coefficients.SIN_F32 if r.elem == "float" else coefficients.SIN_F64
        return a.fma(a.op("fmul", r, z), polynomial(a, z, table), r)

    def _cosine(self, z: Val) -> Val:
        a = self.arith
        table = coefficients.COS_F32 if z.elem == "float" else coefficients.COS_F64
        one = a.const(1.0, z)
        half = a.op("fmul", z, a.const(0.5, z))
        near = a.op("fsub", one, half)
        lost = a.op("fsub", a.op("fsub", one, near), half)
        return a.op("fadd", near, a.fma(a.op("fmul", z, z), polynomial(a, z, table), lost))

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
        """The remainder by pi / 2 and the quadrant."""
        near = self._near_f64(x)
        return self._unless_far(x, FAR_F64[self.arith.has_fma], near, self.far.reduce_f64)

    def _near_f64(self, x: Val) -> tuple[Val, Val]:
        n, quadrant = self._rounded(x)
        parts = HALF_PI_FMA if self.arith.has_fma else HALF_PI_F64
        return self._subtract(x, n, parts), quadrant

    def _reduce_f32(self, x: Val) -> tuple[Val, Val]:
        """The remainder by pi / 2 and the quadrant."""
        a = self.arith
        if a.has_fma:
            n, quadrant = self._rounded(x)
            near = self._subtract(x, n, HALF_PI_F32), quadrant
        else:
            wide, quadrant = self._near_f64(a.convert("fpext", x, "double"))
            near = a.convert("fptrunc", wide, "float"), a.convert("trunc", quadrant, "i32")
        return self._unless_far(x, FAR_F32, near, self.far.reduce_f32)

    def _unless_far(
        self,
        x: Val,
        limit: float,
        near: tuple[Val, Val],
        reduce: Callable[[Val], tuple[Val, Val]],
    ) -> tuple[Val, Val]:
        """What is found for near angles, and by `reduce` for far ones, behind a branch."""
        a, builder = self.arith, self.arith.builder
        far = a.test("fcmp uge", a.call("fabs", x), a.const(limit, x))
        test = far
        if far.lanes:
            test = builder.call(f"llvm.vector.reduce.or.v{far.lanes}i1", Val("", "i1"), far)
        start, slow, after = builder.current, builder.block("far"), builder.block("near")
        builder.branch(test, slow, after)
        builder.enter(slow)
        builder.open_scope()
        found = [a.select(far, *pair) for pair in zip(reduce(x), near, strict=True)]
        builder.close_scope()
        end = builder.current
        builder.jump(after)
        builder.enter(after)
        r, quadrant = (
            builder.phi([(one, start), (two, end)]) for one, two in zip(near, found, strict=True)
        )
        return r, quadrant
