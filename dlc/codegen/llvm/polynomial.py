"""Polynomials of values."""

from __future__ import annotations

from collections.abc import Sequence

from dlc.codegen.llvm.arith import Arith
from dlc.codegen.llvm.ir import Val


def polynomial(a: Arith, x: Val, table: Sequence[float]) -> Val:
    """A polynomial of x by Horner's rule, constant term first."""
    total = a.const(table[-1], x)
    for c in reversed(table[:-1]):
        total = a.fma(total, x, a.const(c, x))
    return total
