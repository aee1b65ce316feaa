"""Operators that pick elements by indices. An index below 0 counts from the end.

Indices that lie outside all the same are moved to the nearest end: no index reads other memory.
"""

from __future__ import annotations

import numpy as np

from dlc.core.count import show_count
from dlc.core.types import INDEX, DType
from dlc.graph.assume import differs, is_below
from dlc.graph.op import Array, Fuse, Op, op
from dlc.graph.ops.attributes import constants, normal_axis, set_size
from dlc.te import tensor as te
from dlc.te.expr import ZERO, Expr, cast, const, equal, maximum, minimum, select
from dlc.te.simplify import surely_less
from dlc.te.types import TensorType, is_const

INDICES = frozenset({DType.I32, DType.I64})


def safe_index(value: Expr, size: Expr) -> Expr:
    """An index that is inside of a dimension for all values, if the dimension has elements."""
    at = cast(INDEX, value)
    wrapped = select(at < 0, at + size, at)
    return maximum(minimum(wrapped, size - 1), 0)


def guarded(load: Expr, x: te.Tensor, *sizes: Expr) -> Expr:
    """An element, or 0 where a dimension that is indexed has none."""
    for size in sizes:
        if not surely_less(0, size):
            load = select(const(0, INDEX) < size, load, const(0, x.dtype))
    return load


def exact_index(indices: Array, size: int) -> Array:
    """What `safe_index` gives, in NumPy."""
    wrapped = np.where(indices < 0, indices + size, indices)
    return np.clip(wrapped, 0, max(size - 1, 0))


def with_elements(x: Array, axis: int) -> Array:
    """`x`, or zeros to pick from where the axis has no element."""
    if x.shape[axis]:
        return x
    return np.zeros([1 if d == axis % x.ndim else n for d, n in enumerate(x.shape)], x.dtype)


def check_indices(op: Op, x: TensorType, indices: TensorType) -> None:
    """Refuse indices that are not integers."""
    if indices.dtype not in INDICES:
        raise op.reject(f"indices of type {indices.dtype}", x, indices)


@op("gather", fuse=Fuse.INJECTIVE, onnx="Gather")
class Gather(Op):
    """Slices of x along an axis, one for each index.

    Shapes:
        x: [*before, n, *after]; indices: [*i] -> [*before, *i, *after]

    Source: https://onnx.ai/onnx/operators/onnx__Gather.html
    """

    axis: int = 0

    def infer(self, x: TensorType, indices: TensorType) -> TensorType:
        check_indices(self, x, indices)
        axis = normal_axis(self, self.axis, x.rank, x, indices)
        shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
        result = TensorType(shape, x.dtype)
        if is_const(x.shape[axis], 0) and surely_less(0, indices.elems):
            raise self.reject("there is nothing to pick from", x, indices)
        return result

    def compute(self, x: te.Tensor, indices: te.Tensor) -> te.Tensor:
        axis = normal_axis(self, self.axis, x.type.rank, x.type)
        size = x.shape[axis]
        rank = indices.type.rank

        def element(*i: Expr) -> Expr:
            at = safe_index(indices[i[axis : axis + rank]], size)
            return guarded(x[(*i[:axis], at, *i[axis + rank :])], x, size)

        shape = self.infer(x.type, indices.type).shape
        return te.compute(self.name, shape, element, inputs=(x, indices))

    def reference(self, x: Array, indices: Array) -> Array:
        at = exact_index(indices, x.shape[self.axis])
        return np.asarray(np.take(with_elements(x, self.axis), at, self.axis))


