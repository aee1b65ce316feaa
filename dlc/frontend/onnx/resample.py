"""Resizing by weights for each axis: where one result depends on many elements, or on a region of
interest. Sizes are fixed, so the weights are constants.

Source: https://onnx.ai/onnx/operators/onnx__Resize.html
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.reshape import reshape_to
from dlc.graph.arrays import round_to
from dlc.graph.graph import Value
from dlc.graph.op import Array
from dlc.graph.ops.binary import Where
from dlc.graph.ops.precision import wide
from dlc.graph.ops.shape import Transpose
from dlc.graph.ops.taps import WeighNeighbours
from dlc.te.expr import Expr, index

_SHORT = 16
"""Elements side by side that are fewer than a vector has lanes, on the widest machines."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the results of an axis are put together from its elements."""

    mode: str
    rounding: str
    cubic_coeff_a: float
    exclude_outside: bool
    antialias: bool

    def band(self, size: int, places: Array, scale: float) -> tuple[Array, Array]:
        """Which of `size` elements, side by side, make up results that lie at `places`.

        The first of them for each result, and their weights: as many for each as for any.
        """
        reach = min(scale, 1.0) if self.antialias else 1.0
        taps = [self._taps(at, reach) for at in places]
        count = min(size, max((len(near) for near, _ in taps), default=1))
        first, band = np.zeros(len(taps), np.int64), np.zeros((len(taps), count))
        for row, (near, weights) in enumerate(taps):
            if self.exclude_outside:
                weights = np.where((near >= 0) & (near < size), weights, 0.0)
            inside = np.clip(near, 0, size - 1)
            first[row] = min(inside[0], size - count)
            np.add.at(band[row], inside - first[row], weights / (weights.sum() or 1.0))
        return first, band

    def _taps(self, at: float, reach: float) -> tuple[Array, Array]:
        if self.mode == "nearest":
            return np.array([self._nearest(at)]), np.ones(1)
        width = (1 if self.mode == "linear" else 2) / reach
        near = np.arange(math.floor(at - width) + 1, math.ceil(at + width))
        return near, self._kernel(np.abs(near - at) * reach)

    def _nearest(self, at: float) -> int:
        match self.rounding:
            case "floor":
                return math.floor(at)
            case "ceil":
                return math.ceil(at)
            case "round_prefer_ceil":
                return math.floor(at + 0.5)
        return math.ceil(at - 0.5)

    def _kernel(self, t: Array) -> Array:
        if self.mode == "linear":
            return np.asarray(np.maximum(1 - t, 0))
        a = self.cubic_coeff_a
        inner = (a + 2) * t**3 - (a + 3) * t**2 + 1
        outer = a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a
        return np.where(t <= 1, inner, np.where(t < 2, outer, 0.0))


def positions(coordinates: str, size: int, count: int, scale: float) -> Array:
    """Where `count` results lie among `size` elements."""
    i = np.arange(count)
    match coordinates:
        case "asymmetric":
            return np.asarray(i / scale)
        case "align_corners":
            return np.asarray(i * (size - 1) / max(count - 1, 1))
        case "pytorch_half_pixel" if count <= 1:
            return np.zeros(count)
        case "tf_half_pixel_for_nn":
            return np.asarray((i + 0.5) / scale)
        case "half_pixel_symmetric":
            offset = size / 2 * (1 - count / (scale * size))
            return np.asarray(offset + (i + 0.5) / scale - 0.5)
    return np.asarray((i + 0.5) / scale - 0.5)


def crop_positions(size: int, count: int, start: float, end: float) -> Array:
    """Where results lie in the part of an axis from `start` to `end`, as fractions of it."""
    if count <= 1:
        return np.full(count, (start + end) * (size - 1) / 2)
    i = np.arange(count)
    return np.asarray(start * (size - 1) + i * (end - start) * (size - 1) / (count - 1))


def resample(ctx: Context, x: Value, axis: int, first: Array, weights: Array) -> Value:
    """Make elements of an axis of others that begin at `first`, by a row of weights for each.

    Sums run along whatever lies behind the axis; other axes are brought there where that is short.
    """
    if not x.type.dtype.is_float:
        ctx.refuse(f"elements of type {x.type.dtype} are not interpolated")
    shape, count = x.type.static_shape, len(first)
    before, after = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    is_turned = after < _SHORT and before > 1
    near = (after,) if after > 1 else ()
    if is_turned:
        x = reshape_to(ctx, x, _sizes(before, shape[axis], *near))
        x = ctx.call(Transpose(perm=(1, 0, 2)[: 2 + len(near)]), x)
        x = reshape_to(ctx, x, _sizes(shape[axis], before * after))
    else:
        x = reshape_to(ctx, x, _sizes(before, shape[axis], after))
    band = ctx.constant(first), ctx.constant(round_to(weights, wide(x.type.dtype)))
    x = ctx.call(WeighNeighbours(), x, *band)
    if is_turned:
        x = reshape_to(ctx, x, _sizes(count, before, *near))
        x = ctx.call(Transpose(perm=(1, 0, 2)[: 2 + len(near)]), x)
    return reshape_to(ctx, x, _sizes(*shape[:axis], count, *shape[axis + 1 :]))


def _sizes(*sizes: int) -> tuple[Expr, ...]:
    return tuple(map(index, sizes))


def cropped(
    ctx: Context,
    x: Value,
    sampling: Sampling,
    region: Sequence[tuple[float, float]],
    scales: Sequence[float],
    counts: Sequence[int],
    beyond: float,
) -> Value:
    """A region of `x` resized; what lies outside of `x` becomes the number `beyond`."""
    outside = np.zeros((), np.bool_)
    y = x
    for axis, (size, count) in enumerate(zip(x.type.static_shape, counts, strict=True)):
        start, end = region[axis]
        places = crop_positions(size, count, start, end)
        if (size, start, end) != (count, 0.0, 1.0):
            y = resample(ctx, y, axis, *sampling.band(size, places, scales[axis]))
        out = (places < 0) | (places > size - 1)
        outside = outside | out.reshape(-1, *[1] * (x.type.rank - axis - 1))
    if not outside.any():
        return y
    return ctx.call(Where(), ctx.constant(outside), ctx.scalar(beyond, x.type.dtype), y)
