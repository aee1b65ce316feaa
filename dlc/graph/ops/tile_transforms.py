"""The transforms of Winograd's convolutions as tensors: of pixels, of weights, and of sums.

Each runs along columns first, then along rows, by the matrices in `filters`.
"""

from __future__ import annotations

from collections.abc import Sequence

from dlc.core.types import DType
from dlc.graph.op import Array
from dlc.graph.ops.filters import LANES, Filter, Out, Tile
from dlc.graph.ops.window import out_size
from dlc.te import tensor as te
from dlc.te.expr import Expr, cast, const, index, minimum, select
from dlc.te.simplify import surely_equal
from dlc.te.types import Shape


def transform_pixels(x: te.Tensor, tiles: Shape, tile: Tile) -> te.Tensor:
    """Tiles of pixels, transformed: [n, *positions, *others, *tiles, c].

    The others are blocks of channels, images of a volume, and parts of a kernel.
    """
    axes, parts, taps = len(tile.out), tile.parts, tile.taps
    n, *others, c = x.shape
    others, sizes = [*others[:-axes], *map(index, parts)], others[-axes:]
    *above, wide = tile.positions
    of_columns, of_line = (each.pixels for each in _first_and_last(tile))

    def at(axis: int, place: Sequence[Expr], step: Expr) -> Expr:
        """Where a tile of a part of the kernel reads along an axis."""
        size, each = sizes[axis], tile.out[axis]
        stride, kernel = tile.strides[axis], tile.kernel[axis]
        whole = kernel % taps[axis] == 0
        position = place[axis - axes] * (each * stride) + step
        if parts:
            position = position + place[axis - 2 * axes] * taps[axis]
        if whole and surely_equal(tiles[axis] * each, out_size(size, kernel, stride, 1)):
            return position
        within = minimum(position, size - 1)  # only results that nobody needs read further
        if parts or axes == 1 or not whole:
            return within  # nobody needs any result of some tiles, and zeros meet what is behind
        return select(step < const(taps[axis], DType.INDEX), position, within)

    def pixel(image: Expr, place: Sequence[Expr], steps: Sequence[Expr], i: Expr) -> Expr:
        """That of a tile, some steps from its first one."""
        other = place[: len(place) - axes - len(parts)]
        return x[(image, *other, *(at(axis, place, step) for axis, step in enumerate(steps)), i)]

    def half(image: Expr, a: Expr, *rest: Expr) -> Expr:
        *place, dz, i = rest
        line = [pixel(image, place, (index(dy), dz), i) for dy in range(above[0])]
        return _chosen(a, of_columns(line))

    source = x
    if above:
        shape = (n, index(above[0]), *others, *tiles, index(wide), c)
        source = te.compute("pixel_columns", shape, half, inputs=(x,))

    def whole(image: Expr, *rest: Expr) -> Expr:
        before, (b, *place, i) = rest[: len(above)], rest[len(above) :]
        line: list[Expr]
        if above:
            line = [source[(image, *before, *place, index(d), i)] for d in range(wide)]
        else:
            line = [pixel(image, place, (index(d),), i) for d in range(wide)]
        return _chosen(b, of_line(line))

    shape = (n, *map(index, tile.positions), *others, *tiles, c)
    return te.compute("pixels", shape, whole, inputs=(source,))


def transform_bytes(w: te.Tensor, out: Out) -> te.Tensor:
    """Weights of bytes, transformed: i16[*positions, ob, cb, *outer, c / 2, lanes]."""
    found, place = w, len(w.shape) - LANES - len(out)
    for done, each in enumerate(Tile.of_whole(out).filters):
        name = "weights" if done + 1 == len(out) else "weight_columns"
        found = _along_axis(found, done, place, each.weights, name)
    return found


def _along_axis(w: te.Tensor, done: int, place: int, matrix: Array, name: str) -> te.Tensor:
    """Weights along the next axis of a kernel, of which `done` are positions in front already.

    `place` is that of the next one behind those.
    """
    before, others, behind = w.shape[:done], w.shape[done:][:place], w.shape[done + place + 1 :]

    def element(*at: Expr) -> Expr:
        position, rest = at[done], at[done + 1 :]
        line = [
            cast(DType.I16, w[(*at[:done], *rest[:place], index(k), *rest[place:])])
            for k in range(matrix.shape[1])
        ]
        return _chosen(position, [_combined(row, line) for row in matrix.tolist()])

    shape = (*before, index(len(matrix)), *others, *behind)
    return te.compute(name, shape, element, inputs=(w,))


def _combined(row: Sequence[int], line: Sequence[Expr]) -> Expr:
    """The sum of numbers, each of them some times."""
    first, *others = (x * n if n != 1 else x for n, x in zip(row, line, strict=True) if n)
    for x in others:
        first = first + x
    return first


def transform_sums(sums: te.Tensor, shape: Shape, tile: Tile) -> te.Tensor:
    """The sums of products, transformed back: [n, ob, *outer, h, w, oc]."""
    n, *rest = sums.shape
    out = tile.out
    *others, oc = rest[len(out) :]
    *above, wide = tile.positions
    of_columns, of_line = (each.sums for each in _first_and_last(tile))

    def half(image: Expr, p: Expr, *rest: Expr) -> Expr:
        *place, b, j = rest
        return _chosen(
            p, of_columns([sums[(image, index(a), b, *place, j)] for a in range(above[0])])
        )

    source = sums
    if above:
        narrow = (n, index(out[0]), *others, index(wide), oc)
        source = te.compute("sum_columns", narrow, half, inputs=(sums,))

    def whole(image: Expr, *rest: Expr) -> Expr:
        *place, j = rest
        place, at = place[: -len(out)], place[-len(out) :]
        of_tile = [i // each for i, each in zip(at, out, strict=True)]
        if above:
            row = (image, at[0] % out[0], *place, *of_tile)
            line = [source[(*row, index(b), j)] for b in range(wide)]
        else:
            line = [source[(image, index(b), *place, *of_tile, j)] for b in range(wide)]
        return _chosen(at[-1] % out[-1], of_line(line))

    return te.compute("transformed", shape, whole, inputs=(source,))


def _first_and_last(tile: Tile) -> tuple[Filter, Filter]:
    """Those along columns and along lines; the same where a tile has lines alone."""
    return tile.filters[0], tile.filters[-1]


def _chosen(position: Expr, values: Sequence[Expr]) -> Expr:
    """The value at a position."""
    found = values[-1]
    for n in range(len(values) - 1, 0, -1):
        found = select(position < const(n, DType.INDEX), values[n - 1], found)
    return found
