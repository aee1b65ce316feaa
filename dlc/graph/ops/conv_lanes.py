"""Convolution of small groups of channels, each of which lies within a block."""

from __future__ import annotations

import numpy as np

from dlc.graph.assume import differs
from dlc.graph.op import Array, Fuse, op
from dlc.graph.ops.conv import exact_conv
from dlc.graph.ops.conv_blocked import BlockedConv, to_blocked, to_planar
from dlc.graph.ops.precision import narrow, product, product_dtype
from dlc.te import tensor as te
from dlc.te.expr import Expr
from dlc.te.types import TensorType


@op("conv_lanes", fuse=Fuse.ANCHOR)
class ConvLanes(BlockedConv):
    """Convolution of groups of as many results as channels, several of which fill a block.

    Each lane adds up the channels of its group: vectors of pixels are shuffled, and there are no
    products between groups.

    Shapes:
        x: [n, cb, *spatial, c]; w: [cb, group, *kernel, c] -> [n, cb, *out, c]; group divides c
    """

    stride: tuple[int, ...] = (1, 1)
    dilation: tuple[int, ...] = (1, 1)

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        dtype = product_dtype(x.dtype, w.dtype)
        if dtype is None or w.rank != x.rank or x.rank < 4:
            raise self.reject("needs blocked operands of one type", x, w)
        (n, cb, *sizes, c), (wb, group, *kernel, wc) = x.shape, w.shape
        if differs(cb, wb) or differs(c, wc) or differs(c % group, 0):
            raise self.reject("image and weights differ in their channels", x, w)
        return TensorType((n, cb, *self.spatial(x, w, sizes, kernel), c), dtype)

    def compute(self, x: te.Tensor, w: te.Tensor) -> te.Tensor:
        type_ = self.infer(x.type, w.type)
        _, group, *kernel, _ = w.shape

        def pixel(*out: Expr) -> te.Reduce:
            n, b, *at, lane = out

            def term(*r: Expr) -> Expr:
                i, *k = r
                channel = lane // group * group + i
                return product(x[(n, b, *self.source(at, k), channel)], w[(b, i, *k, lane)])

            return te.reduce_sum((group, *kernel), term)

        return narrow(te.compute(self.name, type_.shape, pixel, inputs=(x, w)), type_.dtype)

    def reference(self, x: Array, w: Array) -> Array:
        blocks, group, *kernel, block = w.shape
        rows = np.moveaxis(w, -1, 1).reshape(blocks * block, group, *kernel)
        groups = blocks * block // group
        planar = exact_conv(to_planar(x), rows, self.stride, self.no_pads, self.dilation, groups)
        return to_blocked(planar, block)
