"""Products of bytes with constant weights on a matrix engine that multiplies bytes.

Rows are those of planes (`planes.py`), of 64 bytes in place of 32 bf16: of an image, the channels
of four blocks for each pixel. Sums are whole numbers, so they are exact.
"""

from __future__ import annotations

from math import prod

import numpy as np

from dlc.core.types import DType
from dlc.graph.assume import differs, is_below
from dlc.graph.op import Array, Fuse, Op, op
from dlc.graph.ops.attributes import as_sizes, constants, set_size
from dlc.graph.ops.conv import exact_conv
from dlc.graph.ops.conv_blocked import BlockedConv, ConvBlocked, to_blocked
from dlc.graph.ops.matmul import MatMul
from dlc.graph.ops.planes import ROWS, SLACK, depth_of, tile_sums
from dlc.graph.ops.planes_conv import Grid, is_open
from dlc.graph.ops.planes_lines import Lines
from dlc.graph.ops.planes_matmul import by_blocks, rows_in_tiles
from dlc.graph.ops.planes_planar import reach_of
from dlc.te import tensor as te
from dlc.te.expr import Expr, ceil_div, minimum
from dlc.te.simplify import canonical, surely_divides
from dlc.te.types import TensorType, const_size

EACH = 4  # factors of a word
BYTES_DEPTH = depth_of(DType.U8)
REACH = 8  # bytes side by side in rows of planar images, at least: one load and one store


