"""Which operand of a contraction stays near, tile by tile, while the other one passes."""

from __future__ import annotations

from math import prod

from dlc.core.target import Target
from dlc.schedule.rules.contraction import Contraction
from dlc.schedule.rules.cut_tiles import is_far, multiply_adds, sum_steps, tile_registers
from dlc.schedule.rules.lines import shares_lines
from dlc.schedule.rules.tile import Tile, choose_tile
from dlc.schedule.trace import Trace


def columns_stay(trace: Trace, found: Contraction, target: Target, *, shared: bool) -> bool:
    """Whether a column tile is kept while all rows pass, rather than the other way round.

    Whichever operand is larger than half of the L2 cache should be streamed once; of two, the
    one that costs more bytes otherwise. `shared` says that cores share the columns.
    """
    if found.packed is not None:
        return True
    if is_far(found, target):
        return not _reads_rows_once(trace, found, target)
    return shared


def shares_columns(trace: Trace, found: Contraction, target: Target, row_count: int) -> bool:
    """Whether cores share the columns of an image of few lines, each reading its own.

    It then reads rows that others have written, which has to be less.
    """
    if found.within is not None or len(found.rows) < 2 or target.cores == 1:
        return False
    lines = trace.constant(found.rows[-2])
    return not shares_lines(lines, target) and column_count(trace, found) > row_count


def _reads_rows_once(trace: Trace, found: Contraction, target: Target) -> bool:
    """Whether all columns pass a line of rows, that there are many of, with fewer bytes."""
    size, weights = found.row_bytes, found.column_bytes
    counts = [trace.constant(v) for v in found.rows]
    if size is None or weights is None or None in counts or len(counts) < 2:
        return False
    if _passed_bytes(trace, found, target, size) <= target.l2_bytes // 2:
        return False
    lines = prod(count or 1 for count in counts[:-1])
    if size // lines > target.l2_bytes // 4:  # a line is read by each tile of columns
        return False
    again = column_tiles(trace, found, row_tile(trace, found, target), target)
    return size * again + weights > size + weights * lines


def _passed_bytes(trace: Trace, found: Contraction, target: Target, size: int) -> int:
    """What is read of an operand of rows of so many bytes, of which strides leave out lines.

    Pixels that are skipped in a line count: those between them share the places that they have in
    a cache.
    """
    if found.row_stride is None:
        return size
    vectors = sum_steps(trace, found) // target.lanes(4)
    return min(size, prod(trace.constant(v) or 1 for v in found.rows) * vectors * found.row_stride)


def column_tiles(trace: Trace, found: Contraction, tile: Tile, target: Target) -> int:
    """How many tiles of columns read a row."""
    return -(-column_count(trace, found) // (tile.columns * target.lanes(4)))


def row_tile(trace: Trace, found: Contraction, target: Target) -> Tile:
    """The tile of most rows."""
    return choose_tile(
        trace.constant(found.rows[-1]),
        1,
        column_count(trace, found) // target.lanes(4),
        tile_registers(found, target),
        fmas=multiply_adds(found, target),
        loads=target.vector_loads,
        steps=sum_steps(trace, found),
    )


def column_count(trace: Trace, found: Contraction) -> int:
    """How many columns there are; 0 where only a run tells."""
    return prod(trace.constant(v) or 0 for v in (*found.columns, found.lane))
