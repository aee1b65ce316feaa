"""What tiles leave of an open number of rows becomes nests of its own.

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
        for column:
            for y % 4 / 3:  three lines; likewise two, and one

Each nest reads all columns. Those that come from beyond the second cache are cut into groups that
stay there, and all nests pass one group before the next.
"""

from __future__ import annotations

from dataclasses import replace

from dlc.core.target import Target
from dlc.schedule.rules.contraction import Contraction
from dlc.schedule.rules.lines import is_shared
from dlc.schedule.rules.operands import is_unpacked
from dlc.schedule.rules.tile import MOST_COLUMNS, TAIL_ROWS
from dlc.schedule.trace import Trace
from dlc.te.affine import leaves_some, whole_groups
from dlc.te.simplify import surely_equal

FEW_ROWS = {3: "_pair", 2: "_single"}  # left of fours, as tiles; what is left of those in turn


def open_rests(trace: Trace, found: Contraction, lanes: int) -> list[tuple[Contraction, int]]:
    """Cut off what is left of rows whose number a run tells; each with the rows of its tiles.

    Rows within a nest, whose lines may be guarded, stay along their line. Where all columns are one
    vector of `lanes`, there are no more of them for a row.
    """
    if not _leaves_rows(trace, found, lanes):
        return []
    rest = apart(trace, found, TAIL_ROWS, "_rest")
    if found.within is not None or len(found.rows) == 1:
        return _few(trace, rest)
    *others, below, along = rest.rows
    turned = replace(rest, rows=(*others, along, below))
    if not _is_open(trace, below):
        return [(turned, TAIL_ROWS)]
    return [(turned, TAIL_ROWS), *_few(trace, apart(trace, turned, TAIL_ROWS, "_corner"))]


def vectors_of(trace: Trace, found: Contraction, lanes: int) -> int | None:
    """How many vectors there are along the last loop over columns; None where not all are whole."""
    width = trace.constant(found.lane)
    if width == lanes and found.columns:
        return trace.constant(found.columns[-1])
    return width // lanes if width and width % lanes == 0 else None


def group_columns(trace: Trace, found: Contraction, tile: int, target: Target) -> Contraction:
    """Let all rows pass as many columns as the second cache holds, before the next of them do.

    `tile` is how many vectors of columns a tile has. The groups are as many as cores share evenly.
    Tiles that choose their columns pass those of their choice; single rows all of them at once.
    """
    lanes = target.lanes(4)
    count, size = vectors_of(trace, found, lanes), found.column_bytes
    is_left = (
        _leaves_rows(trace, found, lanes) if found.choices is None else _are_tiles(trace, found)
    )
    if count is None or not size or len(found.columns) > 1 or not is_left:
        return found
    size //= found.choices or 1
    limit = MOST_COLUMNS if found.choices is None else count
    loop, vector = (found.columns[0], 1) if found.columns else (found.lane, lanes)
    if trace.constant(loop) != count * vector:
        return found
    most = min(limit, max(tile, target.l2_bytes // 2 * count // size))
    groups = [n for n in range(tile, most + 1) if count % n == 0]
    fair = [n for n in groups if not is_shared(count // n, target)]
    if not fair or (found.choices and fair[-1] == count):
        return found
    group, each = trace.split(loop, fair[-1] * vector)
    columns, lane = ((each,), found.lane) if found.columns else ((), each)
    outer = (group, *found.batch) if found.choices else (*found.batch, group)
    trace.do("reorder", (*outer, *found.rows, *columns, lane))
    return replace(found, batch=(), columns=columns, lane=lane)


def rests_within(trace: Trace, found: Contraction, lanes: int) -> Contraction:
    """Leave what tiles leave of each matrix of a larger nest with that matrix.

    Its columns are still near then, where those of all matrices are not.
    """
    if found.within is None or not found.batch or not _leaves_rows(trace, found, lanes):
        return found
    trace.do("reorder", (*found.batch, *found.rows, *found.columns, found.lane))
    return replace(found, batch=())


def _are_tiles(trace: Trace, found: Contraction) -> bool:
    """Whether several rows make the same choice."""
    return any(trace.constant(row) != 1 for row in found.rows)


def _few(trace: Trace, rest: Contraction) -> list[tuple[Contraction, int]]:
    """Tiles for three rows, for two and for one: of less than four, one of them takes all.

    Numbers that are never left, as three of an even number, have none.
    """
    parts = []
    for rows, behind in FEW_ROWS.items():
        extent = trace.extent(rest.rows[-1])
        tiled = whole_groups(extent, rows)
        if surely_equal(tiled, 0):
            continue
        parts.append((rest, rows))
        if surely_equal(tiled, extent):
            return parts
        rest = apart(trace, rest, rows, behind)
    return [*parts, (rest, 1)]


def _leaves_rows(trace: Trace, found: Contraction, lanes: int) -> bool:
    """Whether tiles leave rows that are nests of their own."""
    width = trace.constant(found.lane)
    one_vector = not found.columns and width is not None and width <= lanes
    gathered = found.packed is not None and not is_unpacked(trace.func, found.packed)
    if gathered or one_vector or not found.rows:
        return False
    return _is_open(trace, found.rows[-1])


def _is_open(trace: Trace, row: str) -> bool:
    """Whether a loop may leave rows that are less than the smallest tile, behind such tiles."""
    return trace.constant(row) is None and leaves_some(trace.extent(row), TAIL_ROWS)


def apart(trace: Trace, found: Contraction, size: int, suffix: str, place: int = -1) -> Contraction:
    """Compute what groups of `size` leave of a loop over rows in a nest behind all others.

    The loop is the one in a `place` among those over rows: the last one, unless it is said.
    """
    place %= len(found.rows)
    outer, inner = found.rows[:place], found.rows[place:]
    trace.do("reorder", (*found.batch, *found.rows, *found.columns, found.lane))
    trace.do("partition", inner[0], str(whole_groups(trace.extent(inner[0]), size)), suffix)
    for var in reversed((*found.batch, *outer)):
        trace.do("fission", var, suffix)
    return replace(
        found,
        batch=tuple(f"{v}{suffix}_2" for v in found.batch),
        rows=(*(f"{v}{suffix}_2" for v in outer), *(f"{v}{suffix}" for v in inner)),
        columns=tuple(f"{v}{suffix}" for v in found.columns),
        lane=f"{found.lane}{suffix}",
    )
