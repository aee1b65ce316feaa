"""Sampling of images at positions that are data."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from dlc.core.types import FLOATS, INDEX
from dlc.graph.assume import differs
from dlc.graph.op import Array, Fuse, Op, as_f64, op
from dlc.graph.ops.elementwise import check_dtype
from dlc.graph.ops.precision import wide, widen
from dlc.graph.ops.resize import cubic_weights
from dlc.te import tensor as te
from dlc.te.expr import (
    TRUE,
    Expr,
    UnOp,
    both,
    cast,
    const,
    either,
    maximum,
    minimum,
    select,
    unary,
)
from dlc.te.types import TensorType

_FAR = float(1 << 30)
"""Positions further away than this are as good as this far, and their indices do not overflow."""
_CUBIC = -0.75


class Sampling(Op):
    """What sampling by a grid is, wherever the channels lie."""

    mode: str
    padding_mode: str
    align_corners: int
    channels_last: ClassVar[bool]

    def __post_init__(self) -> None:
        """Read the names that two dimensions had before opset 20."""
        first_names = {"bilinear": "linear", "bicubic": "cubic"}
        object.__setattr__(self, "mode", first_names.get(self.mode, self.mode))

    def infer(self, x: TensorType, grid: TensorType) -> TensorType:
        check_dtype(self, FLOATS, x, grid)
        rank = x.rank - 2
        if rank < 1 or grid.rank != x.rank or differs(grid.shape[-1], rank):
            raise self.reject("the grid does not fit the image", x, grid)
        if differs(x.shape[0], grid.shape[0]):
            raise self.reject("image and grid differ in their batch", x, grid)
        if self.mode not in ("nearest", "linear", "cubic"):
            raise self.reject(f"there is no mode '{self.mode}'", x, grid)
        if self.padding_mode not in ("zeros", "border", "reflection"):
            raise self.reject(f"there is no padding '{self.padding_mode}'", x, grid)
        return TensorType(self._shape(x, grid), x.dtype)

    def _shape(self, x: TensorType, grid: TensorType) -> tuple[Expr, ...]:
        if self.channels_last:
            return (x.shape[0], *grid.shape[1:-1], x.shape[-1])
        return (*x.shape[:2], *grid.shape[1:-1])

    def compute(self, x: te.Tensor, grid: te.Tensor) -> te.Tensor:
        rank = x.type.rank - 2
        dtype = wide(x.dtype)
        sizes = x.shape[1:-1] if self.channels_last else x.shape[2:]

        def position(*i: Expr) -> Expr:
            # The grid's last axis has few elements, so that choosing among their sizes is cheap.
            found: Expr = self._position(widen(grid[i]), sizes[-1])
            for d in range(1, rank):
                other = self._position(widen(grid[i]), sizes[-1 - d])
                found = select(i[-1] < d, found, other)
            return found

        places = te.compute(f"{x.name}_places", grid.shape, position, inputs=(grid,))

        def element(*i: Expr) -> Expr:
            at = i[1:-1] if self.channels_last else i[2:]
            taps = [
                self._taps(places[(i[0], *at, const(rank - 1 - d, INDEX))], sizes[d])
                for d in range(rank)
            ]
            total: Expr = const(0.0, dtype)
            for choice in itertools.product(*taps):
                index = [at for at, _, _ in choice]
                inside: Expr = TRUE
                weight: Expr = const(1.0, dtype)
                for _, exists, factor in choice:
                    inside = both(inside, exists)
                    weight = weight * factor
                found = (i[0], *index, i[-1]) if self.channels_last else (*i[:2], *index)
                load = widen(x[found])
                total = total + weight * select(inside, load, 0.0)
            return cast(x.dtype, total)

        shape = self.infer(x.type, grid.type).shape
        return te.compute(self.name, shape, element, inputs=(x, places))

    def _position(self, v: Expr, size: Expr) -> Expr:
        """Where in the image a number of the grid points, brought back inside if it must be."""
        length = cast(v.dtype, size)
        if self.align_corners:
            at, low, high = (v + 1.0) * 0.5 * (length - 1.0), const(0.0, v.dtype), length - 1.0
        else:
            at, low, high = ((v + 1.0) * length - 1.0) * 0.5, const(-0.5, v.dtype), length - 0.5
        if self.mode == "nearest":
            at = unary(UnOp.ROUND, at)
        if self.padding_mode == "reflection":
            period = maximum((high - low) * 2.0, 1.0)
            phase = (at - low) - unary(UnOp.FLOOR, (at - low) / period) * period
            at = select(either(at < low, high < at), low + minimum(phase, period - phase), at)
        first = const(0.0, v.dtype) if self.mode == "nearest" else low
        at = select(unary(UnOp.ISNAN, at), first, at)
        return maximum(minimum(at, _FAR), -_FAR)

    def _taps(self, at: Expr, size: Expr) -> list[tuple[Expr, Expr, Expr]]:
        """The elements read along one axis: index, whether it exists, weight."""
        whole = unary(UnOp.FLOOR, at)
        low, part = cast(INDEX, whole), at - whole
        match self.mode:
            case "nearest":
                one: Expr = const(1.0, at.dtype)
                found = [(low, one)]
            case "linear":
                found = [(low, 1.0 - part), (low + 1, part)]
            case _:
                weights = cubic_weights(part, _CUBIC)
                found = [(low + k, w) for k, w in zip(range(-1, 3), weights, strict=True)]
        return [(*self._inside(index, size), weight) for index, weight in found]

    def _inside(self, index: Expr, size: Expr) -> tuple[Expr, Expr]:
        """An index of the image, and whether there is such an element."""
        last = size - 1
        exists = const(0, INDEX) < size
        if self.padding_mode == "zeros":
            exists = both(index >= 0, index < size)
        elif self.padding_mode == "reflection":
            period = maximum(last * 2, 1) if self.align_corners else maximum(size * 2, 1)
            phase = index % period
            index = minimum(phase, (last * 2 if self.align_corners else size * 2 - 1) - phase)
        return maximum(minimum(index, last), 0), exists

    def reference(self, x: Array, grid: Array) -> Array:
        x, grid = as_f64(x, grid)
        x = np.moveaxis(x, -1, 1) if self.channels_last else x
        rank = x.ndim - 2
        result = np.zeros((*x.shape[:2], *grid.shape[1:-1]))
        for n in range(len(x) if x.size else 0):  # of an image without pixels all is 0
            axes = [
                self._exact_taps(grid[n, ..., rank - 1 - d], x.shape[d + 2]) for d in range(rank)
            ]
            for choice in itertools.product(*axes):
                values = x[n][(slice(None), *(index for index, _ in choice))]
                result[n] += values * np.prod([w for _, w in choice], axis=0)
        return np.moveaxis(result, 1, -1) if self.channels_last else result

    def _exact_taps(self, v: Array, size: int) -> Sequence[tuple[Array, Array]]:
        """Indices and weights along one axis; what does not exist has the weight 0."""
        low, high = (0.0, size - 1.0) if self.align_corners else (-0.5, size - 0.5)
        at = low + (v + 1) / 2 * (high - low)
        first = 0.0 if self.mode == "nearest" else low
        at = np.round(at) if self.mode == "nearest" else at
        if self.padding_mode == "reflection" and high > low:
            distance = np.abs(at - low) % (2 * (high - low))
            mirrored = low + np.minimum(distance, 2 * (high - low) - distance)
            at = np.where((at < low) | (at > high), mirrored, at)
        at = np.clip(np.where(np.isnan(at), first, at), -_FAR, _FAR)
        whole = np.floor(at).astype(np.int64)
        part = at - whole
        match self.mode:
            case "nearest":
                found = [(whole, np.ones_like(part))]
            case "linear":
                found = [(whole, 1 - part), (whole + 1, part)]
            case _:
                found = [(whole + k, _keys(np.abs(part - k))) for k in range(-1, 3)]
        return [self._exact_inside(index, w, size) for index, w in found]

    def _exact_inside(self, index: Array, weight: Array, size: int) -> tuple[Array, Array]:
        inside = (index >= 0) & (index < size)
        if self.padding_mode == "zeros":
            return np.where(inside, index, 0), np.where(inside, weight, 0.0)
        if self.padding_mode == "reflection":
            ends = "reflect" if self.align_corners else "symmetric"
            mirror = np.pad(np.arange(size), 8 * size + 8, mode=ends)  # type: ignore[call-overload]
            index = mirror[np.clip(index, -8 * size - 8, 9 * size + 7) + 8 * size + 8]
        return np.clip(index, 0, size - 1), weight


@op("grid_sample", fuse=Fuse.REDUCTION)
class GridSample(Sampling):
    """x at the positions a grid gives, -1 to 1 across each axis, the last axis first.

    Every element that a result is made of is padded by itself, as if the image went on. NaN is
    read as -1, and so is an infinity that is to be reflected.

    Shapes:
        x: [n, c, *spatial]; grid: [n, *out, number of spatial axes] -> [n, c, *out]

    Source: https://onnx.ai/onnx/operators/onnx__GridSample.html; of NaN, the note in
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.grid_sample.html
    """

    mode: str = "linear"
    padding_mode: str = "zeros"
    align_corners: int = 0
    channels_last: ClassVar = False


@op("grid_sample_pixels", fuse=Fuse.OPAQUE)
class GridSamplePixels(Sampling):
    """As `GridSample`; the channels of a pixel lie side by side.

    Where a position lies is found once for all of them, and they are read as vectors.

    Shapes:
        x: [n, *spatial, c]; grid: [n, *out, number of spatial axes] -> [n, *out, c]
    """

    mode: str = "linear"
    padding_mode: str = "zeros"
    align_corners: int = 0
    channels_last: ClassVar = True


def _keys(t: Array) -> Array:
    a = _CUBIC
    near = (a + 2) * t**3 - (a + 3) * t**2 + 1
    return np.where(t <= 1, near, a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a)
