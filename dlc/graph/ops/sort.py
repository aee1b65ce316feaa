"""Operators that order elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dlc.core.types import INDEX, DType
from dlc.graph.assume import is_below
from dlc.graph.op import Array, Fuse, Op, as_f64, op
from dlc.graph.ops.attributes import constants, normal_axis, set_size
from dlc.graph.ops.elementwise import NUMBERS, check_dtype
from dlc.graph.ops.precision import widen
from dlc.te import tensor as te
from dlc.te.expr import (
    ONE,
    BinOp,
    Const,
    Expr,
    UnOp,
    both,
    cast,
    ceil_div,
    const,
    either,
    equal,
    index,
    minimum,
    select,
    unary,
)
from dlc.te.simplify import surely_less
from dlc.te.types import Shape, TensorType

FEW = 32
"""Elements that are compared in pairs, along vectors, as fast as in blocks, or as sorted."""
_WIDTHS = (4, 8, 16, 32, 64)
"""Elements of a block of which only the winner takes part at first."""


@dataclass(frozen=True)
class _Elements:
    """Elements along an axis, and where they were; `nothing`, at the place `end`, fills them up."""

    values: te.Tensor
    places: te.Tensor
    axis: int
    end: Expr
    nothing: Expr

    @property
    def length(self) -> Expr:
        return self.values.shape[self.axis]

    def in_blocks(self, width: int) -> _Elements:
        """The same with the axis split in two; behind the last element there is nothing."""
        axis, length = self.axis, self.length
        count = ceil_div(length, width)
        shape = self.values.shape
        grid = (*shape[:axis], count, index(width), *shape[axis + 1 :])

        def padded(name: str, tensor: te.Tensor, nothing: Expr) -> te.Tensor:
            def value(*i: Expr) -> Expr:
                at = i[axis] * width + i[axis + 1]
                held = tensor[(*i[:axis], at, *i[axis + 2 :])]
                return select(at < length, held, nothing)

            return te.compute(name, grid, value, inputs=(tensor,))

        values = padded("block_values", self.values, self.nothing)
        places = padded("block_places", self.places, cast(self.places.dtype, self.end))
        return _Elements(values, places, axis + 1, self.end, self.nothing)

    def gather(
        self,
        shape: Shape,
        where: Callable[[Sequence[Expr]], Sequence[Expr]],
        axis: int,
        by: te.Tensor,
    ) -> _Elements:
        """The elements at positions that are read from `by`, along `axis`."""

        def taken(name: str, tensor: te.Tensor) -> te.Tensor:
            return te.compute(name, shape, lambda *i: tensor[tuple(where(i))], inputs=(tensor, by))

        return _Elements(
            taken("values", self.values), taken("places", self.places), axis, self.end, self.nothing
        )


def _at(i: Sequence[Expr], axis: int, place: Expr) -> tuple[Expr, ...]:
    return (*i[:axis], place, *i[axis + 1 :])


def _block_width(length: Expr, k: Expr) -> int | None:
    """The width of blocks that leaves the fewest pairs to compare; None where blocks do not pay."""
    if not (isinstance(length, Const) and isinstance(k, Const)):
        return None
    n, best = int(length.value), int(k.value)

    def pairs(width: int) -> int:
        blocks = -(-n // width)
        return n * width + blocks**2 + (min(best, blocks) * width) ** 2

    width = min(_WIDTHS, key=pairs)
    return width if n > FEW and 2 * pairs(width) < n * n else None


@op("top_k", fuse=Fuse.OPAQUE)
class TopK(Op):
    """The k largest (or smallest) elements along an axis, in order, and where they were.

    Of equal elements the first comes first; NaN counts as the largest of all. A few of many are
    found among the winners of blocks; else every element is compared with every other.

    Source: https://onnx.ai/onnx/operators/onnx__TopK.html
    """

    k: Expr
    axis: int = -1
    largest: bool = True

    def __post_init__(self) -> None:
        set_size(self, "k")

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
        number = DType.I32 if surely_less(size, 2**31) else DType.I64
        everywhere = te.compute("everywhere", x.shape, lambda *i: cast(number, i[axis]), inputs=())
        places = self._best(_Elements(x, everywhere, axis, size, self._last(x.dtype)), self.k)

        def pick(*i: Expr) -> Expr:
            return x[_at(i, axis, cast(INDEX, places[i]))]

        values = te.compute(self.name, places.shape, pick, inputs=(x, places))
        return values, te.elementwise(f"{x.name}_indices", lambda v: cast(DType.I64, v), places)

    def _best(self, given: _Elements, k: Expr) -> te.Tensor:
        """Where the k first of the elements are, in order.

        They are in the k blocks with the best winners.
        """
        width = _block_width(given.length, k)
        if width is None:
            return self._ordered(given, k)
        axis = given.axis
        blocks = given.in_blocks(width)
        winner = self._ordered(blocks, ONE)

        def of_winner(i: Sequence[Expr]) -> tuple[Expr, ...]:
            own = (*i[: axis + 1], index(0), *i[axis + 1 :])
            return (*i[: axis + 1], cast(INDEX, winner[own]), *i[axis + 1 :])

        count = blocks.values.shape[axis]
        winners = blocks.gather(_at(given.values.shape, axis, count), of_winner, axis, winner)
        best = minimum(k, count)
        top = self._best(winners, best)

        def candidate(i: Sequence[Expr]) -> tuple[Expr, ...]:
            block = cast(INDEX, top[_at(i, axis, i[axis] // width)])
            return (*i[:axis], block, i[axis] % width, *i[axis + 1 :])

        shape = _at(given.values.shape, axis, best * width)
        chosen = self._ordered(blocks.gather(shape, candidate, axis, top), k, name="chosen")

        def found(*i: Expr) -> Expr:
            at = cast(INDEX, chosen[i])
            return top[_at(i, axis, at // width)] * width + cast(top.dtype, at % width)

        return te.compute("found", chosen.shape, found, inputs=(top, chosen))

    def _ordered(self, given: _Elements, k: Expr, name: str = "place") -> te.Tensor:
        """Where the k first of the elements are, in order: each is compared with every other."""
        axis, values, places = given.axis, given.values, given.places
        number = places.dtype
        one, none = const(1, number), const(0, number)

        def rank(*i: Expr) -> te.Reduce:
            """How many elements come before this one."""

            def before(r: Expr) -> Expr:
                at = _at(i, axis, r)
                earlier = places[at] < places[i]
                found = self._before(widen(values[at]), widen(values[i]), earlier)
                return select(found, one, none)

            return te.reduce_sum((given.length,), before)

        ranks = te.compute("rank", values.shape, rank, inputs=(values, places))

        def place(*i: Expr) -> te.Reduce:
            def value(r: Expr) -> Expr:
                hit = equal(ranks[_at(i, axis, r)], cast(number, i[axis]))
                return select(hit, cast(number, r), none)

            return te.reduce_sum((given.length,), value)

        return te.compute(name, _at(values.shape, axis, k), place, inputs=(ranks,))

    def _last(self, dtype: DType) -> Expr:
        """What no element comes after."""
        if dtype.is_float and not self.largest:
            return const(math.nan, dtype)
        return te.identity(BinOp.MAX if self.largest else BinOp.MIN, dtype)

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
