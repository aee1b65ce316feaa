"""Convolution of blocked images by fewer products: Winograd's minimal filtering.

Two by two results of a kernel of three by three need 16 products for each pair of channels instead
of 36, once four by four pixels and the weights are transformed, and the sums transformed back:

    Y = A' [ (G g G') * (B' d B) ] A

Its transforms only add and subtract, so the result is as accurate as a sum of 16 products out of
36 may be: the rounding is that of the largest pixel of a tile. Larger tiles multiply rounding.
A result that is not finite is computed once more from the pixels themselves, because inf - inf is
NaN where the transform takes differences.

Source: Lavin, Gray, "Fast Algorithms for Convolutional Neural Networks", arXiv 1509.09308,
section 4.1, for the matrices of F(2x2, 3x3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dlc.core.types import DType
from dlc.graph.assume import differs
from dlc.graph.op import Array, Fuse, Op, op
from dlc.graph.ops.conv import exact_conv
from dlc.graph.ops.conv_blocked import to_blocked, to_planar
from dlc.graph.ops.planes import repaired
from dlc.graph.ops.window import out_size
from dlc.te import tensor as te
from dlc.te.expr import Expr, const, index, minimum, select
from dlc.te.simplify import canonical, surely_divides
from dlc.te.types import Shape, TensorType, is_const

KERNEL = 3  # along each axis
OUT = 2  # results of one tile, along each axis
IN = OUT + KERNEL - 1  # pixels of one tile

Matrix = tuple[tuple[int, ...], ...]

OF_PIXELS: Matrix = ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1))
OF_SUMS: Matrix = ((1, 1, 1, 0), (0, 1, -1, -1))
OF_WEIGHTS = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])


def transform_weights(w: Array) -> Array:
    """The weights of each of the 16 products, in float64.

    Shapes:
        w: [ob, cb, 3, 3, c, oc] -> [4, 4, ob, cb, c, oc]
    """
    wide = w.astype(np.float64)
    return np.asarray(np.einsum("ai,bj,ocijuv->abocuv", OF_WEIGHTS, OF_WEIGHTS, wide))


@op("conv_winograd", fuse=Fuse.ANCHOR)
class ConvWinograd(Op):
    """Convolution by a 3 x 3 kernel, from blocked to blocked channels, two by two results at once.

    Takes the weights transformed, and as they are for what is computed once more.

    Shapes:
        x: f32[n, cb, h + 2, w + 2, c]; u: f32[4, 4, ob, cb, c, oc]; w: f32[ob, cb, 3, 3, c, oc]
        -> f32[n, ob, h, w, oc]
    """

    def infer(self, x: TensorType, u: TensorType, w: TensorType) -> TensorType:
        if any(t.dtype is not DType.F32 for t in (x, u, w)) or (x.rank, u.rank, w.rank) != (
            5,
            6,
            6,
        ):
            raise self.reject("needs a blocked f32 image and f32 weights in both forms", x, u, w)
        (n, cb, *sizes, c), (ob, wb, *kernel, ci, oc) = x.shape, w.shape
        if not all(is_const(k, KERNEL) for k in kernel) or differs(cb, wb) or differs(c, ci):
            raise self.reject("the weights do not fit", x, u, w)
        if u.shape != (index(IN), index(IN), ob, wb, ci, oc):
            raise self.reject("the transformed weights do not fit", x, u, w)
        out = [out_size(size, index(KERNEL), 1, 1) for size in sizes]
        return TensorType((n, ob, *out, oc), DType.F32)

    def compute(self, x: te.Tensor, u: te.Tensor, w: te.Tensor) -> te.Tensor:
        type_ = self.infer(x.type, u.type, w.type)
        tiles = tuple(canonical((size + (OUT - 1)) // OUT) for size in type_.shape[2:4])
        sums = _sums(_pixels(x, tiles), u, tiles)

        def plain(n: Expr, o: Expr, y: Expr, z: Expr, j: Expr) -> Expr:
            def product(a: int, b: int) -> Expr:
                return sums[(n, a, b, o, y // OUT, z // OUT, j)]

            return _transformed(OF_SUMS, y % OUT, z % OUT, product)

        def term(n: Expr, o: Expr, *rest: Expr) -> Callable[..., Expr]:
            y, z, j = rest

            def summand(b: Expr, ky: Expr, kz: Expr, i: Expr) -> Expr:
                return x[(n, b, y + ky, z + kz, i)] * w[(o, b, ky, kz, i, j)]

            return summand

        result = te.compute("transformed", type_.shape, plain, inputs=(sums,))
        extents = (w.shape[1], index(KERNEL), index(KERNEL), w.shape[4])
        return repaired(self.name, type_.shape, result, lambda *at: at, extents, term, (x, w))

    def reference(self, x: Array, u: Array, w: Array) -> Array:
        ob, cb, *kernel, c, oc = w.shape
        rows = np.moveaxis(w, (-1, -2), (1, 3)).reshape(ob * oc, cb * c, *kernel)
        return to_blocked(exact_conv(to_planar(x), rows, (1, 1), (0,) * 4, (1, 1), 1), oc)


def _pixels(x: te.Tensor, tiles: Shape) -> te.Tensor:
    """Tiles of four by four pixels, transformed: [n, 4, 4, cb, tiles, tiles, c]."""
    n, cb, *sizes, c = x.shape

    def at(tile: Expr, step: int, size: Expr) -> Expr:
        position = tile * OUT + step
        if surely_divides(OUT, size) or step < KERNEL:
            return position
        return minimum(position, size - 1)  # only results that nobody needs read further

    def element(image: Expr, a: Expr, b: Expr, block: Expr, y: Expr, z: Expr, i: Expr) -> Expr:
        def pixel(dy: int, dz: int) -> Expr:
            return x[(image, block, at(y, dy, sizes[0]), at(z, dz, sizes[1]), i)]

        return _transformed(OF_PIXELS, a, b, pixel)

    return te.compute("pixels", (n, IN, IN, cb, *tiles, c), element, inputs=(x,))


def _sums(pixels: te.Tensor, u: te.Tensor, tiles: Shape) -> te.Tensor:
    """The sums of products over all channels: [n, 4, 4, ob, tiles, tiles, oc]."""
    n = pixels.shape[0]
    _, _, ob, cb, c, oc = u.shape

    def element(image: Expr, a: Expr, b: Expr, o: Expr, y: Expr, z: Expr, j: Expr) -> te.Reduce:
        return te.reduce_sum(
            (cb, c), lambda d, i: pixels[(image, a, b, d, y, z, i)] * u[(a, b, o, d, i, j)]
        )

    return te.compute("sums", (n, IN, IN, ob, *tiles, oc), element, inputs=(pixels, u))


def _transformed(
    matrix: Matrix, row: Expr, column: Expr, element: Callable[[int, int], Expr]
) -> Expr:
    """One element of M d M', where `element` gives those of d."""

    def line(weights: Sequence[int], i: int) -> Expr:
        return _combined(weights, lambda j: element(i, j))

    def both(i: int, j: int) -> Expr:
        return _combined(matrix[i], lambda k: line(matrix[j], k))

    count = range(len(matrix))
    return _chosen(row, [_chosen(column, [both(i, j) for j in count]) for i in count])


def _combined(weights: Sequence[int], element: Callable[[int], Expr]) -> Expr:
    """The sum of elements with weights of 1, 0 and -1; one of the first two is not negative."""
    plus = [element(i) for i, m in enumerate(weights) if m > 0]
    total = plus[0]
    for each in plus[1:]:
        total = total + each
    for i, m in enumerate(weights):
        if m < 0:
            total = total - element(i)
    return total


def _chosen(position: Expr, values: Sequence[Expr]) -> Expr:
    """The value at a position."""
    found = values[-1]
    for n in range(len(values) - 1, 0, -1):
        found = select(position < const(n, DType.INDEX), values[n - 1], found)
    return found
