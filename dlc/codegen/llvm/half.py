"""16-bit floats as integers, for targets that have no instructions to convert them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlc.codegen.llvm.ir import Val, constant

if TYPE_CHECKING:
    from dlc.codegen.llvm.arith import Arith


def narrowed_to_bf16(arith: Arith, a: Val) -> Val:
    """Float to bfloat16, rounded to nearest even; NaN stays NaN."""
    bits = arith.convert("bitcast", a, "i32")
    odd = arith.op("and", arith.op("lshr", bits, arith.const(16, bits)), arith.const(1, bits))
    rounded = arith.op("add", arith.op("add", bits, arith.const(0x7FFF, bits)), odd)
    quiet = arith.op("or", bits, arith.const(0x400000, bits))
    chosen = arith.select(arith.is_nan(a), quiet, rounded)
    return arith.convert("trunc", arith.op("lshr", chosen, arith.const(16, bits)), "i16")


def widened(arith: Arith, a: Val) -> Val:
    """Half to float by integers: shift the fields, then repair the exponent."""
    wide = arith.convert("zext", a, "i32")

    def c(value: int) -> Val:
        return arith.const(value, wide)

    shifted = arith.op("shl", arith.op("and", wide, c(0x7FFF)), c(13))
    sign = arith.op("shl", arith.op("and", wide, c(0x8000)), c(16))
    # Times 2**112 moves the exponent's bias, and makes denormals normal.
    scaled = arith.op(
        "fmul", arith.convert("bitcast", shifted, "float"), constant(2.0**112, "float", a.lanes)
    )
    special = arith.test("icmp uge", shifted, c(0x7C00 << 13))
    bits = arith.select(
        special, arith.op("or", shifted, c(0x7F800000)), arith.convert("bitcast", scaled, "i32")
    )
    return arith.convert("bitcast", arith.op("or", bits, sign), "float")


def narrowed(arith: Arith, a: Val) -> Val:
    """Float to half by integers, rounded to nearest even."""
    bits = arith.convert("bitcast", a, "i32")

    def c(value: int) -> Val:
        return arith.const(value, bits)

    sign = arith.op("lshr", arith.op("and", bits, c(-(2**31))), c(16))
    size = arith.op("and", bits, c(0x7FFFFFFF))
    odd = arith.op("and", arith.op("lshr", size, c(13)), c(1))
    rounded = arith.op("add", arith.op("add", size, c(0xFFF - (112 << 23))), odd)
    normal = arith.op("lshr", rounded, c(13))
    # A denormal half is a multiple of 2**-24: adding 0.5 lets the FPU round it.
    tiny = arith.op(
        "fadd", arith.convert("bitcast", size, "float"), constant(0.5, "float", a.lanes)
    )
    denormal = arith.op("sub", arith.convert("bitcast", tiny, "i32"), c(0x3F000000))
    found = arith.select(arith.test("icmp ult", size, c(113 << 23)), denormal, normal)
    found = arith.select(arith.test("icmp uge", size, c(0x477FF000)), c(0x7C00), found)
    found = arith.select(arith.test("icmp ugt", size, c(0x7F800000)), c(0x7E00), found)
    return arith.convert("trunc", arith.op("or", found, sign), "i16")
