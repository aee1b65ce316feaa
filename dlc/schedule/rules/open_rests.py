"""What tiles leave of an open number of rows becomes a nest of its own.

A single row of one vector has one sum in flight, which takes as long as four. Beside others it
could have more columns, but those loops are outside of its own; on their own, rows have as many as
they like. What is left of the lines of an image are rows of a tile, one below the other.

Before:
    for y:
        for column:
            for x:

After:
    for y:
        for column:
            for x / 4 * 4:
    for x % 4:
        for column:
            for y / 4 * 4:
    for x % 4:
        for y % 4:
            for column:
"""

from __future__ import annotations

from dataclasses import replace

from dlc.schedule.rules.contraction import Contraction
from dlc.schedule.rules.tile import TAIL_ROWS
from dlc.schedule.trace import Trace
from dlc.te.affine import iterations
from dlc.te.simplify import surely_divides

PAIR = 2  # rows that share what they read of weights, where three are left


def open_rests(trace: Trace, found: Contraction, lanes: int) -> list[tuple[Contraction, int]]:
    """Cut off what is left of rows whose number a run tells; each with the rows of its tiles.

    Of rows within a nest, whose lines may be guarded, single ones are left. Where all columns are
    one vector of `lanes`, there are no more of them for a row.
    """
    width = trace.constant(found.lane)
    one_vector = not found.columns and width is not None and width <= lanes
    if found.packed is not None or one_vector or not found.rows:
        return []
    if not _is_open(trace, found.rows[-1]):
        return []
    rest = _apart(trace, found, TAIL_ROWS, "_rest")
    if found.within is not None:
        return [(rest, 1)]
    if len(found.rows) == 1:
        return [(rest, PAIR), (_apart(trace, rest, PAIR, "_single"), 1)]
    *others, below, along = rest.rows
    turned = replace(rest, rows=(*others, along, below))
    if not _is_open(trace, below):
        return [(turned, TAIL_ROWS)]
    return [(turned, TAIL_ROWS), (_apart(trace, turned, TAIL_ROWS, "_corner"), 1)]


def _is_open(trace: Trace, row: str) -> bool:
    """Whether a loop may leave rows that are less than the smallest tile."""
    return trace.constant(row) is None and not surely_divides(TAIL_ROWS, trace.extent(row))


def _apart(trace: Trace, found: Contraction, size: int, suffix: str) -> Contraction:
    """Compute what tiles of some rows leave of the last ones in a nest behind all others."""
    outer, row = (*found.batch, *found.rows[:-1]), found.rows[-1]
    inner = (*found.columns, found.lane)
    trace.do("reorder", (*outer, row, *inner))
    extent = iterations(trace.extent(row))
    trace.do("partition", row, str(extent // size * size), suffix)
    for var in reversed(outer):
        trace.do("fission", var, suffix)
    return replace(
        found,
        batch=tuple(f"{v}{suffix}_2" for v in found.batch),
        rows=(*(f"{v}{suffix}_2" for v in found.rows[:-1]), f"{row}{suffix}"),
        columns=tuple(f"{v}{suffix}" for v in found.columns),
        lane=f"{found.lane}{suffix}",
    )
