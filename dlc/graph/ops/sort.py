"""Operators that order elements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dlc.core.types import INDEX, DType
from dlc.graph.assume import is_below
from dlc.graph.op import Array, Fuse, Op, as_f64, op
from dlc.graph.ops.attributes import as_sizes, constants, normal_axis
from dlc.graph.ops.elementwise import NUMBERS, check_dtype
from dlc.graph.ops.precision import widen
from dlc.te import tensor as te
from dlc.te.expr import Expr, UnOp, both, cast, const, either, equal, select, unary
from dlc.te.types import TensorType


@op("top_k", fuse=Fuse.OPAQUE)
class TopK(Op):
    """The k largest (or smallest) elements along an axis, in order, and where they were.

    Of equal elements the first comes first; NaN counts as the largest of all. Every element is
    compared with every other along the axis.

    Source: https://onnx.ai/onnx/operators/onnx__TopK.html
    """

    k: Expr
    axis: int = -1
    largest: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", as_sizes((self.k,))[0])

    def infer(self, x: TensorType) -> tuple[TensorType, TensorType]:
        check_dtype(self, NUMBERS, x)
        axis = normal_axis(self, self.axis, x.rank, x)
        if is_below(x.shape[axis], self.k):
            raise self.reject(f"{self.k} of {x.shape[axis]} elements", x)
        shape = (*x.shape[:axis], self.k, *x.shape[axis + 1 :])
        return TensorType(shape, x.dtype), TensorType(shape, DType.I64)

    def compute(self, x: te.Tensor) -> tuple[te.Tensor, te.Tensor]:
        axis = normal_axis(self, self.axis, x.type.rank, x.type)
        size = x.shape[axis]
        shape = self.infer(x.type)[0].shape

        def at(i: Sequence[Expr], place: Expr) -> tuple[Expr, ...]:
            return (*i[:axis], place, *i[axis + 1 :])

        def rank(*i: Expr) -> te.Reduce:
            """How many elements come before this one."""

            def before(r: Expr) -> Expr:
                found = self._before(widen(x[at(i, r)]), widen(x[i]), r < i[axis])
                return select(found, const(1, DType.I64), const(0, DType.I64))

            return te.reduce_sum((size,), before)

        ranks = te.compute(f"{x.name}_rank", x.shape, rank, inputs=(x,))

        def place(*i: Expr) -> te.Reduce:
            def value(r: Expr) -> Expr:
                hit = equal(ranks[at(i, r)], cast(DType.I64, i[axis]))
                return select(hit, cast(DType.I64, r), const(0, DType.I64))

            return te.reduce_sum((size,), value)

        places = te.compute(f"{x.name}_place", shape, place, inputs=(ranks,))

        def pick(*i: Expr) -> Expr:
            return x[at(i, cast(INDEX, places[i]))]

        values = te.compute(self.name, shape, pick, inputs=(x, places))
        return values, te.elementwise(f"{x.name}_indices", lambda v: v, places)

    def _before(self, other: Expr, own: Expr, earlier: Expr) -> Expr:
        """Whether `other` comes before `own`."""
        first = own < other if self.largest else other < own
        same = equal(own, other)
        if own.dtype.is_float:
            nan, other_nan = unary(UnOp.ISNAN, own), unary(UnOp.ISNAN, other)
            top, low = (other_nan, nan) if self.largest else (nan, other_nan)
            first = either(first, both(top, unary(UnOp.NOT, low)))
            same = either(same, both(nan, other_nan))
        return either(first, both(same, earlier))

    def reference(self, x: Array) -> tuple[Array, Array]:
        (x,) = as_f64(x)
        (k,) = constants((self.k,))
        moved = np.moveaxis(x, self.axis, -1)
        if self.largest:  # a stable sort of the reverse, reversed, keeps equal elements in order
            order = np.flip(np.argsort(np.flip(moved, -1), axis=-1, kind="stable"), -1)
            order = moved.shape[-1] - 1 - order
        else:
            order = np.argsort(moved, axis=-1, kind="stable")
        order = order[..., :k]
        values = np.take_along_axis(moved, order, -1)
        back = (np.moveaxis(a, -1, self.axis) for a in (values, order.astype(np.int64)))
        first, second = back
        return first, second
