"""Convolution of blocked float32 images on a matrix engine, and its rows: see `planes.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from dlc.core.types import DType
from dlc.graph.assume import differs, is_below
from dlc.graph.op import Array, Fuse, op
from dlc.graph.ops.attributes import as_sizes, constants, set_size
from dlc.graph.ops.conv import exact_conv
from dlc.graph.ops.conv_blocked import BlockedConv, to_blocked, to_planar
from dlc.graph.ops.planes import (
    ROWS,
    SLACK,
    depth_of,
    plane,
    repaired,
    tile_sums,
    unpack_tiles,
    weight,
)
from dlc.graph.ops.planes_lines import Lines
from dlc.te import tensor as te
from dlc.te.expr import Const, Expr, ceil_div, index, minimum, select
from dlc.te.simplify import canonical
from dlc.te.types import Shape, TensorType, const_size


@op("conv_planes", fuse=Fuse.ANCHOR)
class ConvPlanes(BlockedConv):
    """Convolution from blocked to blocked channels by products of bf16 planes.

    The image is kept as rows of 32 channels, one for each pixel, in the order of a *grid* as wide
    as what one row of results reads. A shift of the kernel is then a shift of rows, so that 16
    results side by side, or around the end of a line, read 16 rows side by side. A strided
    convolution has one grid for each phase of the stride. An image of an open size has lines
    instead (`Lines`).

    Where cb is odd, the weights of the block behind the last are zeros.

    Shapes:
        x: f32[n, cb, *spatial, 16]; w: bf16[ob, cb / 2, *kernel, planes, 16, 16, 2]
        -> f32[n, ob, *out, 16]
    """

    blocks: Expr  # ob; the weights may hold one more
    stride: tuple[int, ...] = (1, 1)
    dilation: tuple[int, ...] = (1, 1)
    slack: int = SLACK
    planes: int = 0  # of the image; 0: as many as the weights have
    is_finite: bool = False  # whether every element of image and weights surely is

    def __post_init__(self) -> None:
        set_size(self, "blocks")

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        if x.dtype is not DType.F32 or w.dtype is not DType.BF16 or w.rank != x.rank + 3:
            raise self.reject("needs a blocked f32 image and packed bf16 weights", x, w)
        (n, cb, *sizes, c), (blocks, depth, *kernel) = x.shape, w.shape[:-4]
        if differs(c, ROWS) or differs((cb + 1) // 2, depth) or is_below(blocks, self.blocks):
            raise self.reject("the channel blocks do not fit", x, w)
        out = self.spatial(x, w, sizes, kernel)
        return TensorType((n, self.blocks, *out, ROWS), DType.F32)

    def compute(self, x: te.Tensor, w: te.Tensor) -> te.Tensor:
        type_ = self.infer(x.type, w.type)
        cb = x.shape[1]
        kernel = w.shape[2:-4]
        window = ([const_size(k) for k in kernel], self.stride, self.dilation)
        planes = self.planes or const_size(w.shape[-4])
        image: Grid | Lines
        if is_open(type_.shape[2:-1]):
            image = Lines(type_.shape[2:-1], *window)
            sums = image.sums(image.rows(x, planes), w)
        else:
            image = Grid(type_.shape[2:-1], *window)
            sums = image.sums(image.rows(x, planes, self.slack), w, self.slack)

        def term(n: Expr, block: Expr, *rest: Expr) -> Callable[..., Expr]:
            *position, j = rest

            def summand(b: Expr, *r: Expr) -> Expr:
                *k, side, pair, half = r
                here = b * 2 + side
                pixel = x[(n, here, *self.source(position, k), pair * 2 + half)]
                product = pixel * weight(w, block, j, b, k, side * 8 + pair, half)
                return select(here < cb, product, 0.0)

            return summand

        extents = as_sizes((w.shape[1], *kernel, 2, 8, 2))
        return repaired(
            self.name, type_.shape, sums, image.at, extents, term, (x, w), is_finite=self.is_finite
        )

    def reference(self, x: Array, w: Array) -> Array:
        (blocks,) = constants((self.blocks,))
        dense = unpack_tiles(w)[: x.shape[1] * ROWS, ..., : blocks * ROWS]
        order = (dense.ndim - 1, 0, *range(1, dense.ndim - 1))
        planar = exact_conv(
            to_planar(x), dense.transpose(order), self.stride, self.no_pads, self.dilation, 1
        )
        return to_blocked(planar, ROWS)


def is_open(sizes: Sequence[Expr]) -> bool:
    """Whether an image has a size that is known at run time only."""
    return not all(isinstance(size, Const) for size in sizes)


class Grid:
    """How pixels and kernel positions map to rows."""

    def __init__(
        self, out: Shape, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
    ) -> None:
        self.stride, self.dilation = stride, dilation
        self.phases = [1 if k == 1 else s for k, s in zip(kernel, stride, strict=True)]
        steps = zip(kernel, stride, dilation, strict=True)
        last = [(k - 1) * d // s for k, s, d in steps]
        self.widths = [canonical(n + m) for n, m in zip(out, last, strict=True)]
        self.height = canonical(self.flat([out[0], *(n - 1 for n in out[1:])]))
        self.reach = canonical(self.flat(last))

    @property
    def line(self) -> int:
        """Rows from one line of the image to the next."""
        return prod(const_size(width) for width in self.widths[1:])

    def flat(self, position: Sequence[Expr | int]) -> Expr:
        """The row of a grid position."""
        total: Expr = index(position[0])
        for part, width in zip(position[1:], self.widths[1:], strict=True):
            total = total * width + part
        return total

    def place(self, row: Expr) -> list[Expr]:
        """The grid position of a row."""
        found: list[Expr] = []
        for width in reversed(self.widths[1:]):
            found.append(row % width)
            row = row // width
        return [row, *reversed(found)]

    def phase(self, k: Sequence[Expr]) -> tuple[Expr, ...]:
        """The grid that a position of the kernel reads."""
        steps = zip(k, self.phases, self.dilation, strict=True)
        return tuple(j * d % p for j, p, d in steps)

    def shift(self, k: Sequence[Expr]) -> Expr:
        """How many rows further a position of the kernel reads."""
        steps = zip(k, self.stride, self.dilation, self.phases, strict=True)
        return self.flat([j * d // s if p > 1 or s == 1 else j * 0 for j, s, d, p in steps])

    def rows(self, x: te.Tensor, count: int, slack: int) -> te.Tensor:
        """The planes of the image: [n, cb / 2, *phases, rows, planes, 32].

        Of bytes, a row has the channels of four blocks.
        """
        n, cb, *sizes, _ = x.shape
        depth = depth_of(x.dtype)
        blocks = depth // ROWS

        def element(*at: Expr) -> Expr:
            image, b, *phase, row, p, c = at
            steps = zip(self.place(row), phase, self.stride, sizes, strict=True)
            # Rows and columns behind the image feed only sums that nobody reads.
            pixel = [minimum(g * s + f, size - 1) for g, f, s, size in steps]
            block = minimum(b * blocks + c // ROWS, cb - 1)  # blocks too many meet zeros
            return plane(x[(image, block, *pixel, c % ROWS)], p, count)

        height = canonical(self.height + slack + self.reach)
        shape = (n, canonical(ceil_div(cb, blocks)), *self.phases, height, count, depth)
        return te.compute("rows", shape, element, inputs=(x,))

    def sums(self, rows: te.Tensor, w: te.Tensor, slack: int) -> te.Tensor:
        """The sums of products of all rows of a grid and `slack` more, for each image."""

        def row(place: Sequence[Expr], b: Expr, k: Sequence[Expr]) -> tuple[Expr, ...]:
            image, f = place
            return (image, b, *self.phase(k), f + self.shift(k))

        return tile_sums(rows, w, rows.shape[:1], canonical(self.height + slack), row)

    def at(self, image: Expr, block: Expr, *rest: Expr) -> tuple[Expr, ...]:
        """Where a result stands in the sums."""
        *position, lane = rest
        return (image, block, self.flat(position), lane)
