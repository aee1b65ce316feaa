"""Operators behind those whose results are as many as the data says."""

from __future__ import annotations

import numpy as np

from dlc.core.types import DType
from dlc.graph.op import Array, Fuse, Op, op
from dlc.graph.ops.attributes import as_sizes, constants
from dlc.te import tensor as te
from dlc.te.expr import Binary, BinOp, Expr, both, cast, const, equal, index, select
from dlc.te.types import TensorType

_BLOCK = 256
"""Elements that a running count adds up one by one; blocks of them are added up as wholes."""
_WIDTH = 64
"""Blocks that a search looks at one by one."""


@op("running_count", fuse=Fuse.OPAQUE)
class RunningCount(Op):
    """How many elements are true up to each one, itself included.

    Shapes:
        x: bool[n] -> i64[n]
    """

    def infer(self, x: TensorType) -> TensorType:
        if x.rank != 1 or x.dtype is not DType.BOOL:
            raise self.reject("needs a vector of bools", x)
        return TensorType(x.shape, DType.I64)

    def compute(self, x: te.Tensor) -> te.Tensor:
        (size,) = x.shape
        blocks = (size + (_BLOCK - 1)) // _BLOCK
        one, none = const(1, DType.I64), const(0, DType.I64)

        def total(b: Expr) -> te.Reduce:
            def value(r: Expr) -> Expr:
                at = b * _BLOCK + r
                return select(at < size, select(x[at], one, none), none)

            return te.reduce_sum((index(_BLOCK),), value)

        totals = te.compute("totals", (blocks,), total, inputs=(x,))

        def start(b: Expr) -> te.Reduce:
            return te.reduce_sum((blocks,), lambda r: select(r < b, totals[r], none))

        starts = te.compute("starts", (blocks,), start, inputs=(totals,))

        def within(i: Expr) -> te.Reduce:
            def value(r: Expr) -> Expr:
                at = i // _BLOCK * _BLOCK + r
                return select(at <= i, select(x[at], one, none), none)

            return te.reduce_sum((index(_BLOCK),), value)

        inside = te.compute("inside", x.shape, within, inputs=(x,))
        return te.compute(
            self.name, x.shape, lambda i: inside[i] + starts[i // _BLOCK], inputs=(inside, starts)
        )

    def reference(self, x: Array) -> Array:
        return np.cumsum(x, dtype=np.int64)


@op("find_counts", fuse=Fuse.OPAQUE)
class FindCounts(Op):
    """Where a running count becomes 1, 2, ... `count`: the places of the first true elements.

    Found among blocks of blocks, then among blocks, then inside of one. Where the count stays
    below, the result is the number of elements.

    Shapes:
        counts: i64[n], not falling -> i64[count]
    """

    count: Expr

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", as_sizes((self.count,))[0])

    def infer(self, counts: TensorType) -> TensorType:
        if counts.rank != 1 or counts.dtype is not DType.I64:
            raise self.reject("needs a vector of i64", counts)
        return TensorType((self.count,), DType.I64)

    def compute(self, counts: te.Tensor) -> te.Tensor:
        (size,) = counts.shape
        width = _WIDTH

        def below(name: str, wide: int, extent: Expr, *before: te.Tensor) -> te.Tensor:
            """How many blocks of `wide` elements, after those counted before, end too low."""

            def total(j: Expr) -> te.Reduce:
                start: Expr = index(0)
                for found in before:
                    start = start * width + found[j]

                def value(r: Expr) -> Expr:
                    end = (start * width + r + 1) * wide
                    low = counts[end - 1] <= cast(DType.I64, j)
                    found = select(end <= size, low, const(False, DType.BOOL))
                    return select(found, index(1), index(0))

                return te.reduce_sum((extent,), value)

            return te.compute(name, (self.count,), total, inputs=(counts, *before))

        coarse = below("coarse", width * width, size // (width * width))
        middle = below("middle", width, index(width), coarse)
        fine = below("fine", 1, index(width), coarse, middle)
        return te.compute(
            self.name,
            (self.count,),
            lambda j: cast(DType.I64, (coarse[j] * width + middle[j]) * width + fine[j]),
            inputs=(coarse, middle, fine),
        )

    def reference(self, counts: Array) -> Array:
        (count,) = constants((self.count,))
        return np.searchsorted(counts, np.arange(count), side="right").astype(np.int64)


@op("unique_ranks", fuse=Fuse.OPAQUE)
class UniqueRanks(Op):
    """For each row the first row that equals it, and how many distinct rows come before.

    Rows come before others in lexicographic order if `sorted`, else in order of appearance. NaNs
    equal each other and come last. Every row is compared with every other.

    Shapes:
        x: [n, m] -> i64[n], i64[n]

    Source: https://onnx.ai/onnx/operators/onnx__Unique.html
    """

    sorted: bool = True

    def infer(self, x: TensorType) -> tuple[TensorType, TensorType]:
        if x.rank != 2:
            raise self.reject("needs a matrix", x)
        result = TensorType(x.shape[:1], DType.I64)
        return result, result

    def compute(self, x: te.Tensor) -> tuple[te.Tensor, te.Tensor]:
        rows, columns = x.shape
        none, one = const(0, DType.I64), const(1, DType.I64)

        def same(a: Expr, b: Expr) -> Expr:
            if not a.dtype.is_float:
                return equal(a, b)
            both_nan = both(Binary(BinOp.NE, a, a), Binary(BinOp.NE, b, b))
            return select(both_nan, const(True, DType.BOOL), equal(a, b))

        def differing(i: Expr, j: Expr) -> te.Reduce:
            """The first column in which two rows differ, or the number of columns."""
            return te.reduce(
                BinOp.MIN, (columns,), lambda c: select(same(x[i, c], x[j, c]), columns, c)
            )

        found = te.compute("differing", (rows, rows), differing, inputs=(x,))

        def earliest(i: Expr) -> te.Reduce:
            return te.reduce(BinOp.MIN, (rows,), lambda r: select(columns <= found[i, r], r, rows))

        first = te.compute("first", (rows,), earliest, inputs=(found,))

        def before(i: Expr) -> te.Reduce:
            def value(r: Expr) -> Expr:
                if self.sorted:
                    at = found[i, r]
                    less = select(at < columns, _less(x[r, at], x[i, at]), const(False, DType.BOOL))
                else:
                    less = r < first[i]
                return select(equal(first[r], r), select(less, one, none), none)

            return te.reduce_sum((rows,), value)

        inputs = (x, found, first) if self.sorted else (first,)
        ranks = te.compute("ranks", (rows,), before, inputs=inputs)
        return (
            te.compute(self.name, (rows,), lambda i: cast(DType.I64, first[i]), inputs=(first,)),
            ranks,
        )

    def reference(self, x: Array) -> tuple[Array, Array]:
        keys = [tuple((bool(v != v), 0 if v != v else v) for v in row) for row in x.tolist()]
        first: dict[tuple[tuple[bool, float], ...], int] = {}
        for position, key in enumerate(keys):
            first.setdefault(key, position)
        order = {key: i for i, key in enumerate(sorted(first) if self.sorted else first)}
        ranks = np.array([order[key] for key in keys], np.int64)
        return np.array([first[key] for key in keys], np.int64), ranks


def _less(a: Expr, b: Expr) -> Expr:
    """Whether a comes before b; a bool as a number, NaN last."""
    if a.dtype is DType.BOOL:
        return cast(DType.I32, a) < cast(DType.I32, b)
    if not a.dtype.is_float:
        return a < b
    last = both(equal(a, a), Binary(BinOp.NE, b, b))
    return select(last, const(True, DType.BOOL), a < b)
