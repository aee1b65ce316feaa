"""What products with constant matrices take on a matrix engine, and by multiply-adds: estimates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from dlc.core.types import DType
from dlc.graph.op import Array, Op
from dlc.graph.ops.conv_blocked import BlockedConv
from dlc.graph.ops.planes import ROWS
from dlc.graph.pass_ import PassContext
from dlc.schedule.rules.strip import (
    OPEN_ROWS,
    Shape,
    choose_strip,
    cycles,
    lines_cycles,
    open_cycles,
)

FMA_SHARE = 0.8  # of the peak, that kernels of fused multiply-adds reach
ROW_RATE = 0.53  # vectors in a cycle of an only row, whose columns come from the second cache
OPEN_FMA_SHARE = 0.7  # the same of an open number of rows, or of pixels of a line
MARGIN = 0.9  # of their time, that the engine may take
BYTE_RATES = {4: 5.0, 2: 1.5}
"""Products of bytes in the time of a multiply-add, by how many a lane adds. Four of them save what
the engine spends on planes, and moves between kernels, as well: measured on whole models."""
MAX_PARTS = 8
CALL = 10000.0  # cycles that one more kernel costs
PARTIAL = 100.0  # cycles to write 32 sums of a part, and to read and add them again


@dataclass(frozen=True, slots=True)
class Product:
    """What a node would become: the operator, its size, and [depth, *kernel, columns]."""

    op: Op
    shape: Shape
    dense: Array
    planes: int  # of `dense`
    summands: int  # of a result, without those that only fill rows
    length: int = 1  # rows of a line that are read
    is_fixed: bool = True  # whether the number of rows is a constant; else strips fit the cache

    @property
    def rows(self) -> int:
        """The rows of all results."""
        return self.shape.lead * self.shape.lines * self.length


def vector_cycles(found: Product, context: PassContext) -> float:
    """The time of fused multiply-adds."""
    shape = found.shape
    macs = found.rows * shape.columns * 2 * ROWS * found.summands
    rate = 2 * FMA_SHARE if found.rows > 1 else ROW_RATE
    cost = macs / (rate * context.target.lanes(4))
    if found.is_fixed:
        return cost
    cost *= FMA_SHARE / OPEN_FMA_SHARE
    if not isinstance(found.op, BlockedConv):
        return cost
    return cost * float(found.dense.shape[-1] // ROWS / (2 * shape.columns))


def fewest_rows(found: Product, parts: int, context: PassContext) -> int:
    """From how many rows on the engine is faster, where it makes the planes of the columns, too."""
    each = vector_cycles(found, context) / found.rows * MARGIN
    fewest = 0.0
    for rows in range(2 * ROWS, OPEN_ROWS + 1, 2 * ROWS):
        few = replace(found, shape=replace(found.shape, lead=1, lines=rows))
        cost = _parts_cycles(few, parts, context)
        assert cost is not None, "there are as many parts for any number of rows"
        fewest = max(rows - 2 * ROWS + 1, cost / each)
        if fewest <= rows:
            break
    return ceil(fewest)


def engine_cycles(found: Product, context: PassContext) -> tuple[int, float] | None:
    """The best number of parts, and the time they take; None where the engine cannot be used.

    The row operand of a deep product does not stay in the cache while all columns pass.
    """
    is_image = isinstance(found.op, BlockedConv)
    counts = range(1, 2 if is_image else MAX_PARTS + 1)
    found_costs = {count: _parts_cycles(found, count, context) for count in counts}
    costs = {count: cost for count, cost in found_costs.items() if cost is not None}
    best = min(costs, key=lambda count: costs[count], default=None)
    return None if best is None else (best, costs[best])


def _parts_cycles(found: Product, count: int, context: PassContext) -> float | None:
    """The time of so many parts; None where they are not that many, or have no engine."""
    shape = found.shape
    steps = -(-shape.steps // count)
    if steps * (count - 1) >= shape.steps:
        return None
    part = replace(shape, steps=steps, row_bytes=shape.row_bytes * steps // shape.steps)
    cost = _part_cycles(found, part, context)
    again = found.rows * shape.columns * PARTIAL + CALL
    return None if cost is None else count * cost + (count - 1) * again


def _part_cycles(found: Product, part: Shape, context: PassContext) -> float | None:
    """The time of a part of all steps; None where the engine cannot be used."""
    target = context.target
    if found.is_fixed:
        strip = choose_strip(part, target, {})
        return None if strip is None else cycles(part, strip, target)
    if not isinstance(found.op, BlockedConv):
        return open_cycles(part, target)
    # A run may have few pixels, which wait for the weights: planes must not be more bytes.
    if part.planes * DType.BF16.size_bytes > DType.F32.size_bytes:
        return None
    return lines_cycles(part, found.dense.shape[-1] // ROWS, target)
