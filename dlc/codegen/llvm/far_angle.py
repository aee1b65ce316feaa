"""Remainders by pi / 2 of angles that are far away.

Of the bits of 2 / pi, those that a large angle multiplies to multiples of 4 are left out, and those
that are too small to matter. What is in between is an integer; its product with the angle's
mantissa has the quadrant in its top two bits and the remainder, as a fraction, below.

Source: Payne and Hanek, "Radian reduction for trigonometric functions", ACM SIGNUM Newsletter 18
(1983). An angle of float64 comes within 2**-61 of a multiple of pi / 2 at worst: Muller et al.,
"Handbook of Floating-Point Arithmetic" (2018), section 10.2.
"""

from __future__ import annotations

import itertools
import math

from dlc.codegen.llvm.arith import Arith
from dlc.codegen.llvm.ir import Val, constant

# The first 1184 binary digits of 2 / pi. Source: the digits of pi.
TWO_OVER_PI = int(
    "A2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163ABDEBBC561B7246E3A42"
    "4DD2E006492EEA09D1921CFE1DEB1CB129A73EE88235F52EBB4484E99C7026B45F7E413991"
    "D639835339F49C845F8BBDF9283B1FF897FFDE05980FEF2F118B5A0A6D1F6D367ECF27CB09"
    "B74F463F669E5FEA2D7527BAC7EBE5F17B3D0739F78A5292EA6BFB5FB11F8D5D0856033046",
    16,
)
DIGITS = 1184
HALF_PI = (math.pi / 2, 6.123233995736766e-17)  # its sum has twice the digits
NEAREST_F64 = 20  # angles of float64 below 2**20 are none of ours
LIMB = 32


def two_over_pi(zeros: int, size: int, count: int) -> list[int]:
    """Words of `size` bits, most significant first: some zeros, then the digits of 2 / pi."""
    whole = TWO_OVER_PI >> (DIGITS + zeros - size * count)
    return [whole >> size * n & (1 << size) - 1 for n in reversed(range(count))]


WORDS_F32 = two_over_pi(8, 32, 7)
WORDS_F64 = two_over_pi(34, 64, 19)


