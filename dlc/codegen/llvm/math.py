"""Elementary functions as IR: polynomials, no library calls, no tables."""

from __future__ import annotations

from dlc.codegen.llvm.arith import Arith
from dlc.codegen.llvm.ir import Val
from dlc.core.types import DType
from dlc.te.expr import UnOp


class Math:
    def __init__(self, arith: Arith) -> None:
        self.arith = arith

    def unary(self, op: UnOp, x: Val) -> Val:
        raise NotImplementedError

    def power(self, x: Val, y: Val, exponent: float | None) -> Val:
        raise NotImplementedError

    def int_power(self, x: Val, y: Val, dtype: DType) -> Val:
        raise NotImplementedError
