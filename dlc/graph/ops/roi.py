"""Pooling over regions of images, which are data."""

from __future__ import annotations

import functools
from operator import add

import numpy as np

from dlc.core.types import FLOATS, INDEX, DType
from dlc.graph.assume import differs
from dlc.graph.op import Array, Fuse, Op, as_f64, op
from dlc.graph.ops.attributes import as_sizes, constants, set_size
from dlc.graph.ops.elementwise import check_dtype
from dlc.graph.ops.gather import safe_index
from dlc.graph.ops.precision import narrow, wide, widen
from dlc.te import tensor as te
from dlc.te.expr import (
    BinOp,
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


@op("roi_points", fuse=Fuse.OPAQUE)
class RoiPoints(Op):
    """Where the points lie whose values make up each part of a region.

    Where `adaptive` is set, a part has about as many points along an axis as pixels, `samples` at
    most.

    Shapes:
        rois: [r, 4] as left, top, right, bottom
        -> [r, 2], how many points a part has along an axis; [r, 2, largest of out, samples], where.
        Axis 0 are the rows, and axis 1 the columns.

    Source: https://onnx.ai/onnx/operators/onnx__RoiAlign.html
    """

    out: tuple[int, int]
    samples: Expr
    scale: float = 1.0
    half_pixel: bool = True
    adaptive: bool = False

    def __post_init__(self) -> None:
        """Take a number of points as a size, too."""
        set_size(self, "samples")

    def infer(self, rois: TensorType) -> tuple[TensorType, TensorType]:
        check_dtype(self, FLOATS, rois)
        if rois.rank != 2 or differs(rois.shape[1], 4):
            raise self.reject("needs regions of four sides", rois)
        dtype, points = wide(rois.dtype), (rois.shape[0], 2, max(self.out), self.samples)
        return TensorType((rois.shape[0], 2), dtype), TensorType(points, dtype)

    def compute(self, rois: te.Tensor) -> tuple[te.Tensor, te.Tensor]:
        dtype = wide(rois.dtype)
        limit = cast(dtype, self.samples)

        def side(r: Expr, d: Expr) -> tuple[Expr, Expr]:
            """Where a region begins along an axis, and how long a part of it is."""
            shift = 0.5 if self.half_pixel else 0.0
            start = widen(rois[r, 1 - d]) * self.scale - shift
            length = widen(rois[r, 3 - d]) * self.scale - shift - start
            length = length if self.half_pixel else maximum(length, 1.0)
            return start, length / select(d < 1, const(float(self.out[0]), dtype), self.out[1])

        def number(r: Expr, d: Expr) -> Expr:
            return minimum(unary(UnOp.CEIL, side(r, d)[1]), limit) if self.adaptive else limit

        counts = te.compute("counts", (rois.shape[0], 2), number, inputs=(rois,))

        def point(r: Expr, d: Expr, part: Expr, sample: Expr) -> Expr:
            start, length = side(r, d)
            inside = (cast(dtype, sample) + 0.5) / counts[r, d]
            return start + (cast(dtype, part) + inside) * length

        shape = self.infer(rois.type)[1].shape
        return counts, te.compute("points", shape, point, inputs=(rois, counts))

    def reference(self, rois: Array) -> tuple[Array, Array]:
        (rois,) = as_f64(rois)
        shift = 0.5 if self.half_pixel else 0.0
        starts = rois[:, [1, 0]] * self.scale - shift
        lengths = rois[:, [3, 2]] * self.scale - shift - starts
        lengths = lengths if self.half_pixel else np.maximum(lengths, 1.0)
        parts = lengths / np.array(self.out)
        limit = constants([self.samples])[0]
        most = np.full(parts.shape, float(limit))
        counts = np.minimum(np.ceil(parts), most) if self.adaptive else most
        part = np.arange(max(self.out))[:, None]
        with np.errstate(all="ignore"):
            inside = (np.arange(limit) + 0.5) / counts[..., None, None]
            return counts, starts[..., None, None] + (part + inside) * parts[..., None, None]


@op("roi_align", fuse=Fuse.OPAQUE)
class RoiAlign(Op):
    """The mean, or the largest, of the points in each part of a region, for all channels.

    Points lie between pixels, and are interpolated. Of no points the result is 0. The channels of
    a pixel lie side by side: where a point lies is found once for all of them. Unless `adaptive` is
    set, all points count.

    Shapes:
        x: [n, h, w, c]; counts: [r, 2]; points: [r, 2, m, samples] (see `RoiPoints`);
        images: [r] -> [r, *out, c]

    Source: https://onnx.ai/onnx/operators/onnx__RoiAlign.html
    """

    out: tuple[int, int]
    mode: str = "avg"
    adaptive: bool = False

    def infer(
        self, x: TensorType, counts: TensorType, points: TensorType, images: TensorType
    ) -> TensorType:
        check_dtype(self, FLOATS, x)
        check_dtype(self, FLOATS, counts, points)
        check_dtype(self, frozenset({DType.I64}), images)
        if x.rank != 4 or points.rank != 4 or counts.rank != 2 or images.rank != 1:
            raise self.reject("needs images of two dimensions and points", x, counts, points)
        if differs(counts.shape[0], images.shape[0]) or differs(points.shape[0], images.shape[0]):
            raise self.reject("regions and images differ in number", x, points, images)
        if self.mode not in ("avg", "max"):
            raise self.reject(f"there is no mode '{self.mode}'", x)
        return TensorType((images.shape[0], *as_sizes(self.out), x.shape[3]), x.dtype)

    def compute(
        self, x: te.Tensor, counts: te.Tensor, points: te.Tensor, images: te.Tensor
    ) -> te.Tensor:
        dtype = wide(x.dtype)
        shape = self.infer(x.type, counts.type, points.type, images.type).shape
        mean = self.mode == "avg"
        none = const(0.0, dtype) if mean else te.identity(BinOp.MAX, dtype)

        def element(r: Expr, i: Expr, j: Expr, c: Expr) -> te.Reduce:
            image = safe_index(images[r], x.shape[0])

            def value(p: Expr, q: Expr) -> Expr:
                rows = _around(points[r, 0, i, p], x.shape[1])
                columns = _around(points[r, 1, j, q], x.shape[2])
                parts = [
                    widen(x[image, y, z, c]) * cast(dtype, a * b)
                    for y, a in rows[1]
                    for z, b in columns[1]
                ]
                total = functools.reduce(add if mean else maximum, parts)
                found = select(both(rows[0], columns[0]), total, 0.0)
                if not self.adaptive:
                    return found
                first, second = (cast(counts.dtype, v) for v in (p, q))
                taken = both(first < counts[r, 0], second < counts[r, 1])
                return select(taken, found, none)

            return te.reduce(BinOp.ADD if mean else BinOp.MAX, (points.shape[3],) * 2, value)

        found = te.compute(self.name, shape, element, inputs=(x, images, points, counts))

        def finish(r: Expr, i: Expr, j: Expr, c: Expr) -> Expr:
            rows, columns = counts[r, 0], counts[r, 1]
            v: Expr = found[r, i, j, c]
            if mean:
                v = v / cast(v.dtype, maximum(rows * columns, 1.0))
            return select(both(rows > 0.0, columns > 0.0), v, 0.0)

        kept = te.compute(f"{self.name}_kept", shape, finish, inputs=(found, counts))
        return narrow(kept, x.dtype)

    def reference(self, x: Array, counts: Array, points: Array, images: Array) -> Array:
        x, counts, points = as_f64(x, counts, points)
        result = np.zeros((len(images), *self.out, x.shape[3]))
        for r, i, j in np.ndindex(len(images), *self.out):
            image = x[int(np.clip(images[r] + (images[r] < 0) * len(x), 0, len(x) - 1))]
            rows, columns = np.maximum(counts[r], 0).astype(int)
            values = [
                _sample(image, np.array([y, z]), self.mode)
                for y in points[r, 0, i, :rows]
                for z in points[r, 1, j, :columns]
            ]
            if values:
                result[r, i, j] = np.mean(values, 0) if self.mode == "avg" else np.max(values, 0)
        return result


def _around(at: Expr, size: Expr) -> tuple[Expr, list[tuple[Expr, Expr]]]:
    """Whether a position counts, and the two elements around it with their weights."""
    length = cast(at.dtype, size)
    exists = both(both(at >= -1.0, at <= length), const(0, INDEX) < size)
    held = maximum(minimum(at, length - 1.0), 0.0)
    whole = unary(UnOp.FLOOR, held)
    low = maximum(minimum(cast(INDEX, whole), size - 1), 0)
    part = held - whole
    return exists, [(low, 1.0 - part), (minimum(low + 1, maximum(size - 1, 0)), part)]


def _sample(image: Array, at: Array, mode: str) -> Array:
    sizes = np.array(image.shape[:2])
    if (at < -1).any() or (at > sizes).any() or np.isnan(at).any():
        return np.zeros(image.shape[2])
    held = np.clip(at, 0, sizes - 1)
    low = np.floor(held).astype(int)
    high = np.minimum(low + 1, sizes - 1)
    part = held - low
    parts = [
        image[y, z] * a * b
        for y, a in ((low[0], 1 - part[0]), (high[0], part[0]))
        for z, b in ((low[1], 1 - part[1]), (high[1], part[1]))
    ]
    return np.asarray(np.sum(parts, 0) if mode == "avg" else np.max(parts, 0))


@op("max_roi_pool", fuse=Fuse.REDUCTION)
class MaxRoiPool(Op):
    """The largest element in each part of a region whose sides are whole; 0 where there is none.

    Each part looks at whole columns, and then at whole rows of what it found: its extent is data.

    Shapes:
        x: [n, c, h, w]; rois: [r, 5] as image, left, top, right, bottom -> [r, c, *out]

    Source: https://onnx.ai/onnx/operators/onnx__MaxRoiPool.html
    """

    out: tuple[int, int]
    scale: float = 1.0

    def infer(self, x: TensorType, rois: TensorType) -> TensorType:
        check_dtype(self, FLOATS, x, rois)
        if x.rank != 4 or rois.rank != 2 or differs(rois.shape[1], 5):
            raise self.reject("needs images of two dimensions and regions of five numbers", x, rois)
        return TensorType((rois.shape[0], x.shape[1], *as_sizes(self.out)), x.dtype)

    def compute(self, x: te.Tensor, rois: te.Tensor) -> te.Tensor:
        def side(r: Expr, s: Expr) -> Expr:
            moved = widen(rois[r, s]) * self.scale + 0.5  # halves go up
            return cast(INDEX, unary(UnOp.FLOOR, maximum(minimum(moved, _FAR), -_FAR)))

        def bounds(r: Expr, d: int, part: Expr) -> tuple[Expr, Expr]:
            start, end = side(r, const(2 - d, INDEX)), side(r, const(4 - d, INDEX))
            length = maximum(end - start + 1, 1)
            low = start + part * length // self.out[d]
            high = start + ((part + 1) * length + (self.out[d] - 1)) // self.out[d]
            return low, high

        lowest = te.identity(BinOp.MAX, x.dtype)
        regions, channels, *out = self.infer(x.type, rois.type).shape

        def end(d: int, high: bool) -> te.Tensor:
            """Where each part of each region begins or ends: worked out once for all channels."""
            return te.compute(
                f"{self.name}_end{d}{int(high)}",
                (regions, out[d]),
                lambda r, part: cast(DType.I64, bounds(r, d, part)[high]),
                inputs=(rois,),
            )

        ends = [(end(d, high=False), end(d, high=True)) for d in range(2)]

        def sides(r: Expr, d: int, part: Expr) -> tuple[Expr, Expr]:
            low, high = ends[d]
            return cast(INDEX, low[r, part]), cast(INDEX, high[r, part])

        def among(r: Expr, d: int, part: Expr, at: Expr, value: Expr) -> Expr:
            low, high = sides(r, d, part)
            return select(both(low <= at, at < high), value, lowest)

        def in_column(r: Expr, c: Expr, i: Expr, z: Expr) -> te.Reduce:
            image = safe_index(cast(INDEX, widen(rois[r, 0])), x.shape[0])
            return te.reduce_max(x.shape[2:3], lambda y: among(r, 0, i, y, x[image, c, y, z]))

        def element(r: Expr, c: Expr, i: Expr, j: Expr) -> te.Reduce:
            return te.reduce_max(x.shape[3:], lambda z: among(r, 1, j, z, columns[r, c, i, z]))

        columns = te.compute(
            f"{self.name}_columns",
            (regions, channels, out[0], x.shape[3]),
            in_column,
            inputs=(x, rois, *ends[0]),
        )
        shape = (regions, channels, *out)
        top = te.compute(self.name, shape, element, inputs=(columns, *ends[1]))

        def kept(r: Expr, c: Expr, i: Expr, j: Expr) -> Expr:
            empty = either(
                *(_is_empty(*sides(r, d, p), x.shape[d + 2]) for d, p in ((0, i), (1, j)))
            )
            return select(empty, const(0.0, x.dtype), top[r, c, i, j])

        return te.compute(f"{self.name}_kept", shape, kept, inputs=(top, *ends[0], *ends[1]))

    def reference(self, x: Array, rois: Array) -> Array:
        x, rois = as_f64(x, rois)
        sides = np.floor(rois[:, 1:] * self.scale + 0.5).astype(np.int64)
        result = np.zeros((len(rois), x.shape[1], *self.out))
        for r, _, i, j in np.ndindex(len(rois), 1, *self.out):
            image = x[int(np.clip(rois[r, 0] + (rois[r, 0] < 0) * len(x), 0, len(x) - 1))]
            cut = []
            for d, part in ((0, i), (1, j)):
                start, length = sides[r, 1 - d], max(sides[r, 3 - d] - sides[r, 1 - d] + 1, 1)
                low = start + part * length // self.out[d]
                high = start - (-(part + 1) * length // self.out[d])
                cut.append(slice(max(low, 0), max(min(high, x.shape[d + 2]), 0)))
            region = image[:, cut[0], cut[1]]
            result[r, :, i, j] = region.max((1, 2)) if region.size else 0
        return result


def _is_empty(low: Expr, high: Expr, size: Expr) -> Expr:
    return minimum(high, size) <= maximum(low, 0)