class FarAngle:
    """Emits the remainder of x by pi / 2 and the quadrant; lanes that are not far get anything."""

    def __init__(self, arith: Arith) -> None:
        self.arith = arith

    def reduce_f32(self, x: Val) -> tuple[Val, Val]:
        """Of f32, by the 96 digits of 2 / pi that matter for the exponent of x."""
        a, lanes = self.arith, x.lanes

        def c(value: int) -> Val:
            return constant(value, "i64", lanes)

        bits = a.convert("zext", a.convert("bitcast", x, "i32"), "i64")
        exponent = a.op("and", a.op("lshr", bits, c(23)), c(255))
        mantissa = a.op("or", a.op("and", bits, c(0x7FFFFF)), c(0x800000))
        first = a.op("sub", exponent, c(144))  # where the window starts; negative for near lanes
        picked = self._pick([c(w) for w in WORDS_F32], a.op("lshr", first, c(5)), 4)
        shift = a.op("and", first, c(31))
        window = []
        for one, two in itertools.pairwise(picked):
            pair = a.op("or", a.op("shl", one, c(32)), two)
            window.append(a.op("lshr", a.op("shl", pair, shift), c(32)))
        top = a.op("shl", a.op("mul", mantissa, window[0]), c(32))
        low = a.op("lshr", a.op("mul", mantissa, window[2]), c(32))
        product = a.op("add", a.op("add", top, a.op("mul", mantissa, window[1])), low)
        quadrant = self._quadrant(product)
        fraction = a.convert("sitofp", a.op("shl", product, c(2)), "double")
        r = a.op("fmul", fraction, constant(math.pi / 2 * 2.0**-64, "double", lanes))
        r, quadrant = self._signed(x, a.convert("fptrunc", r, "float"), quadrant)
        infinite = a.test("icmp eq", exponent, c(255))
        return a.select(infinite, a.const(math.nan, r), r), a.convert("trunc", quadrant, "i32")

    def reduce_f64(self, x: Val) -> tuple[Val, Val]:
        """Of f64, by 192 digits: 2 of the quadrant, 61 that may all be alike, and 53 twice."""
        a, lanes = self.arith, x.lanes

        def c(value: int) -> Val:
            return constant(value, "i64", lanes)

        bits = a.convert("bitcast", x, "i64")
        exponent = a.op("and", a.op("lshr", bits, c(52)), c(2047))
        mantissa = a.op("or", a.op("and", bits, c((1 << 52) - 1)), c(1 << 52))
        first = a.op("sub", exponent, c(1023 + NEAREST_F64))
        picked = self._pick([c(w) for w in WORDS_F64], a.op("lshr", first, c(6)), 4)
        shift = a.op("and", first, c(63))
        rest = a.op("sub", c(63), shift)
        window = [
            a.op("or", a.op("shl", one, shift), a.op("lshr", a.op("lshr", two, c(1)), rest))
            for one, two in itertools.pairwise(picked)
        ]
        high, low = self._product(mantissa, window)
        quadrant = self._quadrant(high)
        high = a.op("or", a.op("shl", high, c(2)), a.op("lshr", low, c(62)))
        below = a.test("icmp slt", high, c(0))
        flip = a.select(below, c(-1), c(0))
        r = self._angle(a.op("xor", high, flip), a.op("xor", a.op("shl", low, c(2)), flip))
        r, quadrant = self._signed(x, a.select(below, a.neg(r), r), quadrant)
        infinite = a.test("icmp eq", exponent, c(2047))
        return a.select(infinite, a.const(math.nan, r), r), quadrant

    def _pick(self, words: list[Val], start: Val, count: int) -> list[Val]:
        """`count` words from the one in place `start` on; each bit of it halves what is left."""
        a = self.arith
        step = 1 << (len(words) - count).bit_length() - 1
        while step:
            skip = a.test("icmp ne", a.op("and", start, a.const(step, start)), a.const(0, start))
            kept = range(count + step - 1)
            words = [a.select(skip, words[n + step], words[n]) for n in kept]
            step //= 2
        return words

    def _product(self, mantissa: Val, window: list[Val]) -> tuple[Val, Val]:
        """The top 128 of 192 bits of a product, modulo 2**192; its words, the higher first."""
        a = self.arith
        bits, mask = a.const(LIMB, mantissa), a.const((1 << LIMB) - 1, mantissa)

        def halves(word: Val) -> tuple[Val, Val]:
            return a.op("and", word, mask), a.op("lshr", word, bits)

        factor = halves(mantissa)
        limbs = [half for word in reversed(window) for half in halves(word)]
        columns: list[list[Val]] = [[] for _ in limbs]
        for m, n in itertools.product(range(2), range(len(limbs))):
            if m + n >= len(limbs):
                continue
            part = halves(a.op("mul", factor[m], limbs[n]))
            for place, half in enumerate(part, start=m + n):
                if place < len(limbs):
                    columns[place].append(half)
        found, carry = [], a.const(0, mantissa)
        for column in columns[1:]:  # what the lowest would carry is beyond the digits
            for half in column:
                carry = a.op("add", carry, half)
            digit, carry = halves(carry)
            found.append(digit)
        words = [a.op("or", a.op("shl", found[n + 1], bits), found[n]) for n in (1, 3)]
        return words[1], words[0]

    def _angle(self, high: Val, low: Val) -> Val:
        """A fraction of 127 bits times pi / 2, rounded once where there is FMA."""
        a = self.arith
        cut = (1 << 11) - 1  # bits of a word that a float may not hold
        top = a.convert("sitofp", a.op("and", high, a.const(~cut, high)), "double")
        rest = a.convert("sitofp", a.op("and", high, a.const(cut, high)), "double")
        last = a.convert("sitofp", a.op("lshr", low, a.const(1, low)), "double")
        rest = a.fma(last, a.const(2.0**-63, last), rest)
        first, second = (a.const(part * 2.0**-64, top) for part in HALF_PI)
        whole = a.op("fmul", top, first)
        lost = a.fma(top, first, a.neg(whole)) if a.has_fma else a.const(0.0, top)
        return a.op("fadd", whole, a.fma(rest, first, a.fma(top, second, lost)))

    def _quadrant(self, product: Val) -> Val:
        """The nearest quadrant, from the top two bits of a word and the one below."""
        a = self.arith
        return a.op("lshr", a.op("add", product, a.const(1 << 61, product)), a.const(62, product))

    def _signed(self, x: Val, r: Val, quadrant: Val) -> tuple[Val, Val]:
        """The remainder and the quadrant of x by those of |x|."""
        a = self.arith
        minus = a.test("fcmp olt", x, a.const(0.0, x))
        opposite = a.op("sub", a.const(0, quadrant), quadrant)
        return a.select(minus, a.neg(r), r), a.select(minus, opposite, quadrant)
