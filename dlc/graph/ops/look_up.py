"""A function of a byte as a table of its results."""

from __future__ import annotations

import numpy as np

from dlc.core.types import INDEX, DType
from dlc.graph.op import Array, Fuse, Op, op
from dlc.graph.ops.precision import BYTES
from dlc.te import tensor as te
from dlc.te.expr import Expr, cast
from dlc.te.types import TensorType, is_const

ENTRIES = 256


@op("look_up", fuse=Fuse.INJECTIVE)
class LookUp(Op):
    """For each byte of x what a table has for it; bytes below zero are behind the others.

    Shapes:
        x: u8[*i] or i8[*i]; table: [256] -> [*i]
    """

    def infer(self, x: TensorType, table: TensorType) -> TensorType:
        if x.dtype not in BYTES:
            raise self.reject("needs bytes", x, table)
        if table.rank != 1 or not is_const(table.shape[0], ENTRIES):
            raise self.reject(f"needs a table of {ENTRIES}", x, table)
        return TensorType(x.shape, table.dtype)

    def compute(self, x: te.Tensor, table: te.Tensor) -> te.Tensor:
        def element(*i: Expr) -> Expr:
            return table[cast(INDEX, cast(DType.U8, x[i]))]

        return te.compute(self.name, x.shape, element, inputs=(x, table))

    def reference(self, x: Array, table: Array) -> Array:
        found: Array = table[x.astype(np.int64) % ENTRIES]
        return found
