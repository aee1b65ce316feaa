"""Convolution of blocked images by fewer products: Winograd's minimal filtering.

Two by two results of a kernel of three by three need 16 products for each pair of channels instead
of 36, four by four 36 instead of 144, once a tile of pixels and the weights are transformed, and
the sums transformed back:

    Y = A' [ (G g G') * (B' d B) ] A

For two by two the transforms only add and subtract, so the result is as accurate as a sum of 16
products out of 36 may be: the rounding is that of the largest pixel of a tile. For four by four
they multiply, too, and rounding is 2.8 times that of a direct sum. A result that is not finite is
computed once more from the pixels themselves, because inf - inf is NaN where the transform takes
differences.

Volumes are images one behind the other: each result adds up the products of several of them, by
the transformed weights of each, so their transforms are shared by as many results.

Source: Lavin, Gray, "Fast Algorithms for Convolutional Neural Networks", arXiv 1509.09308,
section 4.1, for the matrices of F(2x2, 3x3). Those of F(4x4, 3x3) are of Toom and Cook for the
points 0, 1, -1, 2, -1/2 and infinity, which round less than 0, 1, -1, 2, -2 do: Barabasz,
Anderson, Soodhalter, Gregg, "Error Analysis and Improving the Accuracy of Winograd Convolution for
Deep Neural Networks", arXiv 1803.10986.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from dlc.core.types import DType
from dlc.graph.assume import differs
from dlc.graph.op import Array, Fuse, Op, op
from dlc.graph.ops.conv import check_sizes, check_window, exact_conv
from dlc.graph.ops.conv_blocked import to_blocked, to_planar
from dlc.graph.ops.planes import repaired
from dlc.graph.ops.window import out_size
from dlc.te import tensor as te
from dlc.te.expr import Expr, const, index, minimum, select
from dlc.te.simplify import canonical, surely_divides
from dlc.te.types import Shape, TensorType, is_const

KERNEL = 3  # along each axis

Out = tuple[int, int]  # results of a tile, along columns and rows
Line = Callable[[Sequence[Expr]], list[Expr]]


@dataclass(frozen=True, slots=True)
class Filter:
    """The transforms along one axis: of pixels, of sums, and of weights, as a matrix."""

    pixels: Line
    sums: Line
    weights: Array


def _pixels_of_two(d: Sequence[Expr]) -> list[Expr]:
    return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]


def _sums_of_two(m: Sequence[Expr]) -> list[Expr]:
    return [m[0] + m[1] + m[2], m[1] - m[2] - m[3]]


def _pixels_of_four(d: Sequence[Expr]) -> list[Expr]:
    """Each row of B' has the coefficients of the product of (x - p) over all other points p.

    Those of 0 are 1, 3/2, -2, -3/2, 1, 0; infinity has all points: 0, 1, 3/2, -2, -3/2, 1.
    """
    odd, even = d[3] - d[1], d[4] - d[2]
    low, high = odd - d[2] * 1.5, even - d[3] * 1.5
    return [
        even - odd * 1.5 - (d[2] - d[0]),
        high + low,
        high - low,
        even + odd * 0.5,
        even - odd * 2.0,
        (d[5] - d[3]) - even * 1.5 - odd,
    ]


def _sums_of_four(m: Sequence[Expr]) -> list[Expr]:
    """The rows of A' are the powers 0 to 3 of the points; infinity adds to the highest alone."""
    even, odd = m[1] + m[2], m[1] - m[2]
    return [
        m[0] + even + (m[3] + m[4]),
        odd + m[3] * 2.0 - m[4] * 0.5,
        even + m[3] * 4.0 + m[4] * 0.25,
        odd + m[3] * 8.0 - m[4] * 0.125 + m[5],
    ]


FILTERS: Mapping[int, Filter] = {  # by the results of one tile, along each axis
    2: Filter(
        _pixels_of_two,
        _sums_of_two,
        np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]]),
    ),
    4: Filter(
        _pixels_of_four,
        _sums_of_four,
        np.array(
            [[15, 0, 0], [-5, -5, -5], [5, -5, 5], [1, 2, 4], [-16, 8, -4], [0, 0, 15]]
        )
        / 15,
    ),
}  # fmt: skip


