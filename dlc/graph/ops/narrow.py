"""How float32 lie in memory as bf16, where so few digits are enough: see `store_narrow`."""

from __future__ import annotations

import numpy as np

from dlc.core.types import DType
from dlc.graph.arrays import round_to
from dlc.graph.op import Array, Fuse, Op, op
from dlc.te import tensor as te
from dlc.te.expr import UnOp, cast, unary
from dlc.te.types import TensorType

TINY = float(np.finfo(np.float32).tiny)


@op("narrow", fuse=Fuse.ELEMENTWISE)
class Narrow(Op):
    """The nearest bf16, ties to even; denormals become zeros of their sign.

    Shapes:
        x: f32[*n] -> bf16[*n]
    """

    def infer(self, x: TensorType) -> TensorType:
        if x.dtype is not DType.F32:
            raise self.reject("needs float32", x)
        return TensorType(x.shape, DType.BF16)

    def compute(self, x: te.Tensor) -> te.Tensor:
        return te.elementwise(self.name, lambda v: cast(DType.BF16, unary(UnOp.FLUSH, v)), x)

    def reference(self, x: Array) -> Array:
        kept = np.where(np.abs(x) < TINY, np.copysign(0.0, x), x)
        return np.asarray(round_to(kept, DType.BF16), np.float64)


@op("widen", fuse=Fuse.ELEMENTWISE)
class Widen(Op):
    """The same numbers in float32: what each reader of bf16 makes of them by itself.

    Shapes:
        x: bf16[*n] -> f32[*n]
    """

    def infer(self, x: TensorType) -> TensorType:
        if x.dtype is not DType.BF16:
            raise self.reject("needs bf16", x)
        return TensorType(x.shape, DType.F32)

    def compute(self, x: te.Tensor) -> te.Tensor:
        return te.elementwise(self.name, lambda v: cast(DType.F32, v), x)

    def reference(self, x: Array) -> Array:
        return x
