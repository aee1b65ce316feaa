"""How much of a result a matrix engine computes at a time: an analytic choice.

A strip is some lines of the result. Its row operand is split into planes once, and its sums of 32
columns stay in the first cache until they are read. Either each strip passes all columns (they are
read again for each strip), or each 32 columns pass all strips (the row operand of all strips lies
in the second cache, or is read again from the third).

A strip that all columns pass stays in the second cache while they stream past it. They are read
from beyond it again for each strip, where all of them together do not fit beside it.

Source: measurements with real data: products of tiles take what the target says, which the loads
of operands from the second cache hide; 8 bytes in a cycle from beyond it. `TILE_PLANE` is 1.25
times what llvm-mca says, as `PLANE` is.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product

from dlc.core.target import Target
from dlc.schedule.space import Limit, Space

ROWS = 16
DEPTH = 32
TALL = 4  # tiles of rows that are accumulated at a time where one of columns is
LONELY = 1.2  # how much longer a product takes where one tile of rows shares no loads
PLANE = 8.0  # cycles to split 32 elements, for each plane
TILE_PLANE = 5.5  # the same of columns, which conversions of two vectors at once lay out in tiles
RESULT = 12.0  # cycles to finish one row of 32 sums
PANEL = 300.0  # cycles to begin with 32 columns of a strip
START = 120.0  # the same of 32 rows of a line, whose sums are read before the next
FAR_BYTES = 8.0  # bytes in a cycle from beyond the second cache
SHARED_BYTES = 1.6  # the same of what another core has just written
FREE_SHARE = 0.45  # of the second cache, up to which all that is read again is still there
OPEN_ROWS = 128  # assumed where their number is known at run time only
OPEN_SHARE = 0.65  # of the second cache, for the row operand of a strip of an open number of rows
MAX_LINES = 4  # lines of an image in a strip: more would leave small images to one thread
MAX_PAIRS = 16  # pairs of tiles in such a strip
STRIPS = (*range(1, 9), 10, 12, 14, 16, 19, 20, 24, 28, 32, 40, 48, 56, 64, 96, 128)  # to try
GROUPS = (1, 2, 3, 4, 6, 8, 16)  # pairs of blocks of columns that pass a strip, to try
AHEADS = (0, 1, 2, 4)  # how far ahead columns are asked for, to try
MOST_TILES = 6  # accumulators: two registers are left for their operands
MAX_SUMS_BYTES = 48 * 1024  # beyond it the sums of a strip fall out of the first cache


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a sum of products of planes."""

    lead: int  # how often all of it is done
    lines: int  # iterations of the outermost loop over rows
    width: int  # rows from one line to the next
    last: int  # rows of the last line of a strip
    reach: int  # rows that the kernel reads further
    spare: int  # rows that the sums have behind those that are read
    columns: int  # panels of 32 columns
    steps: int  # products of tiles, without the planes
    products: int  # of planes, for each of them
    planes: int
    row_bytes: int  # planes of one row of the operand
    constant: bool = True  # whether the columns are, which then stream through the cache

    @property
    def is_near(self) -> bool:
        """Whether the columns are in the second cache: an only row reads them again in a loop."""
        return self.lead * self.lines == 1


@dataclass(frozen=True, slots=True)
class Strip:
    """The lines of a strip, and whether columns are the outer loop."""

    lines: int
    columns_outside: bool
    tall: bool = False  # accumulators are four tiles of rows by one of columns


def choose_strip(shape: Shape, target: Target, knobs: Mapping[str, int]) -> Strip | None:
    """The cheapest strip that the sums have room for, if any; knobs other than 0, -1 decide."""
    outside = knobs.get("columns_outer", -1)
    orders = (False, True) if outside < 0 else (bool(outside),)
    wide = knobs.get("wide", 0)
    # Rows that serve several positions of the kernel stay in the first cache; others do not. Where
    # there are several passes, all but the first read columns from the second cache anyway. Of one
    # plane, each product would load its row operand.
    one_pass = shape.planes > 1 and strip_rows(shape, shape.lines) <= TALL * ROWS
    talls = (False, True) if shape.reach > 0 and one_pass and not wide else (wide == 1,)
    fitting = fitting_lines(shape)
    wanted = [lines for lines in fitting if lines == min(knobs.get("strip", 0), shape.lines)]
    return _cheapest(shape, tuple(wanted or fitting), orders, talls, target)