def pack_byte_tiles(w: Array) -> Array:
    """Constant weights, whole numbers from -128 to 127, as their tiles lie in memory.

    Shapes:
        w: [depth, *k, columns] -> i8[columns / 16, depth / 64, *k, 1, 16, 16, 4]

    The number of blocks of 16 columns is even: what fills blocks is zeros.
    """
    depth, *kernel, columns = w.shape
    fill = [(0, -depth % BYTES_DEPTH), *[(0, 0)] * len(kernel), (0, -columns % (2 * ROWS))]
    filled = np.pad(w.astype(np.int8), fill)
    split = filled.reshape(-1, ROWS, EACH, *kernel, filled.shape[-1] // ROWS, ROWS)
    rank = len(kernel)
    tiles = split.transpose(rank + 3, 0, *range(3, 3 + rank), 1, rank + 4, 2)
    return np.ascontiguousarray(np.expand_dims(tiles, 2 + rank))


def unpack_byte_tiles(w: Array) -> Array:
    """What `pack_byte_tiles` packed, in float64.

    Shapes:
        w: [cb, kb, *k, 1, 16, 16, 4] -> [kb * 64, *k, cb * 16]
    """
    rank = w.ndim - 6
    moved = w.astype(np.float64).squeeze(2 + rank)
    order = (1, rank + 2, rank + 4, *range(2, 2 + rank), 0, rank + 3)
    cb, kb, *kernel = w.shape[: 2 + rank]
    return np.asarray(moved.transpose(order).reshape(kb * BYTES_DEPTH, *kernel, cb * ROWS))


def _are_tiles(w: TensorType, rank: int) -> bool:
    """Whether an operand is tiles of signed bytes, of so many dimensions."""
    wanted = (1, ROWS, ROWS, EACH)
    fits = w.dtype is DType.I8 and w.rank == rank
    return fits and not any(differs(n, size) for n, size in zip(w.shape[-4:], wanted, strict=True))


@op("conv_byte_tiles", fuse=Fuse.ANCHOR)
class ConvByteTiles(BlockedConv):
    """Convolution from blocked to blocked channels by products of tiles of bytes.

    The rows of the image are those of `ConvPlanes`. Weights of channel blocks that only fill a row
    are zeros.

    Shapes:
        x: u8[n, cb, *spatial, 16]; w: i8[ob, cb / 4, *kernel, 1, 16, 16, 4]
        -> i32[n, ob, *out, 16]
    """

    blocks: Expr  # ob; the weights may hold one more
    stride: tuple[int, ...] = (1, 1)
    dilation: tuple[int, ...] = (1, 1)
    slack: int = SLACK

    def __post_init__(self) -> None:
        set_size(self, "blocks")

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        if x.dtype is not DType.U8 or not _are_tiles(w, x.rank + 3):
            raise self.reject("needs a blocked u8 image and tiles of i8 weights", x, w)
        (n, cb, *sizes, c), (blocks, depth, *kernel) = x.shape, w.shape[:-4]
        if differs(c, ROWS) or differs(ceil_div(cb, EACH), depth) or is_below(blocks, self.blocks):
            raise self.reject("the channel blocks do not fit", x, w)
        return TensorType((n, self.blocks, *self.spatial(x, w, sizes, kernel), ROWS), DType.I32)

    def compute(self, x: te.Tensor, w: te.Tensor) -> te.Tensor:
        type_ = self.infer(x.type, w.type)
        out = type_.shape[2:-1]
        window = ([const_size(k) for k in w.shape[2:-4]], self.stride, self.dilation)
        image: Grid | Lines
        if is_open(out):
            image = Lines(out, *window)
            sums = image.sums(image.rows(x, 1), w)
        else:
            image = Grid(out, *window)
            sums = image.sums(image.rows(x, 1, self.slack), w, self.slack)
        return te.compute(self.name, type_.shape, lambda *at: sums[image.at(*at)], inputs=(sums,))

    def reference(self, x: Array, w: Array) -> Array:
        (blocks,) = constants((self.blocks,))
        dense = unpack_byte_tiles(w)[: x.shape[1] * ROWS, ..., : blocks * ROWS]
        split = dense.reshape(x.shape[1], ROWS, *dense.shape[1:-1], blocks, ROWS)
        rank = dense.ndim - 2
        weights = split.transpose(rank + 2, 0, *range(2, 2 + rank), 1, rank + 3)
        plain = ConvBlocked(stride=self.stride, dilation=self.dilation)
        return plain.reference(x.astype(np.float64), weights).astype(np.int32)


def byte_reach(width: int) -> int:
    """Pixels that a row of bytes holds of a line of the kernel: a power of two."""
    return max(REACH, reach_of(width))


@op("conv_planar_byte_tiles", fuse=Fuse.ANCHOR)
class ConvPlanarByteTiles(BlockedConv):
    """Convolution from planar to blocked channels by products of tiles of bytes.

    A row holds what a result reads of as many lines as the stride passes at a step: of each line
    and channel some pixels side by side, the next power of two from the width of the kernel on, 8
    at least. Those behind the kernel meet weights of 0. So two results one above the other share
    all rows but one, and a kernel of 7 lines and a stride of 2 has four steps. The image has to be
    wide enough for these pixels: the last `spare` pixels of a line are there for that alone.

    Shapes:
        x: u8[n, c, *spatial]; w: i8[ob, kb, *steps, 1, 1, 16, 16, 4] -> i32[n, ob, *out, 16]
    """

    blocks: Expr  # ob; the weights may hold one more
    kernel: tuple[int, ...]
    stride: tuple[int, ...] = (1, 1)
    spare: int = 0
    slack: int = SLACK

    def __post_init__(self) -> None:
        set_size(self, "blocks")

    @property
    def dilation(self) -> tuple[int, ...]:  # type: ignore[override]  # there is none
        return (1,) * len(self.stride)

    @property
    def phases(self) -> tuple[int, ...]:
        """Lines of a row, for each dimension but the last."""
        return tuple(min(k, s) for k, s in zip(self.kernel[:-1], self.stride[:-1], strict=True))

    @property
    def steps(self) -> tuple[int, ...]:
        """Rows that a result reads, for each dimension."""
        pairs = zip(self.kernel[:-1], self.phases, strict=True)
        return (*(-(-k // p) for k, p in pairs), 1)

    @property
    def on_rows(self) -> ConvByteTiles:
        """What it is once its rows are there."""
        return ConvByteTiles(blocks=self.blocks, stride=self.dilation, dilation=self.dilation)

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        if x.dtype is not DType.U8 or not _are_tiles(w, x.rank + 4):
            raise self.reject("needs a planar u8 image and tiles of i8 weights", x, w)
        (n, c, *sizes), (blocks, depth, *steps) = x.shape, w.shape[:-4]
        reach = byte_reach(self.kernel[-1])
        if any(differs(a, b) for a, b in zip(steps, self.steps, strict=True)):
            raise self.reject(f"the weights have other steps than {self.steps}", x, w)
        if is_below(depth * BYTES_DEPTH, c * prod(self.phases) * reach) or is_below(
            blocks, self.blocks
        ):
            raise self.reject("the channels do not fit", x, w)
        read = [*sizes[:-1], canonical(sizes[-1] - self.spare)]
        out = self.spatial(x, w, read, as_sizes(self.kernel))
        if is_below(sizes[-1], (out[-1] - 1) * self.stride[-1] + reach):
            raise self.reject(f"the image is not wide enough for {reach} pixels", x, w)
        return TensorType((n, self.blocks, *out, ROWS), DType.I32)

    def compute(self, x: te.Tensor, w: te.Tensor) -> te.Tensor:
        type_ = self.infer(x.type, w.type)
        grid = Grid(type_.shape[2:-1], self.steps, self.dilation, self.dilation)
        sums = grid.sums(self._rows(x, w, grid), w, self.slack)
        return te.compute(self.name, type_.shape, lambda *at: sums[grid.at(*at)], inputs=(sums,))

    def _rows(self, x: te.Tensor, w: te.Tensor, grid: Grid) -> te.Tensor:
        """The rows of the image: [n, kb, *ones, rows, 1, 64]."""
        n, c, *sizes = x.shape
        reach = byte_reach(self.kernel[-1])

        def element(*at: Expr) -> Expr:
            image, b, *_, row, _, d = at
            depth = b * BYTES_DEPTH + d
            # Behind the last pixels of a row the first ones come again, and meet zeros.
            part = depth // reach
            *place, column = grid.place(row)
            if not place:  # an image of one line, whose rows have no next line behind it
                column = minimum(column, grid.widths[0] - 1)
            line, pixel = part // c, []
            lines = list(zip(place, self.phases, self.stride, sizes, strict=False))
            for position, count, step, size in reversed(lines):
                pixel.append(minimum(position * step + line % count, size - 1))
                line = line // count
            at_column = column * self.stride[-1] + depth % reach
            return x[(image, part % c, *reversed(pixel), at_column)]

        height = canonical(grid.height + self.slack + grid.reach)
        shape = (n, w.shape[1], *grid.phases, height, 1, BYTES_DEPTH)
        return te.compute("rows", shape, element, inputs=(x,))

    def pack(self, w: Array) -> Array:
        """The weights in the order of rows: [c, *kernel, columns] -> [depth, *steps, columns]."""
        c, *_, columns = w.shape
        whole = [s * p for s, p in zip(self.steps, self.phases, strict=False)]
        whole.append(byte_reach(self.kernel[-1]))
        sizes = zip(whole, self.kernel, strict=True)
        filled = np.pad(w, [(0, 0), *((0, a - b) for a, b in sizes), (0, 0)])
        lines = [n for pair in zip(self.steps, self.phases, strict=False) for n in pair]
        split = filled.reshape(c, *lines, whole[-1], columns)
        rank, last = len(self.phases), split.ndim - 1
        of_steps, of_phases = range(1, 2 * rank, 2), range(2, 2 * rank + 1, 2)
        moved = split.transpose(*of_phases, 0, last - 1, *of_steps, last)
        return moved.reshape(prod(self.phases) * c * whole[-1], *self.steps, columns)

    def unpack(self, w: Array, c: int) -> Array:
        """What `pack` packed, of c channels: [depth, *steps, columns] -> [columns, c, *kernel]."""
        rank, reach, columns = len(self.phases), byte_reach(self.kernel[-1]), w.shape[-1]
        split = w.reshape(*self.phases, c, reach, *self.steps[:-1], columns)
        lines = [axis for n in range(rank) for axis in (rank + 2 + n, n)]  # a step, then a phase
        moved = split.transpose(-1, rank, *lines, rank + 1)
        whole = [s * p for s, p in zip(self.steps, self.phases, strict=False)]
        kernel = moved.reshape(columns, c, *whole, reach)
        return kernel[(slice(None), slice(None), *(slice(0, k) for k in self.kernel))]

    def reference(self, x: Array, w: Array) -> Array:
        (blocks,) = constants((self.blocks,))
        c = x.shape[1]
        depth = prod(self.phases) * c * byte_reach(self.kernel[-1])
        kernel = self.unpack(unpack_byte_tiles(w)[:depth, ..., : blocks * ROWS], c)
        read = x[..., : x.shape[-1] - self.spare]
        planar = exact_conv(
            read.astype(np.float64), kernel, self.stride, self.no_pads, self.dilation, 1
        )
        return to_blocked(planar, ROWS).astype(np.int32)


@op("matmul_byte_tiles", fuse=Fuse.ANCHOR)
class MatMulByteTiles(Op):
    """The product of rows of bytes with a packed matrix by products of tiles of bytes.

    `slack` is how many rows of sums there are behind those of a constant number of rows.

    Shapes:
        x: u8[..., m, k]; w: i8[n / 16, k / 64, 1, 16, 16, 4] -> i32[..., m, n]
        k is a multiple of 16
    """

    n: Expr
    slack: int = SLACK

    def __post_init__(self) -> None:
        set_size(self, "n")

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        if x.dtype is not DType.U8 or x.rank < 2 or not _are_tiles(w, 6):
            raise self.reject("needs u8 rows and tiles of i8 columns", x, w)
        k = x.shape[-1]
        if not surely_divides(ROWS, k) or differs(ceil_div(k, BYTES_DEPTH), w.shape[1]):
            raise self.reject(f"the inner sizes differ, or are no multiples of {ROWS}", x, w)
        if is_below(w.shape[0] * ROWS, self.n):
            raise self.reject(f"the tiles hold less than {self.n} columns", x, w)
        return TensorType((*x.shape[:-1], self.n), DType.I32)

    def compute(self, x: te.Tensor, w: te.Tensor) -> te.Tensor:
        type_ = self.infer(x.type, w.type)
        rows, height, row_of = rows_in_tiles(x, 1, self.slack)
        sums = tile_sums(rows, w, x.shape[:-2], height, row_of)
        return te.compute(self.name, type_.shape, lambda *at: sums[by_blocks(*at)], inputs=(sums,))

    def reference(self, x: Array, w: Array) -> Array:
        (n,) = constants((self.n,))
        dense = unpack_byte_tiles(w)[: x.shape[-1], :n]
        return MatMul().reference(x.astype(np.float64), dense).astype(np.int32)
