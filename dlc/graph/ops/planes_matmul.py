"""Product of a float32 matrix with a constant one on a matrix engine: see `planes.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dlc.core.types import DType
from dlc.graph.assume import differs, is_below
from dlc.graph.op import Array, Fuse, Op, op
from dlc.graph.ops.attributes import as_sizes, constants, set_size
from dlc.graph.ops.matmul import MatMul, MatMulPacked
from dlc.graph.ops.planes import (
    DEPTH,
    ROWS,
    SLACK,
    depth_of,
    pair_sums,
    plane,
    repaired,
    tile_sums,
    unpack_tiles,
    weight,
    whole_pairs,
)
from dlc.te import tensor as te
from dlc.te.expr import ZERO, Const, Expr, ceil_div, index, minimum
from dlc.te.simplify import canonical, surely_divides
from dlc.te.types import TensorType, const_size, is_const


@op("matmul_planes", fuse=Fuse.ANCHOR)
class MatMulPlanes(Op):
    """The product with a packed matrix by products of bf16 planes.

    `slack` is how many rows of sums there are behind those of a constant number of rows.

    Shapes:
        x: f32[..., m, k]; w: bf16[n / 16, k / 32, planes, 16, 16, 2] -> f32[..., m, n]
    """

    n: Expr
    slack: int = SLACK
    planes: int = 0  # of the rows; 0: as many as the columns have
    is_finite: bool = False  # whether every element of rows and columns surely is

    def __post_init__(self) -> None:
        set_size(self, "n")

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        if x.dtype is not DType.F32 or w.dtype is not DType.BF16 or x.rank < 2 or w.rank != 6:
            raise self.reject("needs f32 rows and packed bf16 columns", x, w)
        if differs(x.shape[-1], w.shape[1] * DEPTH):
            raise self.reject("the inner sizes differ", x, w)
        if is_below(w.shape[0] * ROWS, self.n):
            raise self.reject(f"the panels hold less than {self.n} columns", x, w)
        return TensorType((*x.shape[:-1], self.n), DType.F32)

    def compute(self, x: te.Tensor, w: te.Tensor) -> te.Tensor:
        type_ = self.infer(x.type, w.type)
        planes = self.planes or const_size(w.shape[-4])
        rows, height, row_of = rows_in_tiles(x, planes, self.slack)
        sums = tile_sums(rows, w, x.shape[:-2], height, row_of)

        def term(*place: Expr) -> Callable[..., Expr]:
            *row, j = place
            block, column = j // ROWS, j % ROWS
            return lambda b, pair, half: (
                x[(*row, b * DEPTH + pair * 2 + half)] * weight(w, block, column, b, (), pair, half)
            )

        extents = as_sizes((w.shape[1], ROWS, 2))
        return repaired(
            self.name, type_.shape, sums, by_blocks, extents, term, (x, w),
            is_finite=self.is_finite,
        )  # fmt: skip

    def reference(self, x: Array, w: Array) -> Array:
        (n,) = constants((self.n,))
        return MatMul().reference(x, unpack_tiles(w)[:, :n])


@op("matmul_split", fuse=Fuse.ANCHOR)
class MatMulSplit(Op):
    """The same of a matrix in panels, which the kernel splits into planes as it does the rows.

    It reads fewer bytes than three planes have, and the same as `MatMulPacked`. Where the number of
    rows is open, that one is called for less than `fewest`.

    Shapes:
        x: f32[..., m, k]; w: f32[n / 16, k, 16] -> f32[..., m, n]; k and n are multiples of 32.
    """

    n: Expr
    planes: int = 3
    fewest: int = 0  # 0: a run does not choose

    def __post_init__(self) -> None:
        set_size(self, "n")

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        if x.dtype is not DType.F32 or w.dtype is not DType.F32 or x.rank < 2 or w.rank != 3:
            raise self.reject("needs f32 rows and packed f32 columns", x, w)
        if differs(x.shape[-1], w.shape[1]) or not surely_divides(DEPTH, w.shape[1]):
            raise self.reject(f"the inner sizes differ, or are no multiples of {DEPTH}", x, w)
        whole = surely_divides(2 * ROWS, self.n) and is_const(w.shape[2], ROWS)
        if not whole or differs(w.shape[0] * ROWS, self.n):
            raise self.reject(f"needs pairs of panels of {ROWS} columns", x, w)
        return TensorType((*x.shape[:-1], self.n), DType.F32)

    def compute(self, x: te.Tensor, w: te.Tensor) -> te.Tensor:
        type_ = self.infer(x.type, w.type)
        *lead, m, k = x.shape
        height = whole_pairs(m)
        rows = _split_rows(x, height, self.planes)

        def pack(*place: Expr) -> Expr:
            panel, block, p, side, pair, j, half = place
            value = w[panel * 2 + side, block * DEPTH + pair * 2 + half, j]
            return plane(value, p, self.planes)

        blocks = canonical(k // DEPTH)
        shape = (canonical(w.shape[0] // 2), blocks, self.planes, 2, ROWS, ROWS, 2)
        tiles = te.compute("tiles", shape, pack, inputs=(w,))
        sums = pair_sums(rows, tiles, (*lead, w.shape[0], height, ROWS))

        def term(*place: Expr) -> Callable[..., Expr]:
            *row, j = place
            return lambda c: x[(*row, c)] * w[j // ROWS, c, j % ROWS]

        return repaired(self.name, type_.shape, sums, by_blocks, (k,), term, (x, w))

    def reference(self, x: Array, w: Array) -> Array:
        return self.direct.reference(x, w)

    @property
    def direct(self) -> MatMulPacked:
        """The same by multiply-adds."""
        return MatMulPacked(n=self.n)

    @property
    def may_be_slower(self) -> bool:
        """Whether a run has to ask."""
        return self.fewest > 0

    def is_slower(self, result: TensorType) -> Expr:
        """Whether multiply-adds take less for a result of these sizes."""
        return result.shape[-2] < self.fewest


def rows_in_tiles(
    x: te.Tensor, planes: int, slack: int
) -> tuple[te.Tensor, Expr, Callable[..., tuple[Expr, ...]]]:
    """The planes of rows, how many rows there are sums for, and where each of these finds its own.

    An open number of rows fills pairs of tiles; others have `slack` more. All rows of the tile of
    an only row are the same.
    """
    m = x.shape[-2]
    height = canonical(m + slack) if isinstance(m, Const) else whole_pairs(m)
    only = is_const(m, 1)

    def row_of(at: Sequence[Expr], b: Expr, _k: Sequence[Expr]) -> tuple[Expr, ...]:
        return (*at[:-1], b, ZERO if only else at[-1])

    return _split_rows(x, index(1) if only else height, planes), height, row_of


def _split_rows(x: te.Tensor, height: Expr, planes: int) -> te.Tensor:
    """The planes of rows: [..., k / 32, height, planes, 32], or of 64 bytes."""
    *lead, m, k = x.shape
    depth = depth_of(x.dtype)
    is_whole = surely_divides(depth, k)

    def split(*place: Expr) -> Expr:
        *stack, b, row, p, c = place
        at = b * depth + c
        if not is_whole:  # what is behind the last summand meets zeros
            at = minimum(at // ROWS, k // ROWS - 1) * ROWS + c % ROWS
        # Rows behind the last feed only sums that nobody reads.
        return plane(x[(*stack, minimum(row, m - 1), at)], p, planes)

    shape = (*lead, canonical(ceil_div(k, depth)), height, planes, depth)
    return te.compute("rows", shape, split, inputs=(x,))


def by_blocks(*place: Expr) -> tuple[Expr, ...]:
    """Where an element of the result stands in the sums."""
    *stack, row, j = place
    return (*stack, j // ROWS, row, j % ROWS)
