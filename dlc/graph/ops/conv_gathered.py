"""Convolution that reads the channels of blocked tensors from wherever they stand."""

from __future__ import annotations

import numpy as np

from dlc.core.types import INDEX, DType
from dlc.graph.assume import differs
from dlc.graph.op import Array, Fuse, op
from dlc.graph.ops.conv import exact_conv
from dlc.graph.ops.conv_blocked import BlockedConv, to_blocked, to_planar
from dlc.graph.ops.precision import narrow, product, product_dtype
from dlc.te import tensor as te
from dlc.te.expr import Expr, cast, index
from dlc.te.simplify import canonical
from dlc.te.types import TensorType


@op("conv_gathered", fuse=Fuse.ANCHOR)
class ConvGathered(BlockedConv):
    """Convolution of groups of channels, each of which may be any lane of a blocked tensor.

    `lanes` holds the lane of x that each channel of each group is. A channel is read for all
    columns of its group at once, so that finding it costs little; nothing idle is read.

    Shapes:
        x: [n, cb, *spatial, c]; w: [ob, *kernel, k, oc]; lanes: i32[groups, k] -> [n, ob, *out, oc]
    """

    stride: tuple[int, ...] = (1, 1)
    dilation: tuple[int, ...] = (1, 1)

    def infer(self, x: TensorType, w: TensorType, lanes: TensorType) -> TensorType:
        dtype = product_dtype(x.dtype, w.dtype)
        if dtype is None or w.rank != x.rank or x.rank < 4 or lanes.rank != 2:
            raise self.reject(
                "needs a blocked image, weights and lanes for each group", x, w, lanes
            )
        (n, _, *sizes, _), (ob, *kernel, k, oc), (groups, count) = x.shape, w.shape, lanes.shape
        if lanes.dtype is not DType.I32 or differs(k, count) or differs(ob % groups, 0):
            raise self.reject("the lanes do not fit the weights", x, w, lanes)
        return TensorType((n, ob, *self.spatial(x, w, sizes, kernel), oc), dtype)

    def compute(self, x: te.Tensor, w: te.Tensor, lanes: te.Tensor) -> te.Tensor:
        type_ = self.infer(x.type, w.type, lanes.type)
        _, *kernel, count, _ = w.shape
        groups, block = lanes.shape[0], x.shape[-1]
        n, ob, *rest = type_.shape
        blocks = canonical(ob // groups)

        def pixel(*out: Expr) -> te.Reduce:
            n, group, o, *at, oi = out

            def term(*r: Expr) -> Expr:
                *k, i = r
                lane = cast(INDEX, lanes[group, i])
                position = (n, lane // block, *self.source(at, k), lane % block)
                return product(x[position], w[(group * blocks + o, *k, i, oi)])

            return te.reduce_sum((*kernel, count), term)

        shape = (n, index(groups), blocks, *rest)
        total = te.compute(self.name, shape, pixel, inputs=(x, w, lanes))

        def joined(*out: Expr) -> Expr:
            n, o, *rest = out
            return total[(n, o // blocks, o % blocks, *rest)]

        return narrow(te.compute("joined", type_.shape, joined, inputs=(total,)), type_.dtype)

    def reference(self, x: Array, w: Array, lanes: Array) -> Array:
        ob, *kernel, k, oc = w.shape
        rows = np.moveaxis(w, (-1, -2), (1, 2)).reshape(ob * oc, k, *kernel)
        channels = to_planar(x)[:, lanes.reshape(-1)]
        groups = len(lanes)
        planar = exact_conv(channels, rows, self.stride, self.no_pads, self.dilation, groups)
        return to_blocked(planar, oc)
