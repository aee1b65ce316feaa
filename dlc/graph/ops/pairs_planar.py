"""Convolution of planar images of few channels by pairs of bf16: see `pairs.py`.

A pair are two pixels of a line, side by side as they are in memory, and the weights of two columns
of the kernel. A kernel of an odd number of columns has one more, of zeros. What it meets there may
be infinite, so a sum that is not finite is computed once more from the kernel itself.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dlc.core.types import DType
from dlc.graph.assume import differs
from dlc.graph.op import Array, Fuse, op
from dlc.graph.ops.conv_blocked import BlockedConv, PlanarConv
from dlc.graph.ops.neighbours import in_rows
from dlc.graph.ops.pairs import PAIR, pack_pairs
from dlc.graph.ops.planes import repaired
from dlc.te import tensor as te
from dlc.te.expr import Expr, cast, index
from dlc.te.simplify import canonical
from dlc.te.types import TensorType


def pack_columns(w: Array) -> Array:
    """Constant weights of a planar convolution as they lie in memory, rounded to bf16.

    Shapes:
        w: f32[ob, c, *lines, width, oc] -> bf16[ob, c, *lines, ceil(width / 2), oc, 2]
    """
    more = [(0, w.shape[d] % PAIR if d == w.ndim - 2 else 0) for d in range(w.ndim)]
    return pack_pairs(np.pad(w, more))


@op("conv_planar_pairs", fuse=Fuse.ANCHOR)
class PlanarPairs(BlockedConv):
    """Convolution from planar to blocked channels by products of pairs of bf16.

    There are as many results as an even number of columns fits into the image.

    Shapes:
        x: f32[n, c, *spatial]; w: bf16[ob, c, *lines, ceil(width / 2), oc, 2]
        -> f32[n, ob, *out, oc]
    """

    width: int  # columns of the kernel
    stride: tuple[int, ...] = (1, 1)
    dilation: tuple[int, ...] = (1, 1)
    is_finite: bool = False  # whether every element of image and weights surely is

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        if x.dtype is not DType.F32 or w.dtype is not DType.BF16 or w.rank != x.rank + 2:
            raise self.reject("needs a planar f32 image and bf16 weights in pairs", x, w)
        (n, c, *sizes), (ob, wc, *lines, pairs, oc, half) = x.shape, w.shape
        if differs(c, wc) or differs(half, PAIR):
            raise self.reject("image and weights differ in their channels", x, w)
        if self.width < 1 or differs(pairs, -(-self.width // PAIR)):
            raise self.reject(f"the weights are not of {self.width} columns", x, w)
        if self.dilation[-1:] != (1,):
            raise self.reject("pixels of a pair lie apart", x, w)
        out = self.spatial(x, w, sizes, [*lines, canonical(pairs * PAIR)])
        return TensorType((n, ob, *out, oc), DType.F32)

    def compute(self, x: te.Tensor, w: te.Tensor) -> te.Tensor:
        type_ = self.infer(x.type, w.type)
        _, c, *lines, pairs, _, half = w.shape
        rows = te.elementwise("rows", lambda value: cast(DType.BF16, value), x)

        def pixel(n: Expr, o: Expr, *rest: Expr) -> te.Reduce:
            *at, oi = rest

            def term(i: Expr, *r: Expr) -> Expr:
                *k, p, h = r
                left = rows[(n, i, *self.source(at, (*k, p * PAIR + h)))]
                right = w[(o, i, *k, p, oi, h)]
                return cast(DType.F32, left) * cast(DType.F32, right)

            return te.reduce_sum((c, *lines, pairs, half), term)

        def summands(n: Expr, o: Expr, *rest: Expr) -> Callable[..., Expr]:
            *at, oi = rest

            def summand(i: Expr, *k: Expr) -> Expr:
                column = k[-1]
                weight = w[(o, i, *k[:-1], column // PAIR, oi, column % PAIR)]
                return x[(n, i, *self.source(at, k))] * cast(DType.F32, weight)

            return summand

        sums = te.compute("sums", type_.shape, pixel, inputs=(rows, w))
        extents = (c, *lines, index(self.width))
        is_exact = self.is_finite or self.width % PAIR == 0
        return repaired(
            self.name, type_.shape, sums, lambda *at: at, extents, summands, (x, w),
            is_finite=is_exact,
        )  # fmt: skip

    def reference(self, x: Array, w: Array) -> Array:
        conv, kernel = PlanarConv(stride=self.stride, dilation=self.dilation), in_rows(w)
        last = x.shape[-1] - self.width % PAIR  # which zeros would meet
        return conv.reference(x[..., :last], kernel[..., : self.width, :])
