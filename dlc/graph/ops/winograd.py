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

Along one axis alone, four results need 6 products instead of 12.

Three by three results of a kernel of two by two need 16 products instead of 36, by the same
transform of pixels as two by two of three by three. In steps of two, the even taps and pixels are
one convolution and the odd ones another, which give to the same results: three of a kernel of three
need four products and three instead of nine.

A kernel that is larger than those of its tile is a sum of such, each of them for tiles of its own
pixels; zeros fill up the last one. Of five along one axis, four results need 12 products instead of
20. The same tile of six pixels gives three results of a kernel of four: of seven, 12 products
instead of 21.

Volumes are images one behind the other: each result adds up the products of several of them, by
the transformed weights of each, so their transforms are shared by as many results. Where lines
alone are transformed, those of an image take the part of images.

Whole numbers have transforms of their own, which are exact: see `ConvWinogradBytes`. The matrices
are in `filters`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from dlc.core.types import DType
from dlc.graph.assume import differs, is_below
from dlc.graph.op import Array, Fuse, Op, op
from dlc.graph.ops.conv import check_sizes, check_window, exact_conv
from dlc.graph.ops.conv_blocked import ConvBlocked, only_used, to_blocked, to_planar, used_channels
from dlc.graph.ops.filters import (
    LANES,
    WHOLE_TAPS,
    Out,
    Tile,
    inverse_of,
    scale_of,
)
from dlc.graph.ops.neighbours import in_rows
from dlc.graph.ops.planes import repaired
from dlc.graph.ops.tile_transforms import transform_bytes, transform_pixels, transform_sums
from dlc.graph.ops.window import out_size
from dlc.schedule.rules.transform_plan import OPEN_STRIP
from dlc.te import tensor as te
from dlc.te.expr import Binary, BinOp, Const, Expr, cast, ceil_div, const, index
from dlc.te.simplify import canonical
from dlc.te.types import Shape, TensorType, const_size, is_const

STRIPS = range(16, 65)  # tiles of a long line that may be transformed at a time
EACH = 2  # products of whole numbers that are added at once


