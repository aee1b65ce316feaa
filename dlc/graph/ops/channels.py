"""Channels into blocks and back: the layout that convolutions compute in."""

from __future__ import annotations

import numpy as np

from dlc.graph.assume import is_below
from dlc.graph.op import Array, Fuse, Op, op
from dlc.graph.ops.attributes import constants, set_size
from dlc.te import tensor as te
from dlc.te.expr import Expr, ceil_div, const, select
from dlc.te.simplify import surely_divides
from dlc.te.types import TensorType


@op("pack_channels", fuse=Fuse.INJECTIVE)
class PackChannels(Op):
    """Channels in blocks; channels beyond the last are zeros.

    Shapes:
        x: [n, c, *spatial] -> [n, ceil(c / block), *spatial, block]
    """

    block: int

    def infer(self, x: TensorType) -> TensorType:
        if x.rank < 2 or self.block < 1:
            raise self.reject(f"no channels to put into blocks of {self.block}", x)
        n, c, *spatial = x.shape
        return TensorType((n, ceil_div(c, self.block), *spatial, self.block), x.dtype)

    def compute(self, x: te.Tensor) -> te.Tensor:
        channels = x.shape[1]
        whole = surely_divides(self.block, channels)

        def element(*i: Expr) -> Expr:
            c = i[1] * self.block + i[-1]
            load = x[(i[0], c, *i[2:-1])]
            return load if whole else select(c < channels, load, const(0, x.dtype))

        shape = self.infer(x.type).shape
        return te.compute(self.name, shape, element, inputs=(x,))

    def reference(self, x: Array) -> Array:
        n, c, *spatial = x.shape
        blocks = -(-c // self.block)
        amounts = [(0, 0), (0, blocks * self.block - c), *[(0, 0)] * len(spatial)]
        split = np.pad(x, amounts).reshape(n, blocks, self.block, *spatial)
        return np.moveaxis(split, 2, -1)


@op("unpack_channels", fuse=Fuse.INJECTIVE)
class UnpackChannels(Op):
    """The inverse of `pack_channels`.

    Shapes:
        x: [n, cb, *spatial, block] -> [n, channels, *spatial]
    """

    channels: Expr

    def __post_init__(self) -> None:
        set_size(self, "channels")

    def infer(self, x: TensorType) -> TensorType:
        if x.rank < 3 or is_below(x.shape[1] * x.shape[-1], self.channels):
            raise self.reject(f"the blocks do not hold {self.channels} channels", x)
        return TensorType((x.shape[0], self.channels, *x.shape[2:-1]), x.dtype)

    def compute(self, x: te.Tensor) -> te.Tensor:
        block = x.shape[-1]
        return te.compute(
            self.name,
            self.infer(x.type).shape,
            lambda *i: x[(i[0], i[1] // block, *i[2:], i[1] % block)],
            inputs=(x,),
        )

    def reference(self, x: Array) -> Array:
        n, blocks, *spatial, block = x.shape
        (channels,) = constants((self.channels,))
        return np.moveaxis(x, -1, 2).reshape(n, blocks * block, *spatial)[:, :channels]
