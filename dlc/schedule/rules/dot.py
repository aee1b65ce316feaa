"""Sums of one column, which whole vectors of columns leave: vectors along the summands.

A tile of one column would have rows as lanes, which lie apart and were gathered for each summand.
Summands of a row lie side by side, and those of the column are brought together once:

Before:
    for r in range(25):
        for k in range(32):
            sum[r] += rows[r, k] * columns[k, 48]

After:
    for k in range(32):
        column[k] = columns[k, 48]
    for r in range(25):
        for k in range(2):
            lanes[0:16] += rows[r, k * 16 : k * 16 + 16] * column[k * 16 : k * 16 + 16]
        sum[r] = the sum of all lanes
"""

from __future__ import annotations

from dataclasses import dataclass

from dlc.schedule.primitives.cache_read import shape_of
from dlc.schedule.rules.row import in_lanes
from dlc.schedule.trace import Trace
from dlc.te.affine import step_bytes
from dlc.te.expr import ZERO, Load, Var
from dlc.te.simplify import canonical
from dlc.te.transform import free_vars, substitute
from dlc.te.types import TensorType

MOST_SUMMANDS = 4096  # whose column fills half of a nearest cache of 32 KiB


@dataclass(frozen=True, slots=True)
class Dot:
    """The loop over summands of a sum, and what is read as its only column."""

    total: str
    along: str
    column: str


def find_dot(trace: Trace, total: str, column: str, lanes: int) -> Dot | None:
    """The sums of a tile whose columns are one loop, if they are added up as this module says."""
    stage = trace.stage(total)
    along = [f.var for f in stage.inner if trace.constant(f.var) != 1]
    rows = [v for v in stage.names if trace.constant(v) != 1]
    if trace.constant(column) != 1 or len(along) != 1 or not rows:
        return None
    count = trace.constant(along[0])
    if count is None or not lanes <= count <= MOST_SUMMANDS:
        return None
    match sorted(stage.factors or (), key=lambda f: rows[-1] in free_vars(f)):
        case [Load() as of_column, Load() as of_row]:
            pass
        case _:
            return None
    if free_vars(of_column) & set(rows) or along[0] not in free_vars(of_column):
        return None
    size = of_row.dtype.size_bytes
    near, apart = (_step(trace, of_row, loop) for loop in (along[0], rows[-1]))
    return Dot(total, along[0], of_column.buffer) if near == size != apart else None


def _step(trace: Trace, load: Load, loop: str) -> int | None:
    """How far apart in memory a load reads in the iterations of a loop; None where that differs.

    Terms without the loop do not count: where rows of an open number begin.
    """
    type_ = TensorType(shape_of(trace.func, load.buffer), load.dtype)
    moved = [
        canonical(substitute(i, {loop: Var(loop) + 1}) - i) if loop in free_vars(i) else ZERO
        for i in load.index
    ]
    return step_bytes([step * Var(loop) for step in moved], type_, loop)


def add_up_along(trace: Trace, found: Dot, lanes: int) -> None:
    """Add up a tile of one column, each row by itself."""
    stage, copy = trace.stage(found.total), f"{found.total}_column"
    names, inner = stage.names, [f.var for f in stage.inner]
    trace.do("decompose_reduction", found.total, names[0])
    trace.do("reorder", (*inner, *names))
    trace.do("cache_load", found.column, (found.along,), copy, "local")
    trace.tile_loop(f"{copy}_0", lanes=True)
    trace.do("reorder", (*names, *inner))
    in_lanes(trace, trace.stage(found.total), lanes)