def positions(out: Out) -> tuple[int, int]:
    """How many products a tile of `out` results has along each axis: as many as pixels."""
    high, wide = out
    return high + KERNEL - 1, wide + KERNEL - 1


def transform_weights(w: Array, out: Out) -> Array:
    """The weights of each product of a tile of `out` results, in float64.

    Shapes:
        w: [ob, cb, *outer, 3, 3, c, oc] -> [out[0] + 2, out[1] + 2, ob, cb, *outer, c, oc]
    """
    left, right = (FILTERS[n].weights for n in out)
    return np.asarray(np.einsum("ai,bj,...ijuv->ab...uv", left, right, w.astype(np.float64)))


@op("conv_winograd", fuse=Fuse.ANCHOR)
class ConvWinograd(Op):
    """Convolution by a kernel of [*outer, 3, 3], between blocked channels, a tile `out` at once.

    Takes the weights transformed, and as they are for what is computed once more.

    Shapes:
        x: f32[n, cb, *images, h + 2, w + 2, c]; w: f32[ob, cb, *outer, 3, 3, c, oc];
        u: f32[out[0] + 2, out[1] + 2, ob, cb, *outer, c, oc] -> f32[n, ob, *out_images, h, w, oc]
    """

    out: Out = (2, 2)
    stride: tuple[int, ...] = ()  # of the outer axes; the others have 1
    dilation: tuple[int, ...] = ()

    def infer(self, x: TensorType, u: TensorType, w: TensorType) -> TensorType:
        if any(t.dtype is not DType.F32 for t in (x, u, w)) or not (
            x.rank >= 5 and x.rank + 1 == u.rank == w.rank
        ):
            raise self.reject("needs a blocked f32 image and f32 weights in both forms", x, u, w)
        if self.out not in product(FILTERS, FILTERS):
            raise self.reject(f"tiles of {self.out} results have no transform", x, u, w)
        (n, cb, *sizes, c), (ob, wb, *kernel, ci, oc) = x.shape, w.shape
        outer, kernel = kernel[:-2], kernel[-2:]
        if not all(is_const(k, KERNEL) for k in kernel) or differs(cb, wb) or differs(c, ci):
            raise self.reject("the weights do not fit", x, u, w)
        if u.shape != (*map(index, positions(self.out)), ob, wb, *outer, ci, oc):
            raise self.reject("the transformed weights do not fit", x, u, w)
        check_window(self, len(outer), x, u, w, stride=self.stride, dilation=self.dilation)
        steps = zip(sizes, (*outer, *kernel), *self._steps, strict=True)
        out = [out_size(*step) for step in steps]
        check_sizes(self, out, x, u, w)
        return TensorType((n, ob, *out, oc), DType.F32)

    @property
    def _steps(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Strides and dilations of all axes."""
        return (*self.stride, 1, 1), (*self.dilation, 1, 1)

    def _source(self, at: Sequence[Expr], k: Sequence[Expr]) -> list[Expr]:
        """Where results read along the first axes for position `k` of the kernel."""
        strides, dilations = self._steps
        return [i * s + j * d for i, j, s, d in zip(at, k, strides, dilations, strict=False)]

    def compute(self, x: te.Tensor, u: te.Tensor, w: te.Tensor) -> te.Tensor:
        type_ = self.infer(x.type, u.type, w.type)
        _, _, *outer, high, wide, _ = type_.shape
        sizes = zip((high, wide), self.out, strict=True)
        tiles = tuple(canonical((size + (out - 1)) // out) for size, out in sizes)
        sums = self._sums(_pixels(x, tiles, self.out), u, (*outer, *tiles))

        def term(n: Expr, o: Expr, *rest: Expr) -> Callable[..., Expr]:
            *at, j = rest

            def summand(b: Expr, *inner: Expr) -> Expr:
                *k, i = inner
                return x[(n, b, *self._source(at, k), i)] * w[(o, b, *k, i, j)]

            return summand

        result = _results(sums, type_.shape, self.out)
        extents = (*w.shape[1:-2], w.shape[-2])
        return repaired(self.name, type_.shape, result, lambda *at: at, extents, term, (x, w))

    def _sums(self, pixels: te.Tensor, u: te.Tensor, sizes: Shape) -> te.Tensor:
        """The sums of products over all channels: [n, *positions, ob, *outer, *tiles, oc]."""
        n = pixels.shape[0]
        high, wide, ob, *summands, oc = u.shape

        def element(image: Expr, a: Expr, b: Expr, o: Expr, *rest: Expr) -> te.Reduce:
            *outer, y, z, j = rest

            def product(d: Expr, *inner: Expr) -> Expr:
                *k, i = inner
                pixel = pixels[(image, a, b, d, *self._source(outer, k), y, z, i)]
                return pixel * u[(a, b, o, d, *k, i, j)]

            return te.reduce_sum(summands, product)

        return te.compute("sums", (n, high, wide, ob, *sizes, oc), element, inputs=(pixels, u))

    def reference(self, x: Array, u: Array, w: Array) -> Array:
        ob, cb, *kernel, c, oc = w.shape
        rows = np.moveaxis(w, (-1, -2), (1, 3)).reshape(ob * oc, cb * c, *kernel)
        strides, dilations = self._steps
        pads = (0,) * (2 * len(strides))
        return to_blocked(exact_conv(to_planar(x), rows, strides, pads, dilations, 1), oc)


def _pixels(x: te.Tensor, tiles: Shape, out: Out) -> te.Tensor:
    """Tiles of pixels, transformed along columns, then rows: [n, *positions, *others, *tiles, c].

    The others are blocks of channels, and images of a volume.
    """
    n, *others, _, _, c = x.shape
    sizes = x.shape[-3:-1]
    high, wide = positions(out)
    of_columns, of_rows = (FILTERS[n].pixels for n in out)

    def at(axis: int, tile: Expr, step: Expr) -> Expr:
        size, each = sizes[axis], out[axis]
        position = tile * each + step
        if surely_divides(each, size - (KERNEL - 1)):
            return position
        within = minimum(position, size - 1)  # only results that nobody needs read further
        return select(step < const(KERNEL, DType.INDEX), position, within)

    def half(image: Expr, a: Expr, *rest: Expr) -> Expr:
        *other, y, z, dz, i = rest
        column = at(1, z, dz)
        rows = (at(0, y, index(dy)) for dy in range(high))
        return _chosen(a, of_columns([x[(image, *other, row, column, i)] for row in rows]))

    shape = (n, index(high), *others, *tiles, index(wide), c)
    columns = te.compute("pixel_columns", shape, half, inputs=(x,))

    def whole(image: Expr, a: Expr, b: Expr, *rest: Expr) -> Expr:
        *place, i = rest
        return _chosen(b, of_rows([columns[(image, a, *place, d, i)] for d in range(wide)]))

    shape = (n, index(high), index(wide), *others, *tiles, c)
    return te.compute("pixels", shape, whole, inputs=(columns,))


def _results(sums: te.Tensor, shape: Shape, out: Out) -> te.Tensor:
    """The sums transformed back, along columns, then rows: [n, ob, *outer, h, w, oc]."""
    n, _, _, *others, oc = sums.shape
    high, wide = positions(out)
    of_columns, of_rows = (FILTERS[n].sums for n in out)

    def half(image: Expr, p: Expr, *rest: Expr) -> Expr:
        *place, b, j = rest
        return _chosen(p, of_columns([sums[(image, a, b, *place, j)] for a in range(high)]))

    narrow = (n, index(out[0]), *others, index(wide), oc)
    columns = te.compute("sum_columns", narrow, half, inputs=(sums,))

    def whole(image: Expr, *rest: Expr) -> Expr:
        *place, y, z, j = rest
        tile = (image, y % out[0], *place, y // out[0], z // out[1])
        return _chosen(z % out[1], of_rows([columns[(*tile, b, j)] for b in range(wide)]))

    return te.compute("transformed", shape, whole, inputs=(columns,))


def _chosen(position: Expr, values: Sequence[Expr]) -> Expr:
    """The value at a position."""
    found = values[-1]
    for n in range(len(values) - 1, 0, -1):
        found = select(position < const(n, DType.INDEX), values[n - 1], found)
    return found
