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
from dlc.te.expr import ZERO, Expr, ceil_div, index, minimum
from dlc.te.simplify import canonical
from dlc.te.types import TensorType


@op("split_phases", fuse=Fuse.INJECTIVE)
class SplitPhases(Op):
    """The images of all phases, rows before columns; the last pixels are repeated to fill them.

    Shapes:
        x: [n, cb, h, w, c] -> [n, cb, steps[0] * steps[1], ceil(h / steps[0]),
            ceil(w / steps[1]), c]
        x: [n, cb, w, c] -> [n, cb, steps[0], ceil(w / steps[0]), c]
    """

    steps: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        if not _fits(self.steps) or x.rank != len(self.steps) + 3:
            raise self.reject("needs a blocked image or line, and steps from 1 on", x)
        n, cb, *sizes, c = x.shape
        fewer = (canonical(ceil_div(size, s)) for size, s in zip(sizes, self.steps, strict=True))
        return TensorType((n, cb, index(prod(self.steps)), *fewer, c), x.dtype)

    def compute(self, x: te.Tensor) -> te.Tensor:
        sizes = x.shape[2:-1]

        def element(n: Expr, b: Expr, phase: Expr, *rest: Expr) -> Expr:
            *at, i = rest
            steps = zip(at, self.steps, _digits(phase, self.steps), sizes, strict=True)
            place = (minimum(p * step + first, size - 1) for p, step, first, size in steps)
            return x[(n, b, *place, i)]

        return te.compute(self.name, self.infer(x.type).shape, element, inputs=(x,))

    def reference(self, x: Array) -> Array:
        pads = [(0, -n % s) for n, s in zip(x.shape[2:-1], self.steps, strict=True)]
        whole = np.pad(x, [(0, 0), (0, 0), *pads, (0, 0)], mode="edge")
        firsts = product(*map(range, self.steps))
        along = ([slice(a, None, s) for a, s in zip(p, self.steps, strict=True)] for p in firsts)
        return np.stack([whole[(slice(None), slice(None), *part)] for part in along], axis=2)


@op("join_phases", fuse=Fuse.INJECTIVE)
class JoinPhases(Op):
    """The first pixels of the image whose phases these are.

    Shapes:
        x: [n, cb, steps[0] * steps[1], h, w, c] -> [n, cb, *sizes, c], at most [h, w] * steps
        x: [n, cb, steps[0], w, c] -> [n, cb, *sizes, c], at most [w] * steps
    """

    steps: tuple[int, ...]
    sizes: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        if not _fits(self.steps) or not len(self.steps) == len(self.sizes) == x.rank - 4:
            raise self.reject("needs blocked images or lines, and steps from 1 on", x)
        n, cb, phases, *given, c = x.shape
        if differs(phases, prod(self.steps)):
            raise self.reject(f"these are not the phases of steps of {self.steps}", x)
        for size, most, step in zip(self.sizes, given, self.steps, strict=True):
            if size < 0 or is_below(most * step, size):
                raise self.reject(f"there are no {self.sizes} pixels", x)
        return TensorType((n, cb, *map(index, self.sizes), c), x.dtype)

    def compute(self, x: te.Tensor) -> te.Tensor:
        def element(n: Expr, b: Expr, *rest: Expr) -> Expr:
            *at, i = rest
            phase: Expr = ZERO
            for p, step in zip(at, self.steps, strict=True):
                phase = phase * step + p % step
            place = (p // step for p, step in zip(at, self.steps, strict=True))
            return x[(n, b, phase, *place, i)]

        return te.compute(self.name, self.infer(x.type).shape, element, inputs=(x,))

    def reference(self, x: Array) -> Array:
        n, cb, _, *sizes, c = x.shape
        count = len(sizes)
        split = x.reshape(n, cb, *self.steps, *sizes, c)
        order = (axis for d in range(2, 2 + count) for axis in (d + count, d))
        whole = split.transpose(0, 1, *order, -1)
        whole = whole.reshape(n, cb, *(m * s for m, s in zip(sizes, self.steps, strict=True)), c)
        return np.ascontiguousarray(whole[(slice(None), slice(None), *map(slice, self.sizes))])


def _fits(steps: tuple[int, ...]) -> bool:
    """Whether steps are of a line or an image."""
    return 1 <= len(steps) <= 2 and all(s >= 1 for s in steps)


def _digits(phase: Expr, steps: tuple[int, ...]) -> list[Expr]:
    """How far the first pixel of a phase is from that of the image, along each axis."""
    return [phase] if len(steps) == 1 else [phase // steps[1], phase % steps[1]]
