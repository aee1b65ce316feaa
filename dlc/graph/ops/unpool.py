"""Where the largest element of a window lies, and back from there."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from dlc.core.types import DType
from dlc.graph.assume import differs
from dlc.graph.op import Array, Fuse, Op, as_f64, op
from dlc.graph.ops.attributes import constants, set_sizes
from dlc.graph.ops.elementwise import NUMBERS, check_dtype
from dlc.graph.ops.pool import MaxPool, Pool
from dlc.te import tensor as te
from dlc.te.expr import (
    TRUE,
    ZERO,
    BinOp,
    Expr,
    UnOp,
    both,
    cast,
    const,
    either,
    equal,
    select,
    unary,
)
from dlc.te.types import TensorType


@op("max_pool_indices", fuse=Fuse.REDUCTION)
class MaxPoolIndices(Pool):
    """Where the largest element of each window is, counted through all of x; the first NaN wins.

    `column_major` counts within an image column by column.

    Source: https://onnx.ai/onnx/operators/onnx__MaxPool.html
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...] = (1, 1)
    pads: tuple[int, ...] = (0, 0, 0, 0)
    dilation: tuple[int, ...] = (1, 1)
    ceil_mode: bool = False
    column_major: bool = False

    def infer(self, x: TensorType) -> TensorType:
        check_dtype(self, NUMBERS, x)
        return TensorType(super().infer(x).shape, DType.I64)

    def compute(self, x: te.Tensor) -> te.Tensor:
        plain = MaxPool(
            kernel=self.kernel, stride=self.stride, pads=self.pads, dilation=self.dilation,
            ceil_mode=self.ceil_mode,
        )  # fmt: skip
        top = plain.compute(x)

        def element(*out: Expr) -> te.Reduce:
            def value(*k: Expr) -> Expr:
                index, inside = self.window(x, out, k)
                found = equal(x[index], top[out])
                if x.dtype.is_float:
                    found = either(found, unary(UnOp.ISNAN, x[index]))
                place = cast(DType.I64, self._place(index, x.shape))
                nowhere = te.identity(BinOp.MIN, DType.I64)
                return select(inside, select(found, place, nowhere), nowhere)

            return te.reduce(BinOp.MIN, self.kernel, value)

        return te.compute(self.name, top.shape, element, inputs=(x, top))

    def _place(self, index: Sequence[Expr], shape: Sequence[Expr]) -> Expr:
        spatial = list(zip(index[2:], shape[2:], strict=True))
        place = index[0] * shape[1] + index[1]
        for at, size in reversed(spatial) if self.column_major else spatial:
            place = place * size + at
        return place

    def reference(self, x: Array) -> Array:
        (x,) = as_f64(x)
        lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
        order: Literal["F", "C"] = "F" if self.column_major else "C"
        images = np.arange(math.prod(x.shape[2:])).reshape(x.shape[2:], order=order)
        planes = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *[1] * images.ndim)
        places = self.parts(self.with_pads(planes * images.size + images, -1), x.shape, -1)
        parts = self.parts(self.with_pads(x, lowest), x.shape, lowest)
        best, where = parts[0], np.full(parts[0].shape, np.iinfo(np.int64).max)
        for part in parts[1:]:
            best = np.maximum(best, part)
        for part, place in zip(parts, places, strict=True):
            found = (place >= 0) & ((part == best) | (part != part))
            where = np.where(found, np.minimum(where, place), where)
        return where


@op("max_unpool", fuse=Fuse.INJECTIVE)
class MaxUnpool(Op):
    """Zeros, but for the elements that the largest ones of windows were.

    An index belongs to a window, as `MaxPool` gives it: one that lies outside is not found.

    Shapes:
        x, indices: [n, c, *out] -> [n, c, *spatial]; indices count through [n, c, *spatial]

    Source: https://onnx.ai/onnx/operators/onnx__MaxUnpool.html
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    pads: tuple[int, ...]
    image: tuple[Expr, ...]

    def __post_init__(self) -> None:
        set_sizes(self, "image")

    def infer(self, x: TensorType, indices: TensorType) -> TensorType:
        check_dtype(self, NUMBERS, x)
        check_dtype(self, frozenset({DType.I64}), indices)
        if x.rank != len(self.kernel) + 2 or x.rank != indices.rank:
            raise self.reject("the operands do not have the rank of the kernel", x, indices)
        if any(differs(n, m) for n, m in zip(x.shape, indices.shape, strict=True)):
            raise self.reject("the operands differ in shape", x, indices)
        return TensorType((*x.shape[:2], *self.image), x.dtype)

    def compute(self, x: te.Tensor, indices: te.Tensor) -> te.Tensor:
        shape = self.infer(x.type, indices.type).shape

        def element(*i: Expr) -> Expr:
            place: Expr = ZERO
            for at, size in zip(i, shape, strict=True):
                place = place * size + at
            taps = [self._windows(d, i[d + 2], x.shape[d + 2]) for d in range(len(self.kernel))]
            found: Expr = const(0, x.dtype)
            for choice in itertools.product(*taps):
                window = (*i[:2], *(at for at, _ in choice))
                covers: Expr = TRUE
                for _, inside in choice:
                    covers = both(covers, inside)
                hit = equal(indices[window], cast(DType.I64, place))
                found = select(covers, select(hit, x[window], found), found)
            return found

        return te.compute(self.name, shape, element, inputs=(x, indices))

    def _windows(self, d: int, at: Expr, count: Expr) -> list[tuple[Expr, Expr]]:
        """The windows that may cover a position, first ones first, and whether they do."""
        stride, kernel = self.stride[d], self.kernel[d]
        moved = at + self.pads[d]
        found = []
        for back in reversed(range(-(-kernel // stride))):
            window = moved // stride - back
            inside = both(window >= 0, window < count)
            if kernel % stride:
                inside = both(inside, moved - window * stride < kernel)
            found.append((window, inside))
        return found

    def reference(self, x: Array, indices: Array) -> Array:
        (x,) = as_f64(x)
        shape = (*x.shape[:2], *constants(self.image))
        result = np.zeros(shape, x.dtype)
        for window in np.ndindex(*x.shape):
            if not 0 <= indices[window] < result.size:
                continue
            place = np.unravel_index(int(indices[window]), shape)
            starts = [
                w * s - b for w, s, b in zip(window[2:], self.stride, self.pads, strict=False)
            ]
            inside = zip(place[2:], starts, self.kernel, strict=True)
            if place[:2] == window[:2] and all(a <= p < a + k for p, a, k in inside):
                result[place] = x[window]
        return result
