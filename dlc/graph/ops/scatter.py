"""Operators that write elements at indices. An index below 0 counts from the end.

Each result looks for the updates that are meant for it, so they need no order of execution, and
an update whose index lies outside changes nothing. Of several updates of one element the last
counts; with a reduction all are combined, with the element itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dlc.core.types import INDEX, DType
from dlc.graph.assume import differs, is_below
from dlc.graph.op import Array, Fuse, Op, as_f64, op
from dlc.graph.ops.attributes import normal_axis
from dlc.graph.ops.elementwise import ANY, NUMBERS, check_dtype
from dlc.graph.ops.gather import check_indices
from dlc.graph.ops.precision import widen
from dlc.graph.ops.reindex import reshaped_index
from dlc.te import tensor as te
from dlc.te.expr import (
    TRUE,
    BinOp,
    Expr,
    binary,
    both,
    cast,
    const,
    equal,
    maximum,
    select,
)
from dlc.te.simplify import canonical, surely_at_most
from dlc.te.types import Shape, TensorType, is_const

REDUCTIONS = {"add": BinOp.ADD, "mul": BinOp.MUL, "max": BinOp.MAX, "min": BinOp.MIN}
_UFUNCS: dict[str, Any] = {
    "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum,
}  # fmt: skip


class Scatter(Op):
    """What the two forms share."""

    reduction: str = "none"

    def check(self, x: TensorType, indices: TensorType, updates: TensorType) -> None:
        """Refuse types and reductions that do not fit."""
        check_indices(self, x, indices)
        check_dtype(self, ANY if self.reduction == "none" else NUMBERS, x, updates)
        if self.reduction not in ("none", *REDUCTIONS):
            raise self.reject(f"there is no reduction '{self.reduction}'", x, indices, updates)

    def combined(self, x: te.Tensor, changes: te.Tensor) -> te.Tensor:
        """Each element with the reduction of its updates."""
        function = REDUCTIONS[self.reduction]
        return te.elementwise(
            self.name, lambda v, u: cast(x.dtype, binary(function, widen(v), u)), x, changes
        )

    def neutral(self, dtype: DType) -> Expr:
        """What leaves an element as it is."""
        return te.identity(REDUCTIONS[self.reduction], dtype)


def _from_end(value: Expr, size: Expr) -> Expr:
    at = cast(INDEX, value)
    return select(at < 0, at + size, at)


@op("scatter_elements", fuse=Fuse.OPAQUE, onnx="ScatterElements")
class ScatterElements(Scatter):
    """x with updates, each at its own position but for one axis, where the index says.

    Shapes:
        x: [*s, n, *t]; indices, updates: [*u] of the same rank, no larger in other axes -> as x

    Source: https://onnx.ai/onnx/operators/onnx__ScatterElements.html
    """

    axis: int = 0
    reduction: str = "none"

    def infer(self, x: TensorType, indices: TensorType, updates: TensorType) -> TensorType:
        self.check(x, indices, updates)
        axis = normal_axis(self, self.axis, x.rank, x, indices, updates)
        if not x.rank == indices.rank == updates.rank:
            raise self.reject("the operands differ in rank", x, indices, updates)
        shapes = zip(x.shape, indices.shape, updates.shape, strict=True)
        for d, (n, m, u) in enumerate(shapes):
            if differs(m, u) or (d != axis and is_below(n, m)):
                raise self.reject("the sizes do not fit", x, indices, updates)
        return x

    def compute(self, x: te.Tensor, indices: te.Tensor, updates: te.Tensor) -> te.Tensor:
        axis = normal_axis(self, self.axis, x.type.rank, x.type)
        length = indices.shape[axis]

        def meant(i: Sequence[Expr], r: Expr) -> tuple[tuple[Expr, ...], Expr, Expr]:
            """Where update `r` of this line is, whether there is one, whether it is meant."""
            place = (*i[:axis], r, *i[axis + 1 :])
            exists: Expr = TRUE
            for d, (at, size) in enumerate(zip(i, indices.shape, strict=True)):
                if d != axis and not surely_at_most(x.shape[d], size):
                    exists = both(exists, at < size)
            return place, exists, equal(_from_end(indices[place], x.shape[axis]), i[axis])

        if self.reduction != "none":

            def total(*i: Expr) -> te.Reduce:
                def value(r: Expr) -> Expr:
                    place, exists, hit = meant(i, r)
                    update = widen(updates[place])
                    none = self.neutral(update.dtype)
                    return select(exists, select(hit, update, none), none)

                return te.reduce(REDUCTIONS[self.reduction], (length,), value)

            changes = te.compute(f"{x.name}_changes", x.shape, total, inputs=(indices, updates))
            return self.combined(x, changes)

        def latest(*i: Expr) -> te.Reduce:
            def value(r: Expr) -> Expr:
                _, exists, hit = meant(i, r)
                none = const(-1, DType.I64)
                return select(exists, select(hit, cast(DType.I64, r), none), none)

            return te.reduce_max((length,), value)

        last = te.compute(f"{x.name}_last", x.shape, latest, inputs=(indices,))

        def element(*i: Expr) -> Expr:
            place = (*i[:axis], maximum(cast(INDEX, last[i]), 0), *i[axis + 1 :])
            return select(last[i] >= 0, updates[place], x[i])

        return te.compute(self.name, x.shape, element, inputs=(x, updates, last))

    def reference(self, x: Array, indices: Array, updates: Array) -> Array:
        x, updates = (a.copy() for a in as_f64(x, updates))
        axis = self.axis % x.ndim
        at = np.where(indices < 0, indices + x.shape[axis], indices)
        inside = (at >= 0) & (at < x.shape[axis])
        place = [np.asarray(c)[inside] for c in np.indices(indices.shape)]
        place[axis] = at[inside]
        return _placed(x, tuple(place), updates[inside], self.reduction)


def _placed(x: Array, place: tuple[Array, ...], updates: Array, reduction: str) -> Array:
    if reduction == "none":
        x[place] = updates  # NumPy writes in order: the last counts
    else:
        _UFUNCS[reduction].at(x, place, updates)
    return x


@op("scatter_nd", fuse=Fuse.OPAQUE, onnx="ScatterND")
class ScatterND(Scatter):
    """x with slices updated at positions that the last axis of the indices spells out.

    Shapes:
        x: [*s]; indices: [*q, k]; updates: [*q, *s without its first k axes] -> as x

    Source: https://onnx.ai/onnx/operators/onnx__ScatterND.html
    """

    reduction: str = "none"

    def infer(self, x: TensorType, indices: TensorType, updates: TensorType) -> TensorType:
        self.check(x, indices, updates)
        length = indices.shape[-1] if indices.rank else None
        known = [k for k in range(1, x.rank + 1) if length is not None and is_const(length, k)]
        if not known:
            raise self.reject(f"positions of {length} numbers", x, indices, updates)
        wanted = (*indices.shape[:-1], *x.shape[known[0] :])
        unequal = any(differs(n, m) for n, m in zip(wanted, updates.shape, strict=False))
        if len(wanted) != updates.rank or unequal:
            raise self.reject(f"updates of {TensorType(wanted)} are due", x, indices, updates)
        return x

    def compute(self, x: te.Tensor, indices: te.Tensor, updates: te.Tensor) -> te.Tensor:
        outer: Shape = indices.shape[:-1]
        count = x.type.rank - (updates.type.rank - len(outer))

        def hit(i: Sequence[Expr], q: Sequence[Expr]) -> Expr:
            found: Expr = TRUE
            for d in range(count):
                at = _from_end(indices[(*q, const(d, INDEX))], x.shape[d])
                found = both(found, equal(at, i[d]))
            return found

        if self.reduction != "none":

            def total(*i: Expr) -> te.Reduce:
                def value(*q: Expr) -> Expr:
                    update = widen(updates[(*q, *i[count:])])
                    return select(hit(i, q), update, self.neutral(update.dtype))

                return te.reduce(REDUCTIONS[self.reduction], outer, value)

            changes = te.compute(f"{x.name}_changes", x.shape, total, inputs=(indices, updates))
            return self.combined(x, changes)

        def latest(*i: Expr) -> te.Reduce:
            def value(*q: Expr) -> Expr:
                flat: Expr = const(0, INDEX)
                for at, size in zip(q, outer, strict=True):
                    flat = flat * size + at
                return select(hit(i, q), cast(DType.I64, flat), const(-1, DType.I64))

            return te.reduce_max(outer, value)

        last = te.compute(f"{x.name}_last", x.shape[:count], latest, inputs=(indices,))
        everything = canonical(TensorType(outer).elems)

        def element(*i: Expr) -> Expr:
            found = last[i[:count]]
            flat = maximum(cast(INDEX, found), 0)
            place = reshaped_index((flat,), (everything,), outer)
            return select(found >= 0, updates[(*place, *i[count:])], x[i])

        return te.compute(self.name, x.shape, element, inputs=(x, updates, last))

    def reference(self, x: Array, indices: Array, updates: Array) -> Array:
        x, updates = (a.copy() for a in as_f64(x, updates))
        count = indices.shape[-1]
        rows = indices.reshape(-1, count)
        sizes = np.array(x.shape[:count])
        at = np.where(rows < 0, rows + sizes, rows)
        inside = np.all((at >= 0) & (at < sizes), axis=1)
        values = updates.reshape(len(rows), *x.shape[count:])[inside]
        return _placed(x, tuple(at[inside].T), values, self.reduction)
