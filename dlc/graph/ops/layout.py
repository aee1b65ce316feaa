"""Operators that move elements between channels and space."""

from __future__ import annotations

from math import prod

import numpy as np

from dlc.core.types import INDEX, DType
from dlc.graph.assume import differs
from dlc.graph.op import Array, Fuse, Op, op
from dlc.te import tensor as te
from dlc.te.expr import ZERO, Expr, cast
from dlc.te.simplify import canonical
from dlc.te.types import TensorType


@op("depth_to_space", fuse=Fuse.INJECTIVE, onnx="DepthToSpace")
class DepthToSpace(Op):
    """Blocks of pixels made of channels: of the slowest channels (DCR) or the fastest (CRD).

    Shapes:
        x: [n, c * b * b, h, w] -> [n, c, h * b, w * b]

    Source: https://onnx.ai/onnx/operators/onnx__DepthToSpace.html
    """

    blocksize: int
    mode: str = "DCR"

    def infer(self, x: TensorType) -> TensorType:
        area = self.blocksize**2
        if x.rank != 4 or self.blocksize < 1 or differs(x.shape[1] % area, 0):
            raise self.reject(f"no channels for blocks of {self.blocksize}", x)
        if self.mode not in ("DCR", "CRD"):
            raise self.reject(f"there is no mode '{self.mode}'", x)
        n, c, h, w = x.shape
        return TensorType((n, c // area, h * self.blocksize, w * self.blocksize), x.dtype)

    def compute(self, x: te.Tensor) -> te.Tensor:
        b = self.blocksize
        shape = self.infer(x.type).shape

        def element(n: Expr, c: Expr, y: Expr, z: Expr) -> Expr:
            inner = y % b * b + z % b
            channel = inner * shape[1] + c if self.mode == "DCR" else c * (b * b) + inner
            return x[n, channel, y // b, z // b]

        return te.compute(self.name, shape, element, inputs=(x,))

    def reference(self, x: Array) -> Array:
        n, c, h, w = x.shape
        b = self.blocksize
        if self.mode == "DCR":
            split = x.reshape(n, b, b, c // b**2, h, w).transpose(0, 3, 4, 1, 5, 2)
        else:
            split = x.reshape(n, c // b**2, b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
        return split.reshape(n, c // b**2, h * b, w * b)


@op("channel_shuffle", fuse=Fuse.INJECTIVE)
class ChannelShuffle(Op):
    """The channels of all groups in turn: the first of each group, then the second of each.

    Shapes:
        x: [n, c, *spatial] -> the same

    Source: Zhang et al., "ShuffleNet", CVPR 2018, section 3.1.
    """

    groups: int

    def infer(self, x: TensorType) -> TensorType:
        if x.rank < 2 or self.groups < 1 or differs(x.shape[1] % self.groups, 0):
            raise self.reject(f"the channels do not make {self.groups} groups", x)
        return x

    def compute(self, x: te.Tensor) -> te.Tensor:
        per_group = canonical(x.shape[1] // self.groups)

        def element(*out: Expr) -> Expr:
            n, c, *at = out
            return x[(n, c % self.groups * per_group + c // self.groups, *at)]

        return te.compute(self.name, x.shape, element, inputs=(x,))

    def reference(self, x: Array) -> Array:
        n, c, *spatial = x.shape
        split = x.reshape(n, self.groups, c // self.groups, *spatial)
        return np.asarray(np.swapaxes(split, 1, 2).reshape(x.shape))


@op("move_channels", fuse=Fuse.INJECTIVE)
class MoveChannels(Op):
    """Channels of a blocked tensor at other lanes: what choose_layouts makes between segments.

    `lanes` holds, for each lane of the result, the lane of x that it is a copy of.

    Shapes:
        x: [n, cb, *spatial, c]; lanes: i32[ob, c] -> [n, ob, *spatial, c]
    """

    def infer(self, x: TensorType, lanes: TensorType) -> TensorType:
        fits = x.rank >= 3 and lanes.rank == 2 and lanes.dtype is DType.I32
        if not fits or differs(lanes.shape[1], x.shape[-1]):
            raise self.reject("needs a blocked tensor and a lane for each lane", x, lanes)
        return TensorType((x.shape[0], lanes.shape[0], *x.shape[2:]), x.dtype)

    def compute(self, x: te.Tensor, lanes: te.Tensor) -> te.Tensor:
        block = x.shape[-1]

        def element(*out: Expr) -> Expr:
            n, b, *at, i = out
            lane = cast(INDEX, lanes[b, i])
            return x[(n, lane // block, *at, lane % block)]

        return te.compute(
            self.name, self.infer(x.type, lanes.type).shape, element, inputs=(x, lanes)
        )

    def reference(self, x: Array, lanes: Array) -> Array:
        block = x.shape[-1]
        picked = x[:, lanes // block, ..., lanes % block]  # [ob, c, n, *spatial]
        return np.moveaxis(picked, (0, 1), (1, -1))


@op("interleave", fuse=Fuse.INJECTIVE)
class Interleave(Op):
    """The pixels of several blocked images, one for each phase of a stride, between each other.

    Shapes:
        x: [n, phases * b, *spatial, c] -> [n, b, *(spatial * stride), c]
    """

    stride: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        if x.rank != len(self.stride) + 3 or any(s < 1 for s in self.stride):
            raise self.reject("needs a stride for each spatial dimension of a blocked tensor", x)
        phases = prod(self.stride)
        if differs(x.shape[1] % phases, 0):
            raise self.reject(f"the blocks do not make {phases} images", x)
        n, blocks, *spatial, c = x.shape
        sizes = [size * s for size, s in zip(spatial, self.stride, strict=True)]
        return TensorType((n, canonical(blocks // phases), *sizes, c), x.dtype)

    def compute(self, x: te.Tensor) -> te.Tensor:
        shape = self.infer(x.type).shape

        def element(*out: Expr) -> Expr:
            n, b, *at, i = out
            phase: Expr = ZERO
            for position, step in zip(at, self.stride, strict=True):
                phase = phase * step + position % step
            pixel = [p // s for p, s in zip(at, self.stride, strict=True)]
            return x[(n, phase * shape[1] + b, *pixel, i)]

        return te.compute(self.name, shape, element, inputs=(x,))

    def reference(self, x: Array) -> Array:
        n, blocks, *spatial, c = x.shape
        rank = len(self.stride)
        split = x.reshape(n, *self.stride, blocks // prod(self.stride), *spatial, c)
        pairs = [axis for d in range(rank) for axis in (rank + 2 + d, 1 + d)]
        moved = split.transpose(0, rank + 1, *pairs, 2 * rank + 2)
        sizes = [size * s for size, s in zip(spatial, self.stride, strict=True)]
        return np.asarray(moved.reshape(n, blocks // prod(self.stride), *sizes, c))


@op("space_to_depth", fuse=Fuse.INJECTIVE, onnx="SpaceToDepth")
class SpaceToDepth(Op):
    """Channels made of blocks of pixels.

    Shapes:
        x: [n, c, h * b, w * b] -> [n, b * b * c, h, w]

    Source: https://onnx.ai/onnx/operators/onnx__SpaceToDepth.html
    """

    blocksize: int

    def infer(self, x: TensorType) -> TensorType:
        b = self.blocksize
        uneven = b < 1 or x.rank != 4 or any(differs(s % b, 0) for s in x.shape[2:])
        if uneven:
            raise self.reject(f"the image does not divide into blocks of {b}", x)
        n, c, h, w = x.shape
        return TensorType((n, c * b * b, h // b, w // b), x.dtype)

    def compute(self, x: te.Tensor) -> te.Tensor:
        b = self.blocksize
        channels = canonical(x.shape[1])

        def element(n: Expr, c: Expr, y: Expr, z: Expr) -> Expr:
            inner = c // channels
            return x[n, c % channels, y * b + inner // b, z * b + inner % b]

        return te.compute(self.name, self.infer(x.type).shape, element, inputs=(x,))

    def reference(self, x: Array) -> Array:
        n, c, h, w = x.shape
        b = self.blocksize
        split = x.reshape(n, c, h // b, b, w // b, b).transpose(0, 3, 5, 1, 2, 4)
        return np.asarray(split.reshape(n, c * b * b, h // b, w // b))
