"""Writing into a cache of earlier steps."""

from __future__ import annotations

import numpy as np

from dlc.core.types import INDEX, DType
from dlc.graph.assume import differs, is_below
from dlc.graph.op import Array, Fuse, Op, as_f64, op
from dlc.graph.ops.attributes import constants, normal_axis, set_size
from dlc.graph.ops.elementwise import ANY, check_dtype
from dlc.te import tensor as te
from dlc.te.expr import Const, Expr, both, cast, select
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


@op("append_to_cache", fuse=Fuse.INJECTIVE)
class AppendToCache(Op):
    """The entries of a cache that each row of the batch has, then new ones, then zeros.

    Where there is an operand `skipped`, as many of these are left out in front, and what `size`
    entries do not hold behind. The cache has room for `window` of them at least.

    Shapes:
        past: [batch, heads, n, width]; new: [batch, heads, m, width]; before: [batch], how many of
        past each row has; skipped: [batch] -> [batch, heads, size, width]

    Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.GroupQueryAttention
    """

    size: Expr
    window: int = 0

    def __post_init__(self) -> None:
        set_size(self, "size")

    def infer(
        self,
        past: TensorType,
        new: TensorType,
        before: TensorType,
        skipped: TensorType | None = None,
    ) -> TensorType:
        check_dtype(self, ANY, past, new)
        check_dtype(self, frozenset({DType.I64}), before)
        if skipped not in (None, before):
            raise self.reject("needs numbers of left out entries like the others", before, skipped)
        if past.rank != 4 or new.rank != 4 or before.rank != 1:
            raise self.reject("needs entries of rank 4 and a vector", past, new, before)
        rest = (*zip(past.shape, new.shape, strict=True), (past.shape[0], before.shape[0]))
        if any(differs(*pair) for axis, pair in enumerate(rest) if axis != 2):
            raise self.reject("the operands differ in more than their entries", past, new, before)
        if skipped is None and is_below(self.size, new.shape[2]):
            raise self.reject(f"{self.size} entries have no room", past, new, before)
        if is_below(past.shape[2], self.window):
            raise self.reject(f"the cache has no room for {self.window} entries", past, new, before)
        return TensorType((*past.shape[:2], self.size, past.shape[3]), past.dtype)

    def compute(
        self, past: te.Tensor, new: te.Tensor, before: te.Tensor, *skipped: te.Tensor
    ) -> te.Tensor:
        zero = Const(0.0 if past.dtype.is_float else 0, past.dtype)

        def element(batch: Expr, head: Expr, at: Expr, lane: Expr) -> Expr:
            first = cast(INDEX, before[batch])
            for count in skipped:
                at = at + cast(INDEX, count[batch])
            is_old = both(both(at >= 0, at < first), at < past.shape[2])
            is_new = both(at >= first, at - first < new.shape[2])
            appended = select(is_new, new[batch, head, at - first, lane], zero)
            return select(is_old, past[batch, head, at, lane], appended)

        operands = (past, new, before, *skipped)
        shape = self.infer(*(t.type for t in operands)).shape
        return te.compute(self.name, shape, element, inputs=operands)

    def reference(self, past: Array, new: Array, before: Array, *skipped: Array) -> Array:
        (size,) = constants((self.size,))
        past, new = as_f64(past, new)
        result = np.zeros((*past.shape[:2], size, past.shape[3]), past.dtype)
        for row, first in enumerate(before):
            start = int(skipped[0][row]) if skipped else 0
            for at in range(size):
                place = at + start
                if 0 <= place < min(first, past.shape[2]):
                    result[row, :, at] = past[row, :, place]
                elif first <= place < first + new.shape[2]:
                    result[row, :, at] = new[row, :, place - first]
        return result
