"""Operators that move elements between channels and space."""

from __future__ import annotations

import numpy as np

from dlc.graph.assume import differs
from dlc.graph.op import Array, Fuse, Op, op
from dlc.te import tensor as te
from dlc.te.expr import Expr
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
