"""The bits of elements as another type."""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from dlc.core.errors import InternalError
from dlc.core.types import DType
from dlc.graph.arrays import NUMPY_DTYPES, round_to
from dlc.graph.op import Array, Fuse, Op, as_f64, op
from dlc.te import tensor as te
from dlc.te.types import TensorType


@op("bit_cast", fuse=Fuse.OPAQUE)
class BitCast(Op):
    """The same memory, its elements read as another type of as many bits.

    Source: https://onnx.ai/onnx/operators/onnx__BitCast.html
    """

    of: DType
    """The type of the operand, which its reference, in float64, no longer shows."""
    to: DType

    def infer(self, x: TensorType) -> TensorType:
        if x.dtype is not self.of:
            raise self.reject(f"the operand is not {self.of}", x)
        if self.of.bits != self.to.bits:
            raise self.reject(f"{self.to} has not as many bits as {self.of}", x)
        return TensorType(x.shape, self.to)

    def compute(self, x: te.Tensor) -> NoReturn:
        raise InternalError(detail="a bit cast is a view, not a kernel")

    def reference(self, x: Array) -> Array:
        bits = (
            np.ascontiguousarray(round_to(x, self.of))
            .reshape(np.shape(x))
            .view(NUMPY_DTYPES[self.to])
        )
        (result,) = as_f64(bits)
        return result
