"""Product of a float32 matrix with a constant one on a matrix engine: see `planes.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dlc.core.types import DType
from dlc.graph.assume import differs, is_below
from dlc.graph.op import Array, Fuse, Op, op
from dlc.graph.ops.attributes import as_sizes, constants, set_size
from dlc.graph.ops.matmul import MatMul
from dlc.graph.ops.planes import (
    DEPTH,
    ROWS,
    SLACK,
    plane,
    repaired,
    tile_sums,
    unpack_tiles,
    weight,
)
from dlc.te import tensor as te
from dlc.te.expr import ZERO, Const, Expr, index, minimum
from dlc.te.simplify import canonical
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
        *lead, m, k = x.shape
        planes = self.planes or const_size(w.shape[-4])

        def split(*place: Expr) -> Expr:
            *stack, b, row, p, c = place
            # Rows behind the last feed only sums that nobody reads.
            return plane(x[(*stack, minimum(row, m - 1), b * DEPTH + c)], p, planes)

        height = self._height(m)
        only = is_const(m, 1)  # all rows of its tile are the same
        shape = (*lead, canonical(k // DEPTH), index(1) if only else height, planes, DEPTH)
        rows = te.compute("rows", shape, split, inputs=(x,))

        def row_of(at: Sequence[Expr], b: Expr, k: Sequence[Expr]) -> tuple[Expr, ...]:
            return (*at[:-1], b, ZERO if only else at[-1])

        sums = tile_sums(rows, w, tuple(lead), height, row_of)

        def at(*place: Expr) -> tuple[Expr, ...]:
            *stack, row, j = place
            return (*stack, j // ROWS, row, j % ROWS)

        def term(*place: Expr) -> Callable[..., Expr]:
            *row, j = place
            block, column = j // ROWS, j % ROWS
            return lambda b, pair, half: (
                x[(*row, b * DEPTH + pair * 2 + half)] * weight(w, block, column, b, (), pair, half)
            )

        extents = as_sizes((w.shape[1], ROWS, 2))
        return repaired(
            self.name, type_.shape, sums, at, extents, term, (x, w), is_finite=self.is_finite
        )

    def _height(self, m: Expr) -> Expr:
        """Rows that there are sums for: an open number of rows fills pairs of tiles."""
        pair = 2 * ROWS
        return canonical(m + self.slack if isinstance(m, Const) else (m + pair - 1) // pair * pair)

    def reference(self, x: Array, w: Array) -> Array:
        (n,) = constants((self.n,))
        return MatMul().reference(x, unpack_tiles(w)[:, :n])