@op("gather_elements", fuse=Fuse.INJECTIVE, onnx="GatherElements")
class GatherElements(Op):
    """Elements of x, each at its own position but for one axis, where the index says.

    Shapes:
        x: [*s, n, *t]; indices: [*u] of the same rank, no larger in other axes -> [*u]

    Source: https://onnx.ai/onnx/operators/onnx__GatherElements.html
    """

    axis: int = 0

    def infer(self, x: TensorType, indices: TensorType) -> TensorType:
        check_indices(self, x, indices)
        axis = normal_axis(self, self.axis, x.rank, x, indices)
        if x.rank != indices.rank:
            raise self.reject("x and the indices differ in rank", x, indices)
        pairs = zip(x.shape, indices.shape, strict=True)
        if any(d != axis and is_below(n, m) for d, (n, m) in enumerate(pairs)):
            raise self.reject("the indices are larger than x", x, indices)
        return TensorType(indices.shape, x.dtype)

    def compute(self, x: te.Tensor, indices: te.Tensor) -> te.Tensor:
        axis = normal_axis(self, self.axis, x.type.rank, x.type)
        size = x.shape[axis]

        def element(*i: Expr) -> Expr:
            at = safe_index(indices[i], size)
            return guarded(x[(*i[:axis], at, *i[axis + 1 :])], x, size)

        return te.compute(self.name, indices.shape, element, inputs=(x, indices))

    def reference(self, x: Array, indices: Array) -> Array:
        at = exact_index(indices, x.shape[self.axis])
        cut = tuple(slice(0, n) for n in indices.shape)
        axis = self.axis % x.ndim
        part = with_elements(x, axis)[(*cut[:axis], slice(None), *cut[axis + 1 :])]
        return np.asarray(np.take_along_axis(part, at, axis))


@op("gather_nd", fuse=Fuse.INJECTIVE, onnx="GatherND")
class GatherND(Op):
    """Slices of x at positions that the last axis of the indices spells out.

    Shapes:
        x: [*batch, *s]; indices: [*batch, *i, k] -> [*batch, *i, *s without its first k axes]

    Source: https://onnx.ai/onnx/operators/onnx__GatherND.html
    """

    batch_dims: int = 0

    def infer(self, x: TensorType, indices: TensorType) -> TensorType:
        check_indices(self, x, indices)
        batch = self.batch_dims
        if not 0 <= batch < min(x.rank, indices.rank):
            raise self.reject(show_count(batch, "batch dimension"), x, indices)
        if any(differs(n, m) for n, m in zip(x.shape[:batch], indices.shape, strict=False)):
            raise self.reject("the batch dimensions differ", x, indices)
        length = indices.shape[-1]
        known = [k for k in range(1, x.rank - batch + 1) if is_const(length, k)]
        if not known:
            raise self.reject(f"positions of {length} numbers", x, indices)
        tail = x.shape[batch + known[0] :]
        return TensorType((*indices.shape[:-1], *tail), x.dtype)

    def compute(self, x: te.Tensor, indices: te.Tensor) -> te.Tensor:
        type_ = self.infer(x.type, indices.type)
        batch, outer = self.batch_dims, indices.type.rank - 1
        count = x.type.rank - batch - (type_.rank - outer)
        sizes = x.shape[batch : batch + count]

        def element(*i: Expr) -> Expr:
            at = [
                safe_index(indices[(*i[:outer], const(d, INDEX))], size)
                for d, size in enumerate(sizes)
            ]
            return guarded(x[(*i[:batch], *at, *i[outer:])], x, *sizes)

        return te.compute(self.name, type_.shape, element, inputs=(x, indices))

    def reference(self, x: Array, indices: Array) -> Array:
        batch = self.batch_dims
        outer, count = indices.shape[:-1], indices.shape[-1]
        for axis in range(batch, batch + count):
            x = with_elements(x, axis)
        result = np.empty((*outer, *x.shape[batch + count :]), x.dtype)
        for position in np.ndindex(*outer):
            where = indices[position]
            sizes = x.shape[batch : batch + count]
            at = [int(exact_index(w, n)) for w, n in zip(where, sizes, strict=True)]
            result[position] = x[(*position[:batch], *at)]
        return result


