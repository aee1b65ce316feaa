"""Numbers as bytes: the last step of a quantization whose scale is part of them already."""

from __future__ import annotations

import numpy as np

from dlc.core.types import DType
from dlc.graph.arrays import NUMPY_DTYPES
from dlc.graph.op import Array, Fuse, Op, as_f64, op
from dlc.graph.ops.elementwise import broadcast
from dlc.te import tensor as te
from dlc.te.expr import Expr, UnOp, cast, const, maximum, minimum, unary
from dlc.te.types import TensorType

_LIMITS = {DType.I8: (-128, 127), DType.U8: (0, 255)}


@op("to_bytes", fuse=Fuse.ELEMENTWISE)
class ToBytes(Op):
    """The nearest whole number, halves to the even one, plus `zero`, as the nearest byte.

    x, and x plus `zero`, are surely within an i32: whoever writes this has to know.

    Shapes:
        x: f32; zero: i32, which broadcasts to x
    """

    to: DType

    def infer(self, x: TensorType, zero: TensorType) -> TensorType:
        if self.to not in _LIMITS:
            raise self.reject(f"{self.to} is no byte", x, zero)
        if x.dtype is not DType.F32 or zero.dtype is not DType.I32:
            raise self.reject("needs an f32 and a zero of i32", x, zero)
        return TensorType(broadcast(self, x, zero), self.to)

    def compute(self, x: te.Tensor, zero: te.Tensor) -> te.Tensor:
        low, high = (const(n, DType.I32) for n in _LIMITS[self.to])

        def byte(v: Expr, z: Expr) -> Expr:
            return cast(self.to, minimum(maximum(unary(UnOp.LRINT, v) + z, low), high))

        return te.elementwise(self.name, byte, x, zero)

    def reference(self, x: Array, zero: Array) -> Array:
        x, zero = as_f64(x, zero)
        found: Array = np.clip(np.rint(x) + zero, *_LIMITS[self.to]).astype(NUMPY_DTYPES[self.to])
        return found
