"""Rows that each meet a matrix of a stack, brought together in tiles of rows of one matrix."""

from __future__ import annotations

import numpy as np

from dlc.core.types import DType
from dlc.graph.op import Array, Fuse, op
from dlc.graph.ops.attributes import constants, set_size
from dlc.graph.ops.gather import INDICES, exact_index, safe_index
from dlc.graph.ops.nest import NestOp, each, lines
from dlc.schedule.loop import Buffer
from dlc.te.expr import Expr, Load, Var, index
from dlc.te.types import TensorType


@op("tile_begins", fuse=Fuse.OPAQUE)
class TileBegins(NestOp):
    """Which tile is the first one of each matrix, and behind all how many tiles there are.

    Every matrix has as many tiles of `rows` rows as those that choose it fill.

    Shapes:
        which: [n] -> i64[matrices + 1]
    """

    matrices: int
    rows: int

    def infer(self, which: TensorType) -> TensorType:
        if which.rank != 1 or which.dtype not in INDICES or min(self.matrices, self.rows) < 1:
            raise self.reject("needs a matrix for each row", which)
        return TensorType((self.matrices + 1,), DType.I64)

    def nest(self, inputs: tuple[Buffer, ...], outputs: tuple[Buffer, ...]) -> str:
        (which,), (out,) = inputs, outputs
        (count,) = which.type.shape
        after = f"{out.name}[m + 1]"
        return lines(
            each("zero", self.matrices + 1, f"{out.name}[zero] = i64(0)"),
            each("r", count, f"{out.name}[{_matrix(which, 'r', self.matrices)} + 1] += i64(1)"),
            each("m", self.matrices, f"{after} = {out.name}[m] + "
                 f"({after} + i64({self.rows - 1})) // i64({self.rows})"),
        )  # fmt: skip

    def reference(self, which: Array) -> Array:
        found = np.bincount(exact_index(which, self.matrices), minlength=self.matrices)
        return np.cumsum([0, *-(-found // self.rows)]).astype(np.int64)


@op("row_tiles", fuse=Fuse.OPAQUE)
class RowTiles(NestOp):
    """The matrix of each tile, the row in each of its places, and the place of each row.

    A place that no row fills has the first row once more.

    Shapes:
        which: [n]; begins: i64[matrices + 1], see `TileBegins`
        -> i64[tiles], i64[tiles * rows], i64[n]
    """

    tiles: Expr
    rows: int

    def __post_init__(self) -> None:
        set_size(self, "tiles")

    def infer(self, which: TensorType, begins: TensorType) -> tuple[TensorType, ...]:
        if which.rank != 1 or which.dtype not in INDICES or begins.rank != 1 or self.rows < 1:
            raise self.reject("needs a matrix for each row, and where tiles begin", which, begins)
        shapes = (self.tiles,), (self.tiles * self.rows,), which.shape
        return tuple(TensorType(shape, DType.I64) for shape in shapes)

    def nest(self, inputs: tuple[Buffer, ...], outputs: tuple[Buffer, ...]) -> str:
        (which, begins), (matrix, row, place) = inputs, outputs
        matrices, (count,) = begins.type.shape[0] - 1, which.type.shape
        return lines(
            f'free = alloc(i64[{matrices}], "local")',
            each("m", matrices, f"free[m] = {begins.name}[m] * i64({self.rows})"),
            each("none", row.type.shape[0], f"{row.name}[none] = i64(0)"),
            each("r", count, lines(
                'at = alloc(i64[1], "register")',
                f"at[0] = free[{(chosen := _matrix(which, 'r', matrices))}]",
                f"free[{chosen}] = at[0] + i64(1)",
                f"{place.name}[r] = at[0]",
                f"{row.name}[index(at[0])] = i64(r)",
                f"{matrix.name}[index(at[0]) // {self.rows}] = i64({chosen})",
            )),
        )  # fmt: skip

    def reference(self, which: Array, begins: Array) -> tuple[Array, ...]:
        (tiles,) = constants((self.tiles,))
        free = begins[:-1] * self.rows
        matrix, row = np.zeros(tiles, np.int64), np.zeros(tiles * self.rows, np.int64)
        place = np.zeros(len(which), np.int64)
        for number, chosen in enumerate(exact_index(which, len(free))):
            place[number] = at = free[chosen]
            row[at], matrix[at // self.rows] = number, chosen
            free[chosen] += 1
        return matrix, row, place


def _matrix(which: Buffer, row: str, matrices: Expr | int) -> str:
    """The matrix that a row chooses, as a gather would find it."""
    chosen = Load(which.name, (Var(row),), which.type.dtype)
    return f"({safe_index(chosen, index(matrices))})"
