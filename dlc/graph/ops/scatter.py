"""Operators that write elements at indices. An index below 0 counts from the end.

Each update goes to its element: the work grows with the updates, not with the elements times the
updates. An update whose index lies outside changes nothing. Of several updates of one element the
last counts; with a reduction all are combined, with the element itself. Single elements are written
in order. Of slices, which is the last one is a reduction as well, the largest number of an update,
so that no order of execution matters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dlc.core.types import INDEX, DType
from dlc.graph.assume import differs, is_below
from dlc.graph.op import Array, Fuse, Op, as_f64, op
from dlc.graph.ops.attributes import normal_axis
from dlc.graph.ops.elementwise import ANY, NUMBERS, check_dtype
from dlc.graph.ops.gather import check_indices
from dlc.graph.ops.precision import narrow, widen
from dlc.graph.ops.reindex import reshaped_index
from dlc.te import tensor as te
from dlc.te.expr import (
    TRUE,
    ZERO,
    BinOp,
    Expr,
    both,
    cast,
    const,
    maximum,
    select,
)
from dlc.te.simplify import canonical, surely_at_most
from dlc.te.types import Shape, TensorType, is_const

REDUCTIONS = {"add": BinOp.ADD, "mul": BinOp.MUL, "max": BinOp.MAX, "min": BinOp.MIN}
_UFUNCS: dict[str, Any] = {
    "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum,
}  # fmt: skip


Meant = Callable[[Sequence[Expr]], tuple[Expr, tuple[Expr, ...]]]
"""From the position of an update: whether it changes an element, and which."""


class Scatter(Op):
    """What the two forms share."""

    reduction: str = "none"

    def check(self, x: TensorType, indices: TensorType, updates: TensorType) -> None:
        """Refuse types and reductions that do not fit."""
        check_indices(self, x, indices)
        check_dtype(self, ANY if self.reduction == "none" else NUMBERS, x, updates)
        if self.reduction not in ("none", *REDUCTIONS):
            raise self.reject(f"there is no reduction '{self.reduction}'", x, indices, updates)

    def combined(
        self, x: te.Tensor, indices: te.Tensor, updates: te.Tensor, extents: Shape, meant: Meant
    ) -> te.Tensor:
        """Each element with the reduction of its updates."""
        start = te.elementwise(self.name, widen, x)
        total = te.scatter(
            REDUCTIONS[self.reduction],
            start,
            extents,
            lambda *u: (*meant(u), widen(updates[u])),
            inputs=(indices, updates),
        )
        return narrow(total, x.dtype)


def _in_order(
    x: te.Tensor, indices: te.Tensor, updates: te.Tensor, extents: Shape, meant: Meant
) -> te.Tensor:
    """Each element, or its last update."""
    return te.scatter(
        None,
        te.elementwise("placed", lambda v: v, x),
        extents,
        lambda *u: (*meant(u), updates[u]),
        inputs=(indices, updates),
    )


def _last(
    indices: te.Tensor,
    shape: Shape,
    extents: Shape,
    meant: Meant,
    number: Callable[[Sequence[Expr]], Expr],
) -> te.Tensor:
    """The largest number of an update of each element; -1 where there is none."""
    start = te.compute("last", shape, lambda *i: const(-1, DType.I64), inputs=())
    return te.scatter(
        BinOp.MAX,
        start,
        extents,
        lambda *u: (*meant(u), cast(DType.I64, number(u))),
        inputs=(indices,),
    )


def _from_end(value: Expr, size: Expr) -> Expr:
    at = cast(INDEX, value)
    return select(at < 0, at + size, at)


def _inside(at: Expr, size: Expr) -> Expr:
    return both(at >= 0, at < size)


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

        def meant(u: Sequence[Expr]) -> tuple[Expr, tuple[Expr, ...]]:
            at = _from_end(indices[tuple(u)], x.shape[axis])
            inside = _inside(at, x.shape[axis])
            for d, (size, count) in enumerate(zip(x.shape, indices.shape, strict=True)):
                if d != axis and not surely_at_most(count, size):
                    inside = both(inside, u[d] < size)
            return inside, (*u[:axis], at, *u[axis + 1 :])

        if self.reduction != "none":
            return self.combined(x, indices, updates, indices.shape, meant)
        return _in_order(x, indices, updates, indices.shape, meant)

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

        def meant(u: Sequence[Expr]) -> tuple[Expr, tuple[Expr, ...]]:
            q, rest = u[: len(outer)], u[len(outer) :]
            inside: Expr = TRUE
            place: list[Expr] = []
            for d, size in enumerate(x.shape[:count]):
                place.append(_from_end(indices[(*q, const(d, INDEX))], size))
                inside = both(inside, _inside(place[-1], size))
            return inside, (*place, *rest)

        if self.reduction != "none":
            return self.combined(x, indices, updates, (*outer, *x.shape[count:]), meant)

        if count == x.type.rank:
            return _in_order(x, indices, updates, outer, meant)

        def number(u: Sequence[Expr]) -> Expr:
            flat: Expr = ZERO
            for at, size in zip(u, outer, strict=True):
                flat = flat * size + at
            return flat

        last = _last(indices, x.shape[:count], outer, meant, number)
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
