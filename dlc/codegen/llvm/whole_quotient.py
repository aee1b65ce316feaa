"""Vectors of integers divided as floats: no vector unit divides integers.

A quotient that is not whole is at least 1 / b away from the next whole number, and its rounding is
less than that as long as the float holds a: no quotient is rounded up to a whole number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlc.codegen.llvm.ir import BITS, Val

if TYPE_CHECKING:
    from dlc.codegen.llvm.arith import Arith


def divides_as_floats(a: Val, b: Val) -> bool:
    """Whether floats hold vectors of integers. LLVM multiplies by what inverts a known divisor."""
    return a.lanes > 1 and BITS[a.elem] <= BITS["i32"] and b.ref.startswith("%")


def divide_as_floats(arith: Arith, name: str, a: Val, b: Val) -> Val:
    """A truncating `sdiv`, `udiv`, `srem` or `urem`; b is not 0."""
    sign, wide = name[0], "float" if BITS[a.elem] <= BITS["i16"] else "double"
    whole = [arith.convert("sext" if sign == "s" else "zext", v, "i32") for v in (a, b)]
    ratio = arith.op("fdiv", *(arith.convert(f"{sign}itofp", v, wide) for v in whole))
    quotient = arith.convert(f"fpto{sign}i", ratio, "i32")
    if a.elem != "i32":
        quotient = arith.convert("trunc", quotient, a.elem)
    if name.endswith("div"):
        return quotient
    return arith.op("sub", a, arith.op("mul", quotient, b))
