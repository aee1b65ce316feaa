"""Rows from memory pass all columns strip by strip.

A tile of columns that is kept while all rows pass reads each of them again. Long lines of many
channels, as of sound or of points, and large images are in no cache by then. Pixels of blocked
channels lie apart, too: a few lines of a cache from each block, which nothing fetches ahead. A
strip of rows that stays in the second cache is read once from memory. All columns pass it, one
behind the other, as they lie in memory, which is fetched ahead.

Before:
    for column:
        for row:

After:
    for row / strip:
        for column:
            for row % strip:
    for column:
        for what strips leave of the rows:

Source: measured on Zen 4, one core. Pointwise convolutions of 16 MB and more: 2 times as fast, with
strips of 15 rows as with 250. Products of 1500 to 3072 rows, whose summands lie side by side: 1 to
1.08 times; of 577, and where columns are read often, 0.94 to 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from dlc.core.target import Target
from dlc.schedule.rules.contraction import Contraction
from dlc.schedule.rules.cut_tiles import is_far, sum_steps
from dlc.schedule.rules.open_rests import apart
from dlc.schedule.rules.stationary import column_tiles, row_tile
from dlc.schedule.trace import Trace
from dlc.te.affine import leaves_some
from dlc.te.transform import free_vars

MEMORY = 4
"""Rows of so many times the second cache come from memory. From the third cache, those of the next
tile arrive while one is multiplied: strips of 2 to 9 MB were 0.97 to 1.03 times as fast."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """How the summands of a row lie."""

    share: int  # of the second cache a part of this holds the rows of a strip; of one line, twice
    slow: float  # times what a byte of columns takes, which is fetched ahead


APART = _Kind(4, 4.0)
TOGETHER = _Kind(2, 0.25)  # fetched ahead, too
LINE_STRIP = 256
IMAGE_STRIP = 8
"""Rows of a line, or lines of an image, in a strip of an open number of them; the third cache holds
these. What strips leave reads all columns once more, so a short line should be no strip at all."""
OPEN_PIXELS = 16  # assumed in a line
ELEMENT_BYTES = 4


@dataclass(frozen=True, slots=True)
class _Strip:
    """So many iterations of a loop over rows, with all of those inside of it."""

    loop: int  # the place among the loops over rows
    size: int


def near_rows(trace: Trace, found: Contraction, target: Target) -> list[Contraction]:
    """Cut rows into strips where that pays; the strips, and what whole ones leave."""
    strip = _choose(trace, found, target)
    if strip is None:
        return [found]
    outer, row = found.rows[: strip.loop], found.rows[strip.loop]
    inside = found.rows[strip.loop + 1 :]
    batch = (*found.batch, *outer)
    parts = [replace(found, batch=batch, rows=(row, *inside))]
    if leaves_some(trace.extent(row), strip.size):
        parts.append(apart(trace, parts[0], strip.size, "_strip", place=0))
    else:
        trace.do("reorder", (*batch, row, *inside, *found.columns, found.lane))
    if strip.size == 1 and inside:
        parts[0] = replace(found, batch=(*batch, row), rows=inside)
    elif trace.constant(row) != strip.size:
        strips, row = trace.split(row, strip.size)
        parts[0] = replace(found, batch=(*batch, strips), rows=(row, *inside))
    return parts


def _choose(trace: Trace, found: Contraction, target: Target) -> _Strip | None:
    """The rows of a strip; None where they are near, or what columns cost is more than they do."""
    if found.within is not None or found.packed is not None or found.breaks is not None:
        return None
    weights, bytes_ = found.column_bytes, _row_bytes(trace, found)
    if weights is None or found.row_stride is None:  # which is known of rows in order alone
        return None
    kind = APART if found.row_stride * 2 <= bytes_ else TOGETHER
    room = max(1, target.l2_bytes // kind.share // bytes_)
    counts = [trace.constant(v) for v in found.rows]
    outside = next((n for n in range(len(counts), 0, -1) if counts[n - 1] is None), 0)
    known = [n for n in counts[outside:] if n is not None]
    tile = row_tile(trace, found, target)
    dims = _image_dims(trace, found)
    if outside and (kind is TOGETHER or dims < 1):
        return None  # rows of an open matrix
    if outside and len(known) < dims:
        strip, rows = _open_strip(counts, dims, -(-LINE_STRIP // tile.rows) * tile.rows)
    elif bytes_ * prod(known) > MEMORY * target.l2_bytes:
        strip, rows = _known_strip(known, outside, room, tile.rows)
    elif outside:  # of an open number of images, one
        strip, rows = _Strip(outside - 1, 1), prod(known)
    else:
        return None
    if strip.loop + 1 < len(counts) and not is_far(found, target):
        return None  # near columns pass a line anyway
    again = column_tiles(trace, found, tile, target)
    return strip if kind.slow * bytes_ * rows * (again - 1) > weights else None


def _image_dims(trace: Trace, found: Contraction) -> int:
    """How many dimensions of the result are those of an image: between its blocks and the lanes."""
    index = trace.stage(found.result).store.index
    blocks = [d for d, i in enumerate(index) if free_vars(i) & {*found.columns}]
    return len(index) - 2 - blocks[0] if blocks else 0


def _row_bytes(trace: Trace, found: Contraction) -> int:
    """What a row is made of; where only a run tells how many there are, each summand for itself."""
    counts = [trace.constant(v) for v in (*found.batch, *found.rows)]
    if found.row_bytes is None or None in counts:
        return sum_steps(trace, found) * ELEMENT_BYTES
    return max(1, found.row_bytes // prod(n or 1 for n in counts))


def _known_strip(counts: Sequence[int], outside: int, room: int, tall: int) -> tuple[_Strip, int]:
    """A strip, and its rows: of whole lines, or where one is too long, of whole tiles.

    There are loops `outside` of those over so many rows.
    """
    last = len(counts) - 1
    loop = next(n for n in range(len(counts)) if prod(counts[n + 1 :]) <= 2 * room or n == last)
    each = prod(counts[loop + 1 :])
    size = _even(counts[loop], max(1, room // each), tall if loop == last else 1)
    return _Strip(outside + loop, size), size * each


def _open_strip(counts: Sequence[int | None], dims: int, rows: int) -> tuple[_Strip, int]:
    """A strip of some lines, or of a line some rows, and about how many rows that is."""
    last = len(counts) - 1
    is_line = dims < 2 or not last
    loop, size = (last, rows) if is_line else (last - 1, IMAGE_STRIP)
    size = min(size, counts[loop] or size)
    return _Strip(loop, size), size * (1 if is_line else OPEN_PIXELS)


def _even(count: int, most: int, tall: int) -> int:
    """How many of `count` go together, at most so many: whole tiles, of which the last has most."""
    if count <= most:
        return count
    sizes = range(max(1, most // tall) * tall, most // 2, -tall)
    return max(sizes, key=lambda n: (n - -count % n) / n, default=tall)