def count_tiles(sizes: Shape, out: Out) -> Shape:
    """How many tiles along each axis cover the results.

    A long line has some more where strips of it are as long as each other then.
    """
    match tuple(canonical(ceil_div(size, each)) for size, each in zip(sizes, out, strict=True)):
        case [Const(int(count), _)] if count > STRIPS[-1]:
            return (index(min(-(-count // n) * n for n in STRIPS)),)
        case [tiles] if not isinstance(tiles, Const):
            return (canonical(ceil_div(sizes[0], out[0] * OPEN_STRIP) * OPEN_STRIP),)
        case tiles:
            return tiles


class TiledConv(Op):
    """What both forms share: attributes, where results read, and sums of products."""

    out: Out = (2, 2)
    stride: tuple[int, ...] = ()  # of the outer axes; the others have `steps`
    dilation: tuple[int, ...] = ()  # of the outer axes; the others have 1
    steps: tuple[int, ...] = ()  # of the axes of a tile; (): of one

    def sizes(
        self, sizes: Sequence[Expr], kernel: Sequence[Expr], *operands: TensorType
    ) -> list[Expr]:
        """The sizes of the result along all axes, of an image of some sizes."""
        outer = len(sizes) - len(self.out)
        check_window(self, outer, *operands, stride=self.stride, dilation=self.dilation)
        out = [out_size(*each) for each in zip(sizes, kernel, *self._steps, strict=True)]
        check_sizes(self, out, *operands)
        return out

    @property
    def _steps(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Strides and dilations of all axes."""
        ones = (1,) * len(self.out)
        return (*self.stride, *(self.steps or ones)), (*self.dilation, *ones)

    def _is_known(self, *, is_whole: bool) -> bool:
        """Whether there are transforms for such tiles."""
        axes = len(self.out)
        fits = 1 <= axes <= 2 and len(self.steps) in (0, axes)
        return fits and Tile(self.out, (), self.steps, is_whole).has_filters

    def _direct(self, x: Array, w: Array) -> Array:
        """The convolution by weights as they are, [ob, cb, *kernel, c, oc]."""
        ob, cb, *kernel, c, oc = w.shape
        rows = np.moveaxis(w, (-1, -2), (1, 3)).reshape(ob * oc, cb * c, *kernel)
        strides, dilations = self._steps
        pads = (0,) * (2 * len(strides))
        return to_blocked(exact_conv(to_planar(x), rows, strides, pads, dilations, 1), oc)

    def source(self, at: Sequence[Expr], k: Sequence[Expr]) -> list[Expr]:
        """Where results read along the first axes for position `k` of the kernel."""
        strides, dilations = self._steps
        return [i * s + j * d for i, j, s, d in zip(at, k, strides, dilations, strict=False)]

    def sums(
        self, pixels: te.Tensor, u: te.Tensor, sizes: Shape, channels: Shape, type_: TensorType
    ) -> te.Tensor:
        """The sums of products over all channels: [n, *positions, ob, *outer, *tiles, oc].

        `channels` of a block are one loop, or groups, and the channels of one: those of a result
        stand side by side in `u` then.
        """
        n, axes = pixels.shape[0], len(self.out)
        ob, *summands = u.shape[axes:-LANES]
        each = channels[1:]

        def element(image: Expr, *rest: Expr) -> te.Reduce:
            position, (o, *at, j) = rest[:axes], rest[axes:]
            outer, tile = at[:-axes], at[-axes:]

            def product(d: Expr, *inner: Expr) -> Expr:
                k, (group, *rest) = inner[: len(summands) - 1], inner[len(summands) - 1 :]
                source, part = self.source(outer, k), k[len(outer) :]
                i = group * each[0] + rest[0] if rest else group
                lane = j * each[0] + rest[0] if rest else j
                pixel = pixels[(image, *position, d, *source, *part, *tile, i)]
                weight = u[(*position, o, d, *k, group, lane)]
                return cast(type_.dtype, pixel) * cast(type_.dtype, weight)

            return te.reduce_sum((*summands, *channels), product)

        shape = (n, *u.shape[:axes], ob, *sizes, type_.shape[-1])
        return te.compute("sums", shape, element, inputs=(pixels, u))


@op("conv_winograd", fuse=Fuse.ANCHOR)
class ConvWinograd(TiledConv):
    """Convolution by a kernel of [*outer, 3, 3], between blocked channels, a tile `out` at once.

    Of a tile of one axis the kernel is [*outer, 3], and each line of an image is transformed alone.
    A larger kernel has [*parts] kernels, one in `steps` as many positions as `Tile` says. Takes the
    weights transformed, and as they are for what is computed once more. Where sizes are open,
    `cycles` are those of a result of direct sums, of a tile, and of reading that there are more
    weights.

    Shapes:
        x: f32[n, cb, *images, h + 2, w + 2, c]; w: f32[ob, cb, *outer, 3, 3, c, oc];
        u: f32[out[0] + 2, out[1] + 2, ob, cb, *outer, c, oc] -> f32[n, ob, *out_images, h, w, oc]
        of others: u: f32[*positions, ob, cb, *outer, *parts, c, oc]
    """

    out: Out = (2, 2)
    stride: tuple[int, ...] = ()  # of the outer axes; the others have `steps`
    dilation: tuple[int, ...] = ()  # of the outer axes; the others have 1
    steps: tuple[int, ...] = ()  # of the axes of a tile; (): of one
    used: int = 0  # how many channels of a block, the first ones, are summands; 0: all of them
    cycles: tuple[int, ...] = ()  # by which a run chooses direct sums; (): it never does

    def infer(self, x: TensorType, u: TensorType, w: TensorType) -> TensorType:
        if not self._is_known(is_whole=False):
            how = f" in steps of {self.steps}" if self.steps else ""
            raise self.reject(f"tiles of {self.out} results{how} have no transform", x, u, w)
        if any(t.dtype is not DType.F32 for t in (x, u, w)) or not (
            x.rank >= len(self.out) + 3 and x.rank + 1 == w.rank
        ):
            raise self.reject("needs a blocked f32 image and f32 weights in both forms", x, u, w)
        if len(self.cycles) not in (0, 3):
            raise self.reject(f"a run does not choose by {len(self.cycles)} numbers", x, u, w)
        (n, cb, *sizes, c), (ob, wb, *kernel, ci, oc) = x.shape, w.shape
        outer, kernel = kernel[: -len(self.out)], kernel[-len(self.out) :]
        is_known = all(isinstance(k, Const) and k.value for k in kernel)
        if not is_known or differs(cb, wb) or differs(c, ci) or is_below(c, self.used):
            raise self.reject("the weights do not fit", x, u, w)
        tile = Tile(self.out, tuple(const_size(k) for k in kernel), self.steps)
        positions, parts = map(index, tile.positions), map(index, tile.parts)
        if u.shape != (*positions, ob, wb, *outer, *parts, ci, oc):
            raise self.reject("the transformed weights do not fit", x, u, w)
        return TensorType((n, ob, *self.sizes(sizes, (*outer, *kernel), x, u, w), oc), DType.F32)

    def compute(self, x: te.Tensor, u: te.Tensor, w: te.Tensor) -> te.Tensor:
        type_ = self.infer(x.type, u.type, w.type)
        place = len(type_.shape) - 1 - len(self.out)
        outer, sizes = type_.shape[2:place], type_.shape[place:-1]
        tiles = count_tiles(sizes, self.out)
        tile = Tile(self.out, tuple(const_size(k) for k in w.shape[place:-LANES]), self.steps)
        used = used_channels(self.used, w.shape[-LANES])
        pixels = transform_pixels(x, tiles, tile)
        sums = self.sums(pixels, u, (*outer, *tiles), (used,), type_)

        def term(n: Expr, o: Expr, *rest: Expr) -> Callable[..., Expr]:
            *at, j = rest

            def summand(b: Expr, *inner: Expr) -> Expr:
                *k, i = inner
                return x[(n, b, *self.source(at, k), i)] * w[(o, b, *k, i, j)]

            return summand

        result = transform_sums(sums, type_.shape, tile)
        extents = (*w.shape[1:-2], used)
        return repaired(self.name, type_.shape, result, lambda *at: at, extents, term, (x, w))

    def reference(self, x: Array, u: Array, w: Array) -> Array:
        return self._direct(*only_used(self.used, x, w))

    @property
    def direct(self) -> ConvBlocked:
        """The same, of x and w, by direct sums."""
        strides, dilations = self._steps
        return ConvBlocked(stride=strides, dilation=dilations, used=self.used)

    @property
    def may_be_slower(self) -> bool:
        """Whether a run has to ask."""
        return bool(self.cycles)

    def is_slower(self, result: TensorType) -> Expr:
        """Whether direct sums take less for a result of these sizes."""
        n, _, *sizes, _ = result.shape
        each, of_tile, of_weights = self.cycles
        outer, along = sizes[: -len(self.out)], sizes[-len(self.out) :]
        images = math.prod(outer, start=n)
        tiles = math.prod(count_tiles(tuple(along), self.out), start=images)
        return math.prod(along, start=images) * each < tiles * of_tile + of_weights


@op("conv_winograd_bytes", fuse=Fuse.ANCHOR)
class ConvWinogradBytes(TiledConv):
    """The same by a kernel of threes of bytes, from bytes that were widened.

    Takes the weights as they are: fewer bytes come from memory, and transforming them costs little
    beside the products. Sums wrap around. Results are exact where transformed pixels are surely
    i16, and results times the powers of 2 in `scale_of` surely i32: whoever makes this operator has
    to know.

    Shapes:
        x: i16[n, cb, *images, h + 2, w + 2, c];
        w: i8[ob, cb, *outer, 3, 3, c / 2, oc * 2], pairs of channels side by side
        -> i32[n, ob, *out_images, h, w, oc]
    """

    out: Out = (2, 2)
    stride: tuple[int, ...] = ()  # of the outer axes; the others have 1
    dilation: tuple[int, ...] = ()

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        axes = len(self.out)
        if not self._is_known(is_whole=True):
            raise self.reject(f"tiles of {self.out} results have no transform", x, w)
        if (x.dtype, w.dtype) != (DType.I16, DType.I8) or not (
            x.rank >= axes + 3 and x.rank + 1 == w.rank
        ):
            raise self.reject("needs a blocked i16 image and i8 weights", x, w)
        (n, cb, *sizes, c), (ob, wb, *kernel, groups, lanes) = x.shape, w.shape
        if any(not is_const(k, WHOLE_TAPS) for k in kernel[-axes:]):
            raise self.reject("the kernel has no transform", x, w)
        if differs(cb, wb) or differs(c, groups * EACH) or differs(lanes % EACH, 0):
            raise self.reject("image and weights differ in their channels", x, w)
        oc = canonical(lanes // EACH)
        return TensorType((n, ob, *self.sizes(sizes, kernel, x, w), oc), DType.I32)

    def compute(self, x: te.Tensor, w: te.Tensor) -> te.Tensor:
        type_ = self.infer(x.type, w.type)
        place = len(type_.shape) - 1 - len(self.out)
        outer, sizes = type_.shape[2:place], type_.shape[place:-1]
        tiles = count_tiles(sizes, self.out)
        tile = Tile.of_whole(self.out)
        pixels = transform_pixels(x, tiles, tile)
        channels = (w.shape[-LANES], index(EACH))
        sums = self.sums(pixels, transform_bytes(w, self.out), (*outer, *tiles), channels, type_)
        scaled = transform_sums(sums, type_.shape, tile)
        inverse, shift = inverse_of(scale_of(self.out))

        def result(*at: Expr) -> Expr:
            value = scaled[at] if inverse == 1 else scaled[at] * inverse
            return Binary(BinOp.SHR, value, const(shift, DType.I32))

        return te.compute(self.name, type_.shape, result, inputs=(scaled,))

    def reference(self, x: Array, w: Array) -> Array:
        pairs = in_rows(w.reshape(*w.shape[:-1], -1, EACH))
        return self._direct(x.astype(np.float64), pairs).astype(np.int32)
