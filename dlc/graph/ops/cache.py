"""Writing into a cache of earlier steps."""

from __future__ import annotations

import numpy as np

from dlc.core.types import INDEX, DType
from dlc.graph.assume import differs, is_below
from dlc.graph.op import Array, Fuse, Op, as_f64, op
from dlc.graph.ops.attributes import normal_axis
from dlc.graph.ops.elementwise import ANY, check_dtype
from dlc.te import tensor as te
from dlc.te.expr import Expr, both, cast, select
from dlc.te.types import TensorType


@op("tensor_scatter", fuse=Fuse.INJECTIVE)
class TensorScatter(Op):
    """A cache with an update along an axis, for each row of the batch from its own index on.

    `mode` says what becomes of what sticks out: "linear" drops it, "circular" begins again at 0.

    Shapes:
        past: [batch, *s, n, *t]; update: [batch, *s, m, *t]; indices: [batch] -> as past

    Source: https://onnx.ai/onnx/operators/onnx__TensorScatter.html
    """

    axis: int = -2
    mode: str = "linear"

    def infer(
        self, past: TensorType, update: TensorType, indices: TensorType | None = None
    ) -> TensorType:
        given = (past, update) if indices is None else (past, update, indices)
        check_dtype(self, ANY, past, update)
        axis = normal_axis(self, self.axis, past.rank, *given)
        if self.mode not in ("linear", "circular"):
            raise self.reject(f"there is no mode '{self.mode}'", *given)
        if axis == 0 or past.rank != update.rank:
            raise self.reject("the operands differ in rank, or the axis is the batch", *given)
        for d, (n, m) in enumerate(zip(past.shape, update.shape, strict=True)):
            if is_below(n, m) if d == axis else differs(n, m):
                raise self.reject("the update does not fit the cache", *given)
        if indices is not None:
            check_dtype(self, frozenset({DType.I64}), indices)
            if indices.rank != 1 or differs(indices.shape[0], past.shape[0]):
                raise self.reject("needs an index for each row of the batch", *given)
        return past

    def compute(
        self, past: te.Tensor, update: te.Tensor, indices: te.Tensor | None = None
    ) -> te.Tensor:
        axis = normal_axis(self, self.axis, past.type.rank, past.type)

        def element(*i: Expr) -> Expr:
            at = i[axis]
            if indices is not None:
                at = at - cast(INDEX, indices[i[0]])
            if self.mode == "circular":
                at = at % past.shape[axis]
            inside = both(at >= 0, at < update.shape[axis])
            return select(inside, update[(*i[:axis], at, *i[axis + 1 :])], past[i])

        given = (past, update) if indices is None else (past, update, indices)
        return te.compute(self.name, past.shape, element, inputs=given)

    def reference(self, past: Array, update: Array, indices: Array | None = None) -> Array:
        past, update = as_f64(past, update)
        result = np.moveaxis(past.copy(), self.axis, 1)
        rows = np.moveaxis(update, self.axis, 1)
        size = result.shape[1]
        for b, first in enumerate(np.zeros(len(past), np.int64) if indices is None else indices):
            places = int(first) + np.arange(rows.shape[1])
            if self.mode == "circular" and size:
                places = places % size
            kept = (places >= 0) & (places < size)
            result[b, places[kept]] = rows[b, kept]
        return np.moveaxis(result, 1, self.axis)
