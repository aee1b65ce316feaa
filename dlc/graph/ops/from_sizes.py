"""Tensors made from sizes alone."""

from __future__ import annotations

from itertools import accumulate, groupby

import numpy as np

from dlc.core.types import DType
from dlc.graph.arrays import NUMPY_DTYPES
from dlc.graph.assume import differs
from dlc.graph.op import Array, Fuse, Op, op
from dlc.graph.ops.attributes import as_sizes, constants, set_size, set_sizes
from dlc.graph.ops.precision import wide
from dlc.graph.ops.reindex import reshaped_index
from dlc.te import tensor as te
from dlc.te.expr import Expr, cast, const, select
from dlc.te.simplify import canonical
from dlc.te.types import TensorType


@op("sizes", fuse=Fuse.INJECTIVE)
class SizeTensor(Op):
    """A tensor of integers whose elements are sizes, in row-major order."""

    signed = ("values",)
    values: tuple[Expr, ...]
    shape: tuple[Expr, ...]
    dtype: DType = DType.I64

    def __post_init__(self) -> None:
        set_sizes(self, "values", "shape")

    def infer(self) -> TensorType:
        result = TensorType(self.shape, self.dtype)
        if not self.dtype.is_int or differs(result.elems, len(self.values)):
            raise self.reject(f"{len(self.values)} sizes do not make {result}")
        return result

    def compute(self) -> te.Tensor:
        runs = [(value, len(list(same))) for value, same in groupby(self.values)]
        ends = tuple(accumulate(length for _, length in runs))

        def element(*i: Expr) -> Expr:
            (flat,) = reshaped_index(i, self.shape, (canonical(self.infer().elems),))

            def among(first: int, end: int) -> Expr:
                """The element, which is of one of the runs from `first` to before `end`."""
                if end - first == 1:
                    return cast(self.dtype, runs[first][0])
                middle = (first + end) // 2
                here = among(first, middle)
                return select(flat < ends[middle - 1], here, among(middle, end))

            return among(0, len(runs)) if runs else const(0, self.dtype)

        return te.compute(self.name, self.shape, element, inputs=())

    def reference(self) -> Array:
        values = np.array(constants(self.values), NUMPY_DTYPES[self.dtype])
        return values.reshape(constants(self.shape))


@op("range", fuse=Fuse.INJECTIVE)
class Range(Op):
    """start, start + delta, ...: `size` numbers.

    `start` is a size expression or, for floats, a number.
    """

    signed = ("start", "delta")
    size: Expr
    start: Expr | float = 0
    delta: Expr | float = 1
    dtype: DType = DType.I64

    def __post_init__(self) -> None:
        set_size(self, "size")
        for name in ("start", "delta"):
            value = getattr(self, name)
            if not isinstance(value, float):
                object.__setattr__(self, name, as_sizes((value,))[0])

    def infer(self) -> TensorType:
        fraction = isinstance(self.start, float) or isinstance(self.delta, float)
        if self.dtype is DType.BOOL or (fraction and not self.dtype.is_float):
            raise self.reject(f"no range of {self.dtype} from {self.start} by {self.delta}")
        return TensorType((self.size,), self.dtype)

    def compute(self) -> te.Tensor:
        exact = wide(self.dtype)

        def term(value: Expr | float) -> Expr:
            return const(value, exact) if isinstance(value, float) else cast(exact, value)

        def element(i: Expr) -> Expr:
            if not (isinstance(self.start, float) or isinstance(self.delta, float)):
                return cast(self.dtype, self.start + i * self.delta)
            return cast(self.dtype, term(self.start) + cast(exact, i) * term(self.delta))

        return te.compute(self.name, (self.size,), element, inputs=())

    def reference(self) -> Array:
        start, delta = (
            v if isinstance(v, float) else constants((v,))[0] for v in (self.start, self.delta)
        )
        (size,) = constants((self.size,))
        values = start + np.arange(size) * delta
        return values.astype(np.float64 if self.dtype.is_float else NUMPY_DTYPES[self.dtype])
