"""The sizes of what a matrix engine would multiply in the place of products with constants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from dlc.graph.graph import Value
from dlc.graph.op import Array
from dlc.graph.ops.conv_blocked import BlockedConv
from dlc.graph.ops.planes import ROW_BYTES, ROWS, plane_pairs
from dlc.graph.ops.planes_conv import Grid, is_open
from dlc.graph.ops.planes_lines import Lines
from dlc.schedule.rules.strip import MAX_LINES, OPEN_ROWS, Shape
from dlc.te.types import const_or, const_size


@dataclass(frozen=True, slots=True)
class Split:
    """How many planes are multiplied of an operand and of its weights."""

    rows: int
    weights: int
    is_finite: bool  # whether every element of both surely is

    @property
    def products(self) -> int:
        """How many products of planes that makes."""
        return len(plane_pairs(self.rows, self.weights))


def dense_conv(w: Array) -> Array:
    """Blocked weights as a matrix with a kernel: [ob, cb, *k, 16, 16] -> [cb * 16, *k, ob * 16]."""
    ob, cb, *kernel, ci, oc = w.shape
    rank = len(kernel)
    moved = w.transpose(1, 2 + rank, *range(2, 2 + rank), 0, 3 + rank)
    return moved.reshape(cb * ci, *kernel, ob * oc)


def conv_shape(
    op: BlockedConv, out: Value, kernel: Sequence[int], depth: int, split: Split
) -> tuple[Shape, int]:
    """The sizes of a convolution whose rows have `depth` blocks, and the slack of its sums.

    `kernel` is what of it are rows of their own, of which `op` has strides and dilations.
    """
    is_fixed = not is_open(out.type.shape[2:-1])
    return (_image_shape if is_fixed else _lines_shape)(op, out, kernel, depth, split)


def _image_shape(
    op: BlockedConv, out: Value, kernel: Sequence[int], depth: int, split: Split
) -> tuple[Shape, int]:
    """The same of an image of constant sizes: one sequence of rows."""
    ob, *sizes, _ = (const_size(size) for size in out.type.shape[1:])
    grid = Grid(out.type.shape[2:-1], kernel, op.stride, op.dilation)
    slack = (sizes[0] // 2 + 1) * grid.line + 2 * ROWS
    shape = Shape(
        lead=const_or(out.type.shape[0], 1),
        lines=sizes[0],
        width=grid.line,
        last=const_size(grid.height) - sizes[0] * grid.line + 1,
        reach=const_size(grid.reach),
        spare=slack + grid.line - 1,
        columns=-(-ob // 2),
        steps=depth * prod(kernel),
        products=split.products,
        planes=split.weights,
        row_bytes=depth * prod(grid.phases) * split.rows * ROW_BYTES,
    )
    return shape, slack


def line_length(out: Value, shape: Shape) -> int:
    """The pixels of a line; 1 where the lines of a shape are its pixels."""
    return prod(const_size(size) for size in out.type.shape[3:-1]) if shape.width > 1 else 1


def _lines_shape(
    op: BlockedConv, out: Value, kernel: Sequence[int], depth: int, split: Split
) -> tuple[Shape, int]:
    """The same of an image of an open size: of one strip of its lines."""
    lines = Lines(out.type.shape[2:-1], kernel, op.stride, op.dilation)
    rows = MAX_LINES * OPEN_ROWS
    shape = Shape(
        lead=1,
        lines=rows,
        width=1,
        last=1,
        reach=sum(lines.reach[:-1]) * OPEN_ROWS,
        spare=0,
        columns=-(-const_size(out.type.shape[1]) // 2),
        steps=depth * prod(kernel),
        products=split.products,
        planes=split.weights,
        row_bytes=depth * prod(lines.phases) * split.rows * ROW_BYTES,
    )
    return shape, 0


def matmul_shape(out: Value, steps: int, split: Split) -> tuple[Shape, int]:
    """The same of rows of `steps` blocks and a matrix of 32 columns at least."""
    *lead, rows, columns = out.type.shape
    m = const_or(rows, OPEN_ROWS)
    slack = m // 2 + 2 * ROWS + 1
    shape = Shape(
        lead=prod(const_or(size, 1) for size in lead),
        lines=m,
        width=1,
        last=1,
        reach=0,
        spare=slack,
        columns=-(-const_size(columns) // (2 * ROWS)),
        steps=steps,
        products=split.products,
        planes=split.weights,
        row_bytes=steps * split.rows * ROW_BYTES,
    )
    return shape, slack
