"""Images as columns of patches, and back."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np

from dlc.core.types import FLOATS, INDEX
from dlc.graph.assume import differs
from dlc.graph.op import Array, Fuse, Op, as_f64, op
from dlc.graph.ops.attributes import constants, set_sizes
from dlc.graph.ops.elementwise import NUMBERS, check_dtype
from dlc.graph.ops.precision import wide, widen
from dlc.graph.ops.window import out_size
from dlc.te import tensor as te
from dlc.te.expr import (
    TRUE,
    Expr,
    UnOp,
    both,
    cast,
    const,
    equal,
    index,
    maximum,
    minimum,
    select,
    unary,
)
from dlc.te.simplify import canonical
from dlc.te.types import Shape, TensorType

_FAR = float(1 << 30)
"""Positions further away than this are as good as this far, and their indices do not overflow."""


@op("col2im", fuse=Fuse.REDUCTION)
class Col2Im(Op):
    """The sum of patches, each laid where it was cut out of an image.

    Shapes:
        x: [n, c * elements of the kernel, patches] -> [n, c, *image]

    Source: https://onnx.ai/onnx/operators/onnx__Col2Im.html
    """

    image: tuple[Expr, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    pads: tuple[int, ...]
    dilation: tuple[int, ...]

    def __post_init__(self) -> None:
        set_sizes(self, "image")

    def infer(self, x: TensorType) -> TensorType:
        check_dtype(self, NUMBERS, x)
        elems = math.prod(self.kernel)
        if x.rank != 3 or differs(x.shape[1] % elems, 0):
            raise self.reject(f"needs columns of {elems} elements for each channel", x)
        patches = math.prod(self.counts(), start=index(1))
        if differs(x.shape[2], patches):
            raise self.reject(f"{x.shape[2]} patches are not {patches}", x)
        return TensorType((x.shape[0], x.shape[1] // elems, *self.image), x.dtype)

    def counts(self) -> tuple[Expr, ...]:
        """How many patches there are along each axis of the image."""
        rank, steps = len(self.kernel), (self.kernel, self.stride, self.dilation)
        pads = (a + b for a, b in zip(self.pads[:rank], self.pads[rank:], strict=True))
        return tuple(map(out_size, self.image, *steps, pads))

    def compute(self, x: te.Tensor) -> te.Tensor:
        shape, counts = self.infer(x.type).shape, self.counts()
        dtype = wide(x.dtype)

        def element(*i: Expr) -> te.Reduce:
            def value(*k: Expr) -> Expr:
                row, column = i[1], index(0)
                inside: Expr = TRUE
                for d, j in enumerate(k):
                    moved = i[d + 2] + self.pads[d] - j * self.dilation[d]
                    patch = moved // self.stride[d]
                    if self.stride[d] > 1:
                        inside = both(inside, equal(moved % self.stride[d], 0))
                    inside = both(inside, both(patch >= 0, patch < counts[d]))
                    row, column = row * self.kernel[d] + j, column * counts[d] + patch
                return select(inside, widen(x[i[0], row, column]), const(0, dtype))

            return te.reduce_sum(self.kernel, value)

        total = te.compute(self.name, shape, element, inputs=(x,))
        return te.elementwise(f"{self.name}_cast", lambda v: cast(x.dtype, v), total)

    def reference(self, x: Array) -> Array:
        (x,) = as_f64(x)
        sizes, rank = constants(self.image), len(self.kernel)
        padded = [n + self.pads[d] + self.pads[d + rank] for d, n in enumerate(sizes)]
        counts = [
            (n - self.dilation[d] * (self.kernel[d] - 1) - 1) // self.stride[d] + 1
            for d, n in enumerate(padded)
        ]
        channels = x.shape[1] // math.prod(self.kernel)
        columns = x.reshape(x.shape[0], channels, *self.kernel, *counts)
        whole = np.zeros((*columns.shape[:2], *padded), x.dtype)
        for k in np.ndindex(*self.kernel):
            starts = [j * self.dilation[d] for d, j in enumerate(k)]
            cut = tuple(
                slice(a, a + n * s, s) for a, n, s in zip(starts, counts, self.stride, strict=True)
            )
            whole[:, :, *cut] += columns[:, :, *k]
        return whole[:, :, *(slice(self.pads[d], self.pads[d] + n) for d, n in enumerate(sizes))]


@op("col2im_phases", fuse=Fuse.REDUCTION)
class Col2ImPhases(Op):
    """The sum of patches laid in steps, where each phase of the steps is an image of its own.

    Pixel (p, r) along an axis, of phase r, is p * stride + r of the image that Col2Im makes without
    pads: no patch reaches others.

    Shapes:
        x: [n, c * elements of the kernel, patches]
            -> [n, c, *stride, *(counts + ceil(kernel / stride) - 1)]
    """

    counts: tuple[Expr, ...]  # patches along each axis
    kernel: tuple[int, ...]
    stride: tuple[int, ...]

    def __post_init__(self) -> None:
        set_sizes(self, "counts")

    def infer(self, x: TensorType) -> TensorType:
        check_dtype(self, NUMBERS, x)
        elems, patches = math.prod(self.kernel), math.prod(self.counts, start=index(1))
        if x.rank != 3 or differs(x.shape[1] % elems, 0) or differs(x.shape[2], patches):
            raise self.reject(f"needs {patches} patches of {elems} elements for each channel", x)
        sizes = (n + t - 1 for n, t in zip(self.counts, self._taps, strict=True))
        shape = (x.shape[0], x.shape[1] // elems, *map(index, self.stride), *sizes)
        return TensorType(tuple(map(canonical, shape)), x.dtype)

    @property
    def _taps(self) -> tuple[int, ...]:
        """The most elements of a patch along each axis that one phase has."""
        return tuple(-(-k // s) for k, s in zip(self.kernel, self.stride, strict=True))

    def compute(self, x: te.Tensor) -> te.Tensor:
        dtype, rank = wide(x.dtype), len(self.kernel)

        def element(*i: Expr) -> te.Reduce:
            phases, pixels = i[2 : 2 + rank], i[2 + rank :]

            def value(*t: Expr) -> Expr:
                row, column = i[1], index(0)
                inside: Expr = TRUE
                for d, (phase, pixel, tap) in enumerate(zip(phases, pixels, t, strict=True)):
                    j, patch = tap * self.stride[d] + phase, pixel - tap
                    if self.kernel[d] % self.stride[d]:
                        inside = both(inside, j < self.kernel[d])
                    inside = both(inside, both(patch >= 0, patch < self.counts[d]))
                    row, column = row * self.kernel[d] + j, column * self.counts[d] + patch
                return select(inside, widen(x[i[0], row, column]), const(0, dtype))

            return te.reduce_sum(self._taps, value)

        total = te.compute(self.name, self.infer(x.type).shape, element, inputs=(x,))
        return te.elementwise(f"{self.name}_cast", lambda v: cast(x.dtype, v), total)

    def reference(self, x: Array) -> Array:
        (x,) = as_f64(x)
        counts = constants(self.counts)
        channels = x.shape[1] // math.prod(self.kernel)
        columns = x.reshape(x.shape[0], channels, *self.kernel, *counts)
        sizes = (n + t - 1 for n, t in zip(counts, self._taps, strict=True))
        result = np.zeros((*columns.shape[:2], *self.stride, *sizes), x.dtype)
        for k in np.ndindex(*self.kernel):
            phase = tuple(j % s for j, s in zip(k, self.stride, strict=True))
            first = [j // s for j, s in zip(k, self.stride, strict=True)]
            cut = (slice(a, a + n) for a, n in zip(first, counts, strict=True))
            result[:, :, *phase, *cut] += columns[:, :, *k]
        return result


@op("deform_columns", fuse=Fuse.REDUCTION)
class DeformColumns(Op):
    """The patches of an image under a kernel whose positions are moved, each in its own way.

    What lies between pixels is interpolated, outside all is 0.

    Shapes:
        x: [n, c, h, w]; offset: [n, groups * kernel * 2, oh, ow];
        mask: [n, groups * kernel, oh, ow]
        -> [n, c * elements of the kernel, oh, ow]

    Source: https://onnx.ai/onnx/operators/onnx__DeformConv.html
    """

    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    def infer(
        self, x: TensorType, offset: TensorType, mask: TensorType | None = None
    ) -> TensorType:
        given = (x, offset) if mask is None else (x, offset, mask)
        check_dtype(self, FLOATS, *given)
        if any(t.rank != 4 for t in given):
            raise self.reject("needs images of two dimensions", *given)
        elems = math.prod(self.kernel)
        out = self._out(x.shape)
        for t, each in zip(given[1:], (2, 1), strict=False):
            wanted = (x.shape[0], const(self.groups * elems * each, INDEX), *out)
            if any(differs(n, m) for n, m in zip(t.shape, wanted, strict=True)):
                raise self.reject("the offsets do not fit the windows", *given)
        if differs(x.shape[1] % self.groups, 0):
            raise self.reject(f"the channels are no {self.groups} groups", *given)
        return TensorType((x.shape[0], x.shape[1] * elems, *out), x.dtype)

    def _out(self, shape: Shape) -> tuple[Expr, Expr]:
        sizes = [
            out_size(
                shape[d + 2], self.kernel[d], self.stride[d], self.dilation[d],
                self.pads[d] + self.pads[d + 2],
            )
            for d in range(2)
        ]  # fmt: skip
        return sizes[0], sizes[1]

    def compute(self, x: te.Tensor, offset: te.Tensor, mask: te.Tensor | None = None) -> te.Tensor:
        elems = math.prod(self.kernel)
        per_group = x.shape[1] // self.groups

        def element(*i: Expr) -> Expr:
            n, channel, k = i[0], i[1] // elems, i[1] % elems
            tap = channel // per_group * elems + k
            axes = []
            for d, j in enumerate((k // self.kernel[1], k % self.kernel[1])):
                start = i[d + 2] * self.stride[d] - self.pads[d] + j * self.dilation[d]
                moved = widen(offset[n, tap * 2 + d, i[2], i[3]])
                axes.append(taps(cast(moved.dtype, start) + moved, x.shape[d + 2]))
            total = interpolated(lambda *at: widen(x[(n, channel, *at)]), axes)
            if mask is not None:
                total = total * widen(mask[n, tap, i[2], i[3]])
            return cast(x.dtype, total)

        given = (x, offset) if mask is None else (x, offset, mask)
        shape = self.infer(*(t.type for t in given)).shape
        return te.compute(self.name, shape, element, inputs=given)

    def reference(self, x: Array, offset: Array, mask: Array | None = None) -> Array:
        x, offset = as_f64(x, offset)
        (n, c, h, w), (kh, kw) = x.shape, self.kernel
        oh, ow = offset.shape[2:]
        moves = offset.reshape(n, self.groups, kh, kw, 2, oh, ow)
        factors = (
            np.ones((n, self.groups, kh, kw, oh, ow))
            if mask is None
            else (as_f64(mask)[0].reshape(n, self.groups, kh, kw, oh, ow))
        )
        result = np.zeros((n, c, kh, kw, oh, ow))
        framed = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)])
        for b, ch, ky, kx, y, z in np.ndindex(*result.shape):
            g = ch // (c // self.groups)
            at = [
                np.clip(o * s - p + k * d + m, -_FAR, _FAR)
                for o, s, p, k, d, m in zip(
                    (y, z), self.stride, self.pads[:2], (ky, kx), self.dilation,
                    moves[b, g, ky, kx, :, y, z], strict=True,
                )
            ]  # fmt: skip
            low = [math.floor(v) for v in at]
            for dy, dx in itertools.product((0, 1), (0, 1)):
                part = [1 - abs(a - (m + d)) for a, m, d in zip(at, low, (dy, dx), strict=True)]
                row, column = np.clip(low[0] + dy, -1, h) + 1, np.clip(low[1] + dx, -1, w) + 1
                value = framed[b, ch, row, column] * part[0] * part[1]
                result[b, ch, ky, kx, y, z] += value * factors[b, g, ky, kx, y, z]
        return result.reshape(n, c * kh * kw, oh, ow)


Tap = tuple[Expr, Expr, Expr]
"""An index along an axis, whether there is such an element, and its weight."""


def taps(at: Expr, size: Expr) -> tuple[Tap, Tap]:
    """The two elements around a position along one axis."""
    held = maximum(minimum(at, _FAR), -_FAR)
    whole = unary(UnOp.FLOOR, held)
    low, part = cast(INDEX, whole), held - whole
    return tuple(  # type: ignore[return-value]
        (maximum(minimum(i, size - 1), 0), both(i >= 0, i < size), weight)
        for i, weight in ((low, 1.0 - part), (low + 1, part))
    )


def interpolated(load: Callable[..., Expr], axes: Sequence[Sequence[Tap]]) -> Expr:
    """The weighted sum of the elements around a position; what does not exist is 0."""
    total: Expr | None = None
    for choice in itertools.product(*axes):
        inside: Expr = TRUE
        weight: Expr | None = None
        for _, exists, factor in choice:
            inside = both(inside, exists)
            weight = factor if weight is None else weight * factor
        assert weight is not None
        value = weight * select(inside, load(*(at for at, _, _ in choice)), 0.0)
        total = value if total is None else total + value
    assert total is not None, "there is an axis"
    return total
