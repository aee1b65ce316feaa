"""Division by a known number without a division."""

from __future__ import annotations

import math

import numpy as np

from dlc.core.types import DType
from dlc.graph.op import Array, Fuse, Op, as_f64, op
from dlc.graph.ops.elementwise import broadcast
from dlc.te import tensor as te
from dlc.te.expr import BinOp, Expr, UnOp, binary, const, select, unary
from dlc.te.types import TensorType


@op("quotient", fuse=Fuse.ELEMENTWISE)
class Quotient(Op):
    """a / b, where `inverse` is 1 / b rounded.

    What a * inverse leaves over is found exactly by a fused multiply-add, and corrects it: the
    result is the quotient rounded once, unless what is left over is too small for a float32. With
    `finite` it is known that none overflows, and nothing is infinite.

    Shapes:
        a, b, inverse: f32, which broadcast

    Source: Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor",
    IBM Journal of Research and Development 34(1), 1990.
    """

    finite: bool = False

    def infer(self, a: TensorType, b: TensorType, inverse: TensorType) -> TensorType:
        if not a.dtype is b.dtype is inverse.dtype is DType.F32 or b.shape != inverse.shape:
            raise self.reject("needs f32 operands, and as many inverses as divisors", a, b, inverse)
        return TensorType(broadcast(self, a, b), DType.F32)

    def compute(self, a: te.Tensor, b: te.Tensor, inverse: te.Tensor) -> te.Tensor:
        return te.elementwise(self.name, self._corrected, a, b, inverse)

    def _corrected(self, a: Expr, b: Expr, inverse: Expr) -> Expr:
        near = a * inverse
        found = near + inverse * (a - near * b)
        if self.finite:
            return found
        is_finite = binary(BinOp.LT, unary(UnOp.ABS, near), const(math.inf, DType.F32))
        return select(is_finite, found, near)

    def reference(self, a: Array, b: Array, inverse: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.divide(*as_f64(a, b))
