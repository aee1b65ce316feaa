"""Float32 sums of products on a matrix engine that multiplies bf16: what is split, and into what.

A float32 is the sum of three bf16 *planes*, each the rounding of what the ones before leave over:
x = h + m + l. Of the nine products of two such sums, six reach as far as float32 itself does; three
of two planes each, or one of one, are the cheaper precisions. An infinite or NaN operand has no
such planes, nor has one that rounds to infinity; a sum that it reaches is not finite, and is then
computed once more from the operands themselves.

Source: Henry, Tang, Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For
Higher-Precision Computations", arXiv 1904.06376, sections 2 and 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from dlc.core.types import DType
from dlc.graph.arrays import NUMPY_DTYPES, for_each
from dlc.graph.op import Array
from dlc.te import tensor as te
from dlc.te.expr import Binary, BinOp, Expr, ExprLike, cast, ceil_div, const, select
from dlc.te.simplify import canonical
from dlc.te.types import Shape, const_size

ROWS = 16  # rows of a tile, and columns
DEPTH = 32  # summands of one instruction: pairs of bf16 in 16 rows
ROW_BYTES = 2 * DEPTH  # of a tile
_SLAB = 1 << 17  # float32s packed at a time: with what becomes of them, they stay in a cache
SLACK = 2 * ROWS  # rows behind the last that a result needs: whole tiles are computed

_TILES_RANK = 7  # of tiles that all rows share
_PAIRS: dict[int, tuple[tuple[int, int], ...]] = {
    1: ((0, 0),),
    2: ((1, 0), (0, 0), (0, 1)),
    3: ((0, 0), (2, 0), (1, 0), (1, 1), (0, 1), (0, 2)),
}


def plane_pairs(left: int, right: int) -> tuple[tuple[int, int], ...]:
    """Which planes are multiplied, in an order that reads those of the right operand once, upwards.

    The right operand may come from memory, and what goes upwards is fetched ahead by the processor.
    The rows come from a cache, and a plane of theirs may be loaded again. Each pair has a plane of
    the one before, which is still in a register.

    An operand that is exact in fewer planes than the other meets each of those that are left.
    """
    return tuple(p for p in _PAIRS[max(left, right)] if p[0] < left and p[1] < right)


def choose(position: Expr, values: Sequence[int]) -> Expr:
    """The value of a table at a position."""
    found: Expr = const(values[-1], DType.INDEX)
    for n in range(len(values) - 1, 0, -1):
        if values[n - 1] != values[n]:
            found = select(position < n, values[n - 1], found)
    return found


def depth_of(dtype: DType) -> int:
    """Summands of one instruction, where rows are made of elements of a type."""
    return ROW_BYTES if dtype is DType.U8 else DEPTH


def plane(value: Expr, position: Expr, count: int) -> Expr:
    """One of the `count` planes of a float32; a byte is its only one."""
    if value.dtype is DType.U8:
        return value
    parts: list[Expr] = []
    for _ in range(count):
        parts.append(cast(DType.BF16, value))
        value = value - cast(DType.F32, parts[-1])
    found = parts[-1]
    for n in range(count - 1, 0, -1):
        found = select(position < n, parts[n - 1], found)
    return found


def split_planes(w: Array, count: int) -> Array:
    """The planes of constant float32s, along a new first axis, as the bits of bf16.

    The first plane never rounds to infinity; of what is not finite, the others are 0.

    Shapes:
        w: [...] float32 -> [count, ...] uint16
    """
    rest = np.array(w, np.float32, order="C")
    return np.stack([(bits >> 16).astype(np.uint16) for bits in _split(rest, count)])


def _split(rest: Array, count: int) -> Iterator[Array]:
    """The bits of each plane, as float32 has them; `rest` becomes what they leave over."""
    finite = np.isfinite(rest)
    special = not finite.all()
    for position in range(count):
        bits = rest.view(np.uint32)
        nearest = bits + (0x7FFF + (bits >> 16 & 1))
        if position == 0:
            over = nearest & 0x7F800000 == 0x7F800000
            nearest = np.where(over & finite, bits, nearest)  # cut off, which stays finite
        if special:
            quiet = bits | (np.isnan(rest).astype(np.uint32) << 22)
            nearest = np.where(np.isfinite(rest), nearest, quiet)
        nearest &= 0xFFFF0000
        with np.errstate(invalid="ignore"):
            rest -= nearest.view(np.float32)
        if special:
            rest[~finite] = 0
        yield nearest


def pack_tiles(w: Array, count: int) -> Array:
    """A constant operand as its tiles lie in memory: 16 rows of 16 columns of pairs.

    Shapes:
        w: [depth, *k, columns] -> [columns / 16, depth / 32, *k, count, 16, 16, 2] bf16

    The number of blocks of 16 columns is even: what is behind the last is zeros.
    """
    depth, *kernel, columns = w.shape
    blocks, panels = -(-depth // DEPTH), -(-columns // (2 * ROWS)) * 2
    # A pair is one number of 32 bits, so that no single half has to be moved.
    tiles = np.empty((panels, blocks, *kernel, count, ROWS, ROWS), np.uint32)
    rank = len(kernel)
    order = (rank + 2, 0, *range(2, 2 + rank), 1, rank + 3)
    step = max(1, _SLAB // (DEPTH * math.prod(kernel) * panels * ROWS))

    def pack(first: int) -> None:
        last = min(first + step, blocks)
        slab = np.zeros((last - first, ROWS, 2, *kernel, panels * ROWS), np.float32)
        part = w[first * DEPTH : last * DEPTH]
        slab.reshape(-1, *kernel, panels * ROWS)[: len(part), ..., :columns] = part
        for position, bits in enumerate(_split(slab, count)):
            pairs = bits[:, :, 0] >> 16 | bits[:, :, 1]
            split = pairs.reshape(last - first, ROWS, *kernel, panels, ROWS)
            np.moveaxis(tiles, 2 + rank, 0)[position, :, first:last] = split.transpose(order)

    for_each(pack, range(0, blocks, step), w.size)
    return tiles.view(NUMPY_DTYPES[DType.BF16]).reshape(*tiles.shape, 2)


def unpack_tiles(w: Array) -> Array:
    """What `pack_tiles` packed: the sum of the planes, in float64.

    Shapes:
        w: [cb, kb, *k, count, 16, 16, 2] -> [kb * 32, *k, cb * 16]
    """
    rank = w.ndim - 6
    total = w.astype(np.float64).sum(axis=2 + rank)
    order = (1, rank + 2, rank + 4, *range(2, 2 + rank), 0, rank + 3)
    moved = total.transpose(order)
    cb, kb, *kernel = w.shape[: 2 + rank]
    return np.asarray(moved.reshape(kb * DEPTH, *kernel, cb * ROWS))


def weight(
    w: te.Tensor, block: Expr, j: Expr, depth: Expr, kernel: Sequence[Expr], pair: Expr, half: Expr
) -> Expr:
    """One element of a packed operand in float32: the sum of its planes.

    It stands in column `j` of a block of 16, and in a pair of a block of 32 in depth.
    """
    total: Expr | None = None
    for p in range(_count(w)):
        stored = w[(block, depth, *kernel, p, pair, j, half)]
        part = cast(DType.F32, stored)
        total = part if total is None else total + part
    assert total is not None
    return total


def _count(w: te.Tensor) -> int:
    return const_size(w.shape[-4])


def tile_sums(
    rows: te.Tensor,
    w: te.Tensor,
    lead: Shape,
    height: Expr,
    row: Callable[[Sequence[Expr], Expr, Sequence[Expr]], tuple[Expr, ...]],
) -> te.Tensor:
    """Sums of products of planes, 16 columns side by side; bytes are one plane, and `each` is 4.

    `row(place, b, k)` is where the row of the result at `place` (`lead`, then its own position)
    finds block `b` of its operand for the position `k` of the kernel: the indices before the plane.

    Shapes:
        rows: [..., planes, 16 * each]; w: [cb, kb, *k, planes, 16, 16, each]
        -> [*lead, cb, height, 16]
    """
    pairs = plane_pairs(const_size(rows.shape[-2]), _count(w))
    cb, kb, *kernel = w.shape[:-4]
    each = const_size(w.shape[-1])
    wide = DType.F32 if w.dtype is DType.BF16 else DType.I32
    rank = len(lead)

    def element(*out: Expr) -> te.Reduce:
        block, f, j = out[rank:]
        place = (*out[:rank], f)

        def term(*r: Expr) -> Expr:
            b, *k, q, word, part = r
            left, right = (choose(q, [p[side] for p in pairs]) for side in (0, 1))
            x = rows[(*row(place, b, k), left, word * each + part)]
            y = w[(block, b, *k, right, word, j, part)]
            return cast(wide, x) * cast(wide, y)

        return te.reduce_sum((kb, *kernel, len(pairs), ROWS, each), term)

    shape = (*lead, cb, height, ROWS)
    return te.compute("sums", shape, element, inputs=(rows, w))


def whole_pairs(rows: Expr) -> Expr:
    """Rows that fill pairs of tiles."""
    return canonical(ceil_div(rows, 2 * ROWS) * (2 * ROWS))


def pair_sums(rows: te.Tensor, tiles: te.Tensor, shape: Sequence[ExprLike]) -> te.Tensor:
    """The same of planes of columns that are computed: a panel has a tile beside the other.

    Shapes:
        rows: [*lead, kb, height, planes, 32]; tiles: [*lead, panels, kb, planes, 2, 16, 16, 2],
        or without `lead` -> [*lead, panels * 2, height, 16]
    """
    count, blocks = const_size(rows.shape[-2]), rows.shape[-4]
    pairs = plane_pairs(count, count)
    lead = len(tiles.shape) - _TILES_RANK

    def summed(*out: Expr) -> te.Reduce:
        *place, block, f, j = out

        def term(q: Expr, r: Expr, pair: Expr, half: Expr) -> Expr:
            left, right = (choose(r, [p[side] for p in pairs]) for side in (0, 1))
            x = rows[(*place, q, f, left, pair * 2 + half)]
            y = tiles[(*place[:lead], block // 2, q, right, block % 2, pair, j, half)]
            return cast(DType.F32, x) * cast(DType.F32, y)

        return te.reduce_sum((blocks, len(pairs), ROWS, 2), term)

    return te.compute("sums", shape, summed, inputs=(rows, tiles))


def repaired(
    name: str,
    shape: Shape,
    sums: te.Tensor,
    at: Callable[..., tuple[Expr, ...]],
    extents: Sequence[Expr],
    term: Callable[..., Callable[..., Expr]],
    inputs: tuple[te.Tensor, ...],
    *,
    is_finite: bool = False,
) -> te.Tensor:
    """The sums where they are finite; elsewhere the sum of `term`, in the type of the sums.

    `at(*index)` is where an element stands in `sums`; `term(*index)(*r)` are its summands. Where
    `is_finite`, all sums surely are.
    """
    if is_finite:
        return te.compute(name, shape, lambda *index: sums[at(*index)], inputs=(sums,))

    def broken(position: tuple[Expr, ...]) -> Expr:
        value = sums[at(*position)]
        return Binary(BinOp.NE, value - value, const(0, value.dtype))

    def once_more(*index: Expr) -> te.Reduce:
        summand = term(*index)
        return te.reduce_sum(extents, lambda *r: select(broken(index), summand(*r), 0.0))

    exact = te.compute("exact", shape, once_more, inputs=(sums, *inputs))
    return te.compute(
        name,
        shape,
        lambda *index: select(broken(index), exact[index], sums[at(*index)]),
        inputs=(sums, exact),
    )