@op("one_hot", fuse=Fuse.INJECTIVE)
class OneHot(Op):
    """`on` where the position along a new axis is the index, else `off`.

    Operands: indices, and [off, on]. Indices outside of -depth ... depth - 1 have no `on`.

    Source: https://onnx.ai/onnx/operators/onnx__OneHot.html
    """

    depth: Expr
    axis: int = -1

    def __post_init__(self) -> None:
        set_size(self, "depth")

    def infer(self, indices: TensorType, values: TensorType) -> TensorType:
        axis = normal_axis(self, self.axis, indices.rank + 1, indices, values)
        if not indices.dtype.is_int or values.rank != 1 or differs(values.shape[0], 2):
            raise self.reject("needs integers and two values", indices, values)
        shape = (*indices.shape[:axis], self.depth, *indices.shape[axis:])
        return TensorType(shape, values.dtype)

    def compute(self, indices: te.Tensor, values: te.Tensor) -> te.Tensor:
        axis = normal_axis(self, self.axis, indices.type.rank + 1, indices.type)

        def element(*i: Expr) -> Expr:
            at = cast(INDEX, indices[(*i[:axis], *i[axis + 1 :])])
            at = select(at < 0, at + self.depth, at)
            return select(equal(at, i[axis]), values[1], values[0])

        shape = self.infer(indices.type, values.type).shape
        return te.compute(self.name, shape, element, inputs=(indices, values))

    def reference(self, indices: Array, values: Array) -> Array:
        (depth,) = constants((self.depth,))
        at = np.where(indices < 0, indices + depth, indices)
        axis = self.axis % (indices.ndim + 1)
        places = np.arange(depth).reshape(-1, *[1] * (indices.ndim - axis))
        chosen = np.expand_dims(at, axis) == places
        return np.asarray(values[chosen.astype(np.int64)])


@op("trilu", fuse=Fuse.INJECTIVE)
class Trilu(Op):
    """The upper or lower triangle of the last two axes, moved by k columns; zeros elsewhere.

    Source: https://onnx.ai/onnx/operators/onnx__Trilu.html
    """

    signed = ("k",)
    upper: bool = True
    k: Expr = ZERO

    def __post_init__(self) -> None:
        set_size(self, "k")

    def infer(self, x: TensorType) -> TensorType:
        if x.rank < 2:
            raise self.reject("needs 2 or more dimensions", x)
        return x

    def compute(self, x: te.Tensor) -> te.Tensor:
        def element(*i: Expr) -> Expr:
            row, column = i[-2:]
            kept = row + self.k <= column if self.upper else column <= row + self.k
            return select(kept, x[i], const(0, x.dtype))

        return te.compute(self.name, x.shape, element, inputs=(x,))

    def reference(self, x: Array) -> Array:
        (k,) = constants((self.k,))
        return np.asarray(np.triu(x, k) if self.upper else np.tril(x, k))


@op("reverse_sequence", fuse=Fuse.INJECTIVE)
class ReverseSequence(Op):
    """The first elements along the time axis in reverse, as many as each sequence is long.

    Operands: x, and the length of the sequence of each position of the batch axis.

    Source: https://onnx.ai/onnx/operators/onnx__ReverseSequence.html
    """

    batch_axis: int = 1
    time_axis: int = 0

    def infer(self, x: TensorType, lengths: TensorType) -> TensorType:
        check_indices(self, x, lengths)
        if {self.batch_axis, self.time_axis} != {0, 1} or x.rank < 2:
            raise self.reject("batch and time are not the first two axes", x, lengths)
        if lengths.rank != 1 or differs(lengths.shape[0], x.shape[self.batch_axis]):
            raise self.reject("needs a length for each sequence", x, lengths)
        return x

    def compute(self, x: te.Tensor, lengths: te.Tensor) -> te.Tensor:
        def element(*i: Expr) -> Expr:
            time = i[self.time_axis]
            length = cast(INDEX, lengths[i[self.batch_axis]])
            turned = maximum(minimum(length, x.shape[self.time_axis]) - 1 - time, 0)
            place = list(i)
            place[self.time_axis] = select(time < length, turned, time)
            return x[tuple(place)]

        return te.compute(self.name, x.shape, element, inputs=(x, lengths))

    def reference(self, x: Array, lengths: Array) -> Array:
        result = np.moveaxis(x, self.batch_axis, 0).copy()
        for sequence, length in zip(result, np.clip(lengths, 0, result.shape[1]), strict=True):
            sequence[:length] = sequence[:length][::-1].copy()
        return np.moveaxis(result, 0, self.batch_axis)
