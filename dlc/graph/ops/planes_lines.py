"""Rows of an image of an open size, for products of planes, or bytes: see `planes.py`.

Where the sizes of an image are constants, all its pixels make one sequence of rows (`Grid`), and a
tile goes on around the end of a line. Where they are known only at run time, each line has rows of
its own, and its last tiles reach behind it.
"""

from __future__ import annotations

from collections.abc import Sequence

from dlc.graph.ops.planes import ROWS, depth_of, plane, tile_sums
from dlc.te import tensor as te
from dlc.te.expr import Const, Expr, ceil_div, minimum
from dlc.te.simplify import canonical
from dlc.te.types import Shape

PAIR = 2 * ROWS


class Lines:
    """How pixels and kernel positions map to lines of rows."""

    def __init__(
        self, out: Shape, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
    ) -> None:
        self.stride, self.dilation = stride, dilation
        self.phases = [1 if k == 1 else s for k, s in zip(kernel, stride, strict=True)]
        steps = zip(kernel, stride, dilation, strict=True)
        self.reach = [(k - 1) * d // s for k, s, d in steps]
        *self.lines, width = out
        tile = ROWS if isinstance(width, Const) else PAIR
        self.width = canonical(ceil_div(width, tile) * tile)

    def rows(self, x: te.Tensor, count: int) -> te.Tensor:
        """The planes of the image: [n, cb / 2, *phases, *lines, rows, planes, 32].

        Of bytes, a row has the channels of four blocks.
        """
        n, cb, *sizes, _ = x.shape
        depth = depth_of(x.dtype)
        blocks = depth // ROWS
        rank = len(sizes)

        def element(*at: Expr) -> Expr:
            image, b, *rest, p, c = at
            steps = zip(rest[rank:], rest[:rank], self.stride, sizes, strict=True)
            # What is behind the image feeds only sums that nobody reads.
            pixel = [minimum(g * s + f, size - 1) for g, f, s, size in steps]
            block = minimum(b * blocks + c // ROWS, cb - 1)  # blocks too many meet zeros
            return plane(x[(image, block, *pixel, c % ROWS)], p, count)

        sizes_here = zip([*self.lines, self.width], self.reach, strict=True)
        spatial = [canonical(size + reach) for size, reach in sizes_here]
        shape = (n, canonical(ceil_div(cb, blocks)), *self.phases, *spatial, count, depth)
        return te.compute("rows", shape, element, inputs=(x,))

    def sums(self, rows: te.Tensor, w: te.Tensor) -> te.Tensor:
        """The sums of products of whole tiles of rows, for each line of each image."""

        def row(out: Sequence[Expr], b: Expr, k: Sequence[Expr]) -> tuple[Expr, ...]:
            image, *place = out
            steps = list(zip(place, k, self.stride, self.dilation, self.phases, strict=True))
            phase = [j * d % p for _, j, _, d, p in steps]
            pixel = [f + (j * d // s if p > 1 or s == 1 else 0) for f, j, s, d, p in steps]
            return (image, b, *phase, *pixel)

        return tile_sums(rows, w, (*rows.shape[:1], *self.lines), self.width, row)

    def at(self, image: Expr, block: Expr, *rest: Expr) -> tuple[Expr, ...]:
        """Where a result stands in the sums."""
        *line, pixel, lane = rest
        return (image, *line, block, pixel, lane)
