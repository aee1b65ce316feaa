"""Operators that take blocked images apart by the steps of a dilation, and join them again.

What a dilated convolution makes of a pixel depends on those a dilation apart from it only: the
pixels of each phase are an image of their own, on which it is not dilated.
"""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np

from dlc.graph.assume import differs, is_below
from dlc.graph.op import Array, Fuse, Op, op
from dlc.te import tensor as te
from dlc.te.expr import Expr, index, minimum
from dlc.te.simplify import canonical
from dlc.te.types import TensorType


@op("split_phases", fuse=Fuse.INJECTIVE)
class SplitPhases(Op):
    """The images of all phases, rows before columns; the last pixels are repeated to fill them.

    Shapes:
        x: [n, cb, h, w, c] -> [n, cb, steps[0] * steps[1], ceil(h / steps[0]),
            ceil(w / steps[1]), c]
    """

    steps: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        if x.rank != 5 or len(self.steps) != 2 or any(s < 1 for s in self.steps):
            raise self.reject("needs a blocked image, and steps from 1 on", x)
        n, cb, *sizes, c = x.shape
        fewer = (
            canonical((size + (s - 1)) // s) for size, s in zip(sizes, self.steps, strict=True)
        )
        return TensorType((n, cb, index(self.steps[0] * self.steps[1]), *fewer, c), x.dtype)

    def compute(self, x: te.Tensor) -> te.Tensor:
        _, _, high, wide, _ = x.shape
        rows, columns = self.steps

        def element(n: Expr, b: Expr, phase: Expr, y: Expr, z: Expr, i: Expr) -> Expr:
            row = minimum(y * rows + phase // columns, high - 1)
            return x[n, b, row, minimum(z * columns + phase % columns, wide - 1), i]

        return te.compute(self.name, self.infer(x.type).shape, element, inputs=(x,))

    def reference(self, x: Array) -> Array:
        rows, columns = self.steps
        _, _, high, wide, _ = x.shape
        pads = [(0, 0), (0, 0), (0, -high % rows), (0, -wide % columns), (0, 0)]
        whole = np.pad(x, pads, mode="edge")
        parts = [whole[:, :, a::rows, b::columns] for a, b in product(range(rows), range(columns))]
        return np.stack(parts, axis=2)


@op("join_phases", fuse=Fuse.INJECTIVE)
class JoinPhases(Op):
    """The first pixels of the image whose phases these are.

    Shapes:
        x: [n, cb, steps[0] * steps[1], h, w, c] -> [n, cb, *sizes, c], at most [h, w] * steps
    """

    steps: tuple[int, ...]
    sizes: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        if x.rank != 6 or len(self.steps) != 2 or any(s < 1 for s in self.steps):
            raise self.reject("needs blocked images, and steps from 1 on", x)
        n, cb, phases, *given, c = x.shape
        if differs(phases, prod(self.steps)):
            raise self.reject(f"these are not the phases of steps of {self.steps}", x)
        for size, most, step in zip(self.sizes, given, self.steps, strict=True):
            if size < 0 or is_below(most * step, size):
                raise self.reject(f"there are no {self.sizes} pixels", x)
        return TensorType((n, cb, *map(index, self.sizes), c), x.dtype)

    def compute(self, x: te.Tensor) -> te.Tensor:
        rows, columns = self.steps

        def element(n: Expr, b: Expr, y: Expr, z: Expr, i: Expr) -> Expr:
            phase = (y % rows) * columns + z % columns
            return x[n, b, phase, y // rows, z // columns, i]

        return te.compute(self.name, self.infer(x.type).shape, element, inputs=(x,))

    def reference(self, x: Array) -> Array:
        n, cb, _, high, wide, c = x.shape
        rows, columns = self.steps
        split = x.reshape(n, cb, rows, columns, high, wide, c)
        whole = split.transpose(0, 1, 4, 2, 5, 3, 6).reshape(n, cb, high * rows, wide * columns, c)
        return np.ascontiguousarray(whole[:, :, : self.sizes[0], : self.sizes[1]])
