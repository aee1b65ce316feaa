"""Convolution of planar float32 images of few channels on a matrix engine: see `planes.py`."""

from __future__ import annotations

from collections.abc import Callable

from dlc.core.types import DType
from dlc.graph.assume import differs, is_below
from dlc.graph.op import Array, Fuse, op
from dlc.graph.ops.attributes import as_sizes, constants, set_size
from dlc.graph.ops.conv import exact_conv
from dlc.graph.ops.conv_blocked import BlockedConv, to_blocked
from dlc.graph.ops.planes import (
    DEPTH,
    ROWS,
    SLACK,
    plane,
    repaired,
    unpack_tiles,
    weight,
)
from dlc.graph.ops.planes_conv import Grid
from dlc.te import tensor as te
from dlc.te.expr import Expr, minimum
from dlc.te.simplify import canonical
from dlc.te.types import TensorType, const_size


def reach_of(width: int) -> int:
    """Pixels that a row holds of a line of the kernel: a power of two."""
    return 1 << (width - 1).bit_length()


@op("conv_planar_planes", fuse=Fuse.ANCHOR)
class ConvPlanarPlanes(BlockedConv):
    """Convolution from planar to blocked channels by products of bf16 planes.

    Few channels would leave most of a row of 32 empty. A row holds what a result reads of one line
    of the image: for each channel as many pixels side by side as the kernel is wide, or a power of
    two, whose weights are zeros. The image has to be wide enough for these. What is left of the
    kernel are its lines, so that the grid has no columns that nobody reads.

    Shapes:
        x: f32[n, c, *spatial]; w: bf16[ob, kb, *lines, 1, planes, 16, 16, 2]
        -> f32[n, ob, *out, 16]
    """

    blocks: Expr  # ob; the weights may hold one more
    width: int  # pixels of a line of the kernel
    stride: tuple[int, ...] = (1, 1)
    dilation: tuple[int, ...] = (1, 1)
    slack: int = SLACK
    planes: int = 0  # of the image; 0: as many as the weights have
    is_finite: bool = False  # whether every element of image and weights surely is

    def __post_init__(self) -> None:
        set_size(self, "blocks")

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        if x.dtype is not DType.F32 or w.dtype is not DType.BF16 or w.rank != x.rank + 4:
            raise self.reject("needs a planar f32 image and packed bf16 weights", x, w)
        (n, c, *sizes), (blocks, depth, *kernel) = x.shape, w.shape[:-4]
        if self.width < 1 or differs(kernel[-1], 1):
            raise self.reject("the weights hold no lines of a kernel", x, w)
        reach = reach_of(self.width)
        if is_below(depth * DEPTH, c * reach) or is_below(blocks, self.blocks):
            raise self.reject("the channels do not fit", x, w)
        out = self.spatial(x, w, sizes, [*kernel[:-1], as_sizes((self.width,))[0]])
        needed = (out[-1] - 1) * self.stride[-1] + (reach - 1) * self.dilation[-1] + 1
        if is_below(sizes[-1], needed):
            raise self.reject(f"the image is not wide enough for {reach} pixels", x, w)
        return TensorType((n, self.blocks, *out, ROWS), DType.F32)

    def compute(self, x: te.Tensor, w: te.Tensor) -> te.Tensor:
        type_ = self.infer(x.type, w.type)
        c = x.shape[1]
        lines = w.shape[2:-4]
        grid = Grid(type_.shape[2:-1], [const_size(k) for k in lines], self.stride, self.dilation)
        rows = self._rows(x, w, grid)
        sums = grid.sums(rows, w, self.slack)
        reach = reach_of(self.width)

        def term(image: Expr, block: Expr, *rest: Expr) -> Callable[..., Expr]:
            *position, j = rest

            def summand(channel: Expr, *k: Expr) -> Expr:
                d = channel * reach + k[-1]
                inside = d % DEPTH
                line = (*k[:-1], as_sizes((0,))[0])
                of = weight(w, block, j, d // DEPTH, line, inside // 2, inside % 2)
                return x[(image, channel, *self.source(position, k))] * of

            return summand

        extents = as_sizes((c, *lines[:-1], self.width))
        return repaired(
            self.name, type_.shape, sums, grid.at, extents, term, (x, w), is_finite=self.is_finite
        )

    def _rows(self, x: te.Tensor, w: te.Tensor, grid: Grid) -> te.Tensor:
        """The planes of the image: [n, kb, *phases, rows, planes, 32]."""
        n, c, *sizes = x.shape
        count = self.planes or const_size(w.shape[-4])
        reach = reach_of(self.width)

        def element(*at: Expr) -> Expr:
            image, b, *phase, row, p, d = at
            *place, column = grid.place(row)
            if not place:  # an image of one line, whose rows have no next line behind it
                column = minimum(column, grid.widths[0] - 1)
            steps = zip(place, phase, grid.stride, sizes, strict=False)
            # Lines behind the image feed only sums that nobody reads.
            pixel = [minimum(g * s + f, size - 1) for g, f, s, size in steps]
            depth = b * DEPTH + d
            channel = minimum(depth // reach, c - 1)  # a channel too many meets zeros
            step = depth % reach * self.dilation[-1]
            return plane(x[(image, channel, *pixel, column * self.stride[-1] + step)], p, count)

        height = canonical(grid.height + self.slack + grid.reach)
        shape = (n, w.shape[1], *grid.phases, height, count, DEPTH)
        return te.compute("rows", shape, element, inputs=(x,))

    def reference(self, x: Array, w: Array) -> Array:
        (blocks,) = constants((self.blocks,))
        dense = unpack_tiles(w)[..., 0, : blocks * ROWS]
        reach, channels = reach_of(self.width), x.shape[1]
        dense = dense[: channels * reach].reshape(channels, reach, *dense.shape[1:])
        dense = dense[:, : self.width]
        rank = dense.ndim
        order = (rank - 1, 0, *range(2, rank - 1), 1)
        planar = exact_conv(x, dense.transpose(order), self.stride, self.no_pads, self.dilation, 1)
        return to_blocked(planar, ROWS)
