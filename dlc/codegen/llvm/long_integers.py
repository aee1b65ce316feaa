"""Vectors of floats as integers of 64 bits, which x86 converts one by one before AVX-512.

A whole number below 2**51 is the low digits of its sum with 1.5 * 2**52. Vectors with a larger one
among them, or with NaN, are left to the conversion of each.

Source: H. S. Warren, "Hacker's Delight", 2nd edition (2013), 17.3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dlc.codegen.llvm.ir import Val

if TYPE_CHECKING:
    from dlc.codegen.llvm.arith import Arith

MAGIC = 1.5 * 2.0**52
MAGIC_BITS = 0x4338000000000000
BELOW = 2.0**51  # all sums have the exponent of `MAGIC`


def as_long(arith: Arith, a: Val, convert: Callable[[], Val]) -> Val:
    """A vector of floats truncated to 64 bits; `convert` emits what does it in any case."""
    builder = arith.builder
    wide = arith.convert("fpext", a, "double")
    near = arith.test("fcmp olt", arith.call("fabs", wide), arith.const(BELOW, wide))
    every = builder.call(f"llvm.vector.reduce.and.v{near.lanes}i1", Val("", "i1"), near)
    return builder.phi(builder.fork(every, [lambda: _low_digits(arith, wide), convert]))


def _low_digits(arith: Arith, wide: Val) -> Val:
    total = arith.op("fadd", arith.trunc(wide), arith.const(MAGIC, wide))
    bits = arith.convert("bitcast", total, "i64")
    return arith.op("sub", bits, arith.const(MAGIC_BITS, bits))