def strip_space(shape: Shape, target: Target) -> Space:
    """Strips and tiles of products, those choices that differ for them.

    `columns_outer` is 0 where strips are the outer loop, else the pairs of blocks of columns that
    pass one strip before the next. `high` by `wide` tiles are accumulated at a time;
    `planes_inside` and `ahead` are those of `Accumulators`.
    """
    plan = choose_strip(shape, target, {})
    assert plan is not None, "a space is asked for where there is one"
    fitting = fitting_lines(shape)
    strips = {plan.lines, fitting[-1], *STRIPS} & set(fitting)
    tiles = min(MOST_TILES, strip_rows(shape, fitting[-1]) // ROWS)
    groups = (g for g in GROUPS if shape.columns % g == 0 and (g == 1 or g < shape.columns))
    return Space(
        {
            "strip": tuple(sorted(strips)),
            "columns_outer": (0, *groups),
            "high": tuple(range(1, tiles + 1)),
            "wide": (1, 2),
            "planes_inside": (0, 1) if shape.products > 1 else (0,),
            "ahead": AHEADS if shape.columns > 1 else (1,),
        },
        (Limit(("high", "wide"), MOST_TILES),),
    )


@functools.lru_cache(maxsize=1 << 12)  # layers of one shape repeat
def _cheapest(
    shape: Shape,
    lines: tuple[int, ...],
    orders: tuple[bool, ...],
    talls: tuple[bool, ...],
    target: Target,
) -> Strip | None:
    options = [Strip(*each) for each in product(lines, orders, talls)]
    if len(talls) > 1:  # several strips would be several passes
        options = [s for s in options if not s.tall or s.lines == shape.lines]
    return min(options, key=lambda strip: cycles(shape, strip, target), default=None)


def choose_pairs(shape: Shape, target: Target, knobs: Mapping[str, int]) -> int:
    """How many pairs of tiles a strip of an open number of rows has: a power of two.

    All columns pass a strip, and read its row operand again: it has to stay in the second cache.
    """
    wanted = knobs.get("strip", 0) // (2 * ROWS)
    if wanted:
        return min(wanted, MAX_PAIRS)
    room = int(target.l2_bytes * OPEN_SHARE) // (2 * ROWS * shape.row_bytes)
    return min(MAX_PAIRS, 1 << max(room, 1).bit_length() - 1)


def choose_lines(shape: Shape, target: Target, knobs: Mapping[str, int]) -> int:
    """How many lines of an image of an open size a strip has: a power of two.

    All columns pass a strip, and read its row operand again: it has to stay in the second cache.
    """
    wanted = knobs.get("strip", 0)
    if wanted:
        return min(wanted, MAX_LINES)
    room = int(target.l2_bytes * OPEN_SHARE) // max(shape.lines * shape.row_bytes, 1)
    return min(MAX_LINES, 1 << max(room, 1).bit_length() - 1)


def open_cycles(shape: Shape, target: Target) -> float:
    """An estimate of the time of all products of an open number of rows, `lines` of them."""
    lines = min(shape.lines, choose_pairs(shape, target, {}) * 2 * ROWS)
    strip = cycles(replace(shape, lines=lines), Strip(lines, columns_outside=True), target)
    if not shape.constant:  # each strip makes the planes of the columns
        strip += shape.steps * shape.columns * 2 * ROWS * shape.planes * TILE_PLANE
    return strip * -(-shape.lines // lines)


def lines_cycles(shape: Shape, blocks: int, target: Target) -> float:
    """An estimate of the time of a strip of an image of an open size, of `blocks` of 16 columns.

    The lines are cut into pairs of tiles, of which the last is half empty on average.
    """
    pairs = MAX_LINES / (2 * ROWS) * (shape.lines / MAX_LINES + ROWS)
    panel = 2 * shape.steps * shape.products * 2 * target.tile_cycles + 2 * ROWS * RESULT + START
    held_bytes = (shape.lines + shape.reach) * shape.row_bytes
    columns_bytes = shape.steps * DEPTH * ROWS * 2 * shape.planes * blocks
    far = _missed(held_bytes + columns_bytes, target) * columns_bytes / FAR_BYTES
    return pairs * panel * blocks / 2 + held_bytes / 64 * PLANE + far


def columns_stay(shape: Shape, strip: Strip, target: Target) -> bool:
    """Whether strips find all columns in the second cache, where one before left them.

    Each core has strips of its own: half of them at least find what another has read.
    """
    strips = shape.lead * -(-shape.lines // strip.lines)
    if strip.columns_outside or strip.lines >= shape.lines or strips < 2 * target.cores:
        return False
    held_bytes = (strip_rows(shape, strip.lines) + shape.reach) * shape.row_bytes
    return _missed(held_bytes + shape.columns * _panel_bytes(shape), target) == 0.0


def _panel_bytes(shape: Shape) -> int:
    """What 32 columns take."""
    return shape.steps * DEPTH * 2 * ROWS * 2 * shape.planes


def _missed(size_bytes: float, target: Target) -> float:
    """The share of what is read again and again that is not in the second cache any more."""
    share = size_bytes / target.l2_bytes
    return min(1.0, max(0.0, (share - FREE_SHARE) / (1.0 - FREE_SHARE)))


def strip_rows(shape: Shape, lines: int) -> int:
    """The rows of a strip, in whole tiles."""
    return -(-((lines - 1) * shape.width + shape.last) // ROWS) * ROWS


def fitting_lines(shape: Shape) -> list[int]:
    """The numbers of lines that strips may have."""
    return [lines for lines in range(1, shape.lines + 1) if _fits(shape, lines)]


def _fits(shape: Shape, lines: int) -> bool:
    """Whether the rows of the last strip are there."""
    begin = -(-shape.lines // lines) * lines - lines
    rows = (shape.lines - 1) * shape.width + shape.last + shape.spare
    return begin * shape.width + strip_rows(shape, lines) <= rows


def _panel(shape: Shape, strip: Strip, tiles: int, target: Target) -> float:
    """Cycles of the products of 32 columns with some tiles of rows."""
    each = shape.steps * shape.products * 2 * target.tile_cycles
    if strip.tall:
        return tiles * each
    return (tiles - tiles % 2 + tiles % 2 * LONELY) * each


def cycles(shape: Shape, strip: Strip, target: Target) -> float:
    """An estimate of the time of all products."""
    rows = strip_rows(shape, strip.lines)
    strips = -(-shape.lines // strip.lines)
    tiles = rows // ROWS
    panel = _panel(shape, strip, tiles, target)
    panel += strip.lines * shape.width * RESULT + PANEL
    if rows * 2 * ROWS * 4 > MAX_SUMS_BYTES:
        panel += rows * RESULT
    total = panel * shape.columns * strips
    panel_bytes = _panel_bytes(shape)
    columns_bytes = panel_bytes * shape.columns
    if strip.columns_outside:
        held, again, tasks = shape.lines * shape.width + shape.reach, 1, shape.columns
        # The cores share the splitting, and each then reads what the others have split.
        total += held * shape.row_bytes * (target.cores - 1) / SHARED_BYTES
        read_again = panel_bytes
    else:
        held, again, tasks = rows + shape.reach, strips, shape.lead * strips
        read_again = columns_bytes
    held_bytes = held * shape.row_bytes
    total += held_bytes * again / 64 * PLANE
    missed = _missed(held_bytes + panel_bytes, target)
    total += missed * held_bytes * again * shape.columns / FAR_BYTES
    total += _missed(held_bytes + read_again, target) * columns_bytes * again / FAR_BYTES
    first = panel_bytes / FAR_BYTES
    if strip.tall and strip.columns_outside:
        first = max(0.0, first - panel * strips)  # it is asked for while the columns before pass
    else:
        first /= 2
    if not shape.is_near:
        total += first * shape.columns
    rounds = -(-tasks // target.cores)
    return shape.lead * total * rounds * target.cores / max(tasks, 1)
