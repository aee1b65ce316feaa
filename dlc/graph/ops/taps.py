"""Weighted sums of neighbours: what resizing by a matrix is, whose rows are zero but for a few."""

from __future__ import annotations

import numpy as np

from dlc.core.types import FLOATS, INDEX, DType
from dlc.graph.assume import differs, is_below
from dlc.graph.op import Array, Fuse, Op, as_f64, op
from dlc.graph.ops.elementwise import check_dtype
from dlc.graph.ops.precision import narrow, wide, widen
from dlc.te import tensor as te
from dlc.te.expr import Expr, cast, maximum, minimum
from dlc.te.types import TensorType


@op("weigh_neighbours", fuse=Fuse.OPAQUE)
class WeighNeighbours(Op):
    """Each row of the result is a sum of k rows of x side by side, each times a weight of its own.

    The k rows begin at `first`, or where the last k rows of x do if that is before it.

    Shapes:
        x: [*b, n, c]; first: i64[m]; weights: [m, k], k not above n -> [*b, m, c]
    """

    def infer(self, x: TensorType, first: TensorType, weights: TensorType) -> TensorType:
        check_dtype(self, FLOATS, x)
        check_dtype(self, FLOATS, weights)
        if x.rank < 2 or first.dtype is not DType.I64 or first.rank != 1 or weights.rank != 2:
            raise self.reject("needs rows, numbers of rows and a matrix", x, first, weights)
        if wide(x.dtype) is not wide(weights.dtype):
            raise self.reject("the weights are of another type", x, first, weights)
        if differs(first.shape[0], weights.shape[0]) or is_below(x.shape[-2], weights.shape[1]):
            raise self.reject("the sizes do not fit", x, first, weights)
        return TensorType((*x.shape[:-2], first.shape[0], x.shape[-1]), x.dtype)

    def compute(self, x: te.Tensor, first: te.Tensor, weights: te.Tensor) -> te.Tensor:
        rows, (count, taps) = x.shape[-2], weights.shape

        def element(*i: Expr) -> te.Reduce:
            *outer, row, column = i
            begin = maximum(minimum(cast(INDEX, first[row]), rows - taps), 0)
            return te.reduce_sum(
                (taps,),
                lambda k: widen(x[(*outer, begin + k, column)]) * widen(weights[row, k]),
            )

        shape = (*x.shape[:-2], count, x.shape[-1])
        return narrow(te.compute(self.name, shape, element, inputs=(x, first, weights)), x.dtype)

    def reference(self, x: Array, first: Array, weights: Array) -> Array:
        x, weights = as_f64(x, weights)
        taps = weights.shape[1]
        begin = np.clip(first, 0, x.shape[-2] - taps)
        near = x[..., begin[:, None] + np.arange(taps), :]
        return np.asarray(np.einsum("...mkc,mk->...mc", near, weights))
