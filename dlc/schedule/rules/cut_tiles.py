"""Cut the result of a contraction into register tiles, each one a nest of its own.

Whole tiles come first, tails behind them, so that no loop inside of a tile has a guard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import prod

from dlc.core.target import Target
from dlc.schedule.asking import LINE_BYTES
from dlc.schedule.edit import loops_around
from dlc.schedule.instruction import ADDED_APART, DOT_2XBF16_F32
from dlc.schedule.loop import For, If, loops
from dlc.schedule.rules.contraction import Contraction
from dlc.schedule.rules.open_rests import group_columns, open_rests, rests_within, vectors_of
from dlc.schedule.rules.prepare import loop_around
from dlc.schedule.rules.tile import (
    ALL_NEAR,
    LARGE,
    MOST_COLUMNS,
    TAIL_ROWS,
    Tile,
    choose_tile,
    most_rows,
    near_columns,
    vector_registers,
)
from dlc.schedule.trace import Trace
from dlc.te.affine import iterations, leaves_some, whole_groups
from dlc.te.expr import Const
from dlc.te.simplify import surely_at_most, surely_divides, surely_equal

# Blocks of columns that one row reads from afar at a time. Source: measured on Zen 4, AVX-512: 4
# that nobody asks for take 0.8 to 0.9 of the time of 8 that are asked for, of 1 to 411 MB.
ROW_STREAMS = 4
# The same of words of a few bits, whatever reads them: of DRAM's bandwidth, 4 have 0.65, one all.
WORD_STREAMS = 1
FEW_STREAMS = 2  # vectors of columns that a tile has anyway
MANY_ROWS = 32  # that are several tiles for sure
COLUMNS_PART = 2  # of the second cache at most this part is columns that all rows pass
OPEN_VECTORS = 2  # of columns in a tile, where their number is open: what is left of them is masked


@dataclass(frozen=True, slots=True)
class Leaf:
    """One tile shape: its loops. None where there is no such loop (left)."""

    lane: str
    column: str | None
    row: str | None
    above: str | None
    tile: Tile

    def loops(self, trace: Trace) -> list[str]:
        """The loops of the tile, outermost first."""
        inside = {self.row, self.above, self.column, self.lane}
        return [v for v in loops_down_to(trace, self.lane) if v in inside]


def loops_down_to(trace: Trace, name: str) -> list[str]:
    """The loops around a loop, outermost first, itself last."""
    return [loop.var for loop in loops_around(trace.func, name)]


def loop_outside(trace: Trace, found: Contraction, name: str) -> str | None:
    """The loop directly outside of a loop, None where that is no loop of the contraction."""
    outer = loop_around(trace.func, name)
    return None if outer == found.within else outer


def cut_tiles(
    trace: Trace,
    found: Contraction,
    target: Target,
    knobs: Mapping[str, int],
    *,
    columns_outside: bool,
) -> list[Leaf]:
    """Cut lanes, columns and rows; the loops of each tile.

    With `columns_outside`, a tile of columns is kept while all rows pass.
    """
    lanes = target.lanes(4)
    registers = tile_registers(found, target)
    most = most_rows(found.row_stride, target)
    steps = sum_steps(trace, found)
    passes = _row_count(trace, found) >= MANY_ROWS and found.parts is None
    choose = partial(
        choose_tile,
        registers=registers,
        fmas=multiply_adds(found, target),
        loads=target.vector_loads,
        steps=steps,
        most_columns=_streams(trace, found, target, columns_outside),
        near=near_columns(steps, target) if passes else ALL_NEAR,
    )
    cut = _Cut(trace, found, knobs, lanes, registers, most, choose, columns_outside)
    if columns_outside and found.within is None and is_far(found, target):
        cut = replace(cut, found=group_columns(trace, found, cut.body(), target))
    cut = replace(cut, found=rests_within(trace, cut.found, lanes))
    rests = open_rests(trace, cut.found, lanes)
    cuts = [cut, *(replace(cut, found=part, knobs={}, rest=rows) for part, rows in rests)]
    return [leaf for cut in cuts for part in cut.columns() for leaf in cut.rows(part)]


def _streams(trace: Trace, found: Contraction, target: Target, columns_outside: bool) -> int:
    """How many vectors of columns are read at the same time, at most."""
    if found.parts is not None and is_far(found, target):
        return WORD_STREAMS
    if is_stream(trace, found, target):
        return ROW_STREAMS
    return _near_columns(trace, found, target) if columns_outside else MOST_COLUMNS


def _near_columns(trace: Trace, found: Contraction, target: Target) -> int:
    """How many vectors of columns stay in the second cache while all rows pass them, at most.

    Those of a tile or two of rows are read once. Source: ADR 88.
    """
    if _row_count(trace, found) < MANY_ROWS or not found.column_bytes or not is_far(found, target):
        return MOST_COLUMNS
    vector_bytes = sum_steps(trace, found) * target.vector_bits // 8
    return min(MOST_COLUMNS, max(FEW_STREAMS, target.l2_bytes // COLUMNS_PART // vector_bytes))


def _row_count(trace: Trace, found: Contraction) -> int:
    """How many rows pass the columns; many where only a run tells."""
    return prod(trace.constant(v) or MANY_ROWS for v in found.rows)


def is_far(found: Contraction, target: Target) -> bool:
    """Whether the column operand comes from beyond the L2 cache."""
    size = found.column_bytes
    return size is None or size > target.l2_bytes // 2


def is_stream(trace: Trace, found: Contraction, target: Target) -> bool:
    """Whether each column block is read once, from its beginning to its end, by a single row.

    Such blocks the hardware fetches ahead by itself.
    """
    is_made_here = found.within is not None and found.column_bytes is None
    is_blocked = found.column_line is not None and found.column_line <= LINE_BYTES
    is_row = all(trace.constant(v) == 1 for v in found.rows)
    return is_row and is_blocked and not is_made_here and is_far(found, target)


def tile_registers(found: Contraction, target: Target) -> int:
    """How many vector registers a tile may fill.

    Products of pairs of i16 are added by an instruction of its own, so they need one themselves.
    Sums of scaled parts have a second register for the part, and one scales it; what is added in
    16 bits on the way takes two more.
    """
    if found.parts is not None:
        others = 1 if target.byte_products == 4 else 3
        return (vector_registers(target, target.lanes(4)) - others) // 2
    return vector_registers(target, target.lanes(4)) - (found.at_once in ADDED_APART)


def multiply_adds(found: Contraction, target: Target) -> int:
    """How many multiply-adds start in a cycle, as far as tiles go.

    Pairs of bf16 are fed by broadcasts worse: a single vector of columns takes 1.25 times as long.

    Source: measured on Zen 4.
    """
    return 2 if found.at_once is DOT_2XBF16_F32 else target.multiply_adds


def sum_steps(trace: Trace, found: Contraction) -> int:
    """How many multiply-adds a sum takes; many where only a run tells."""
    if found.parts is not None:
        return LARGE
    inner = trace.stage(found.sum).inner
    each = inner[:-1] if found.at_once else inner  # one instruction takes the innermost
    return prod(trace.constant(f.var) or LARGE for f in each)


@dataclass(frozen=True, slots=True)
class _Cut:
    trace: Trace
    found: Contraction
    knobs: Mapping[str, int]
    lanes: int
    registers: int
    most_rows: int
    choose: Callable[..., Tile]  # of rows, high, columns, and the most rows
    columns_outside: bool
    rest: int = 0  # rows of a tile, where it is of what is left of an open number of them

    def body(self) -> int:
        """Vectors of columns of a tile of an open number of rows."""
        count = vectors_of(self.trace, self.found, self.lanes)
        wanted = self.knobs.get("columns", 0)
        return wanted or self.choose(None, 1, count, most=self.most_rows).columns

    def columns(self) -> list[Leaf]:
        """Cut lanes and columns; each part has the loops [..., columns, rows..., ci, lane]."""
        trace, found = self.trace, self.found
        width = trace.constant(found.lane)
        if width is not None and width <= self.lanes:
            column = found.columns[-1] if found.columns else None
            trace.do("reorder", tuple(self._order(list(found.columns), [found.lane])))
            return self._tile_columns(Leaf(found.lane, column, None, None, Tile(1, 1, 1)))
        columns = [*found.columns, found.lane]
        trace.do("reorder", tuple(self._order(columns, [])))
        parts = [found.lane]
        if (whole := self._whole_lanes(width)) is not None:
            trace.do("partition", found.lane, whole, "_n")
            parts.append(f"{found.lane}_n")
        leaves: list[Leaf] = []
        for name in parts:
            column, suffix = None, "_n" if name.endswith("_n") else ""
            if width is None or not suffix:
                column, name = trace.split(name, self.lanes)
            self._sink(name)
            leaf = Leaf(name, column, None, None, Tile(1, 1, 1))
            leaves += self._tile_columns(leaf, suffix)
        return leaves

    def _whole_lanes(self, width: int | None) -> int | str | None:
        """Where lanes are cut, so that only what is left of whole vectors is guarded.

        What instructions add at once lies in panels of whole vectors anyhow, but within a nest.
        """
        if width is not None:
            return width // self.lanes * self.lanes if width % self.lanes else None
        if self.found.at_once and self.found.within is None:
            return None
        extent, group = self.trace.extent(self.found.lane), self._open_vectors() * self.lanes
        return str(whole_groups(extent, group)) if leaves_some(extent, group) else None

    def _vectors(self, column: str) -> int:
        """How many vectors of columns there are for a tile; of an open number, those of a group.

        What is left of whole groups is masked: one vector at a time.
        """
        count, group = self.trace.constant(column), self._open_vectors()
        rest = group if surely_divides(group, self.trace.extent(column)) else 1
        return rest if count is None else count

    def _open_vectors(self) -> int:
        """How many vectors of an open number of columns go together."""
        rows = self.found.rows[-1] if self.found.rows else None
        return self._choose(rows, None, OPEN_VECTORS).columns

    def _order(self, column: list[str], lane: list[str]) -> list[str]:
        """All loops of the result, columns outside or inside the rows."""
        found = self.found
        rows = list(found.rows)
        if self.columns_outside:
            return [*found.batch, *column, *rows, *lane]
        return [*found.batch, *rows[:-1], *column, *rows[-1:], *lane]

    def _tile_columns(self, leaf: Leaf, suffix: str = "") -> list[Leaf]:
        trace = self.trace
        names = set(loops(trace.func.body))
        rows = [f"{r}{suffix}" if f"{r}{suffix}" in names else r for r in self.found.rows]
        row = rows[-1] if rows else None
        # Rows shared with the other lanes cannot move into this part's tile.
        above = rows[-2] if len(rows) > 1 and leaf.lane in self._nested(rows[-2]) else None
        count = 1 if leaf.column is None else self._vectors(leaf.column)
        tile = self._choose(row, above, count)
        leaf = replace(leaf, row=row, above=above, tile=tile)
        if leaf.column is None:
            return [replace(leaf, tile=replace(tile, columns=1))]
        result: list[Leaf] = []
        for part, size in self._cut(leaf, "column", tile.columns, "_c"):
            assert part.column is not None
            inner = part.column
            if trace.constant(inner) != size:
                inner = trace.split(inner, size)[1]
            self._sink(inner, before=part.lane)
            result.append(replace(part, column=inner, tile=replace(part.tile, columns=size)))
        return result

    def _choose(self, row: str | None, above: str | None, columns: int | None) -> Tile:
        rows = self.rest or (self.trace.constant(row) if row else 1)
        if rows is not None and self.found.breaks and not self.rest:
            rows = max(b - a for a, b in pairwise((0, *self.found.breaks, rows)))
        high = self.trace.constant(above) if above and not self.rest else 1
        most = self.most_rows if rows is not None or row is None else self._most(row)
        tile = self.choose(rows, high, columns, most=most)
        wanted_rows, wanted_columns = self.knobs.get("rows", 0), self.knobs.get("columns", 0)
        wanted_high = self.knobs.get("high", 0)
        if wanted_rows:
            tile = Tile(1, min(wanted_rows, rows or wanted_rows), tile.columns)
        if wanted_columns:
            tile = replace(tile, columns=min(wanted_columns, columns or wanted_columns))
        if wanted_high:
            tile = replace(tile, high=min(wanted_high, high or wanted_high))
        # Several image rows only where a tile holds whole rows, whose summands are the same.
        if (rows or 2) > tile.rows or self.found.breaks is not None:
            tile = replace(tile, high=1)
        return tile

    def _most(self, row: str) -> int:
        """How many of an open number of rows a tile may have: there may be few in any run."""
        extent = self.trace.extent(row)
        if not surely_at_most(extent, self.registers):
            return self.most_rows
        counts = range(TAIL_ROWS, self.registers + 1)
        return min(self.most_rows, next(n for n in counts if surely_at_most(extent, n)))

    def rows(self, leaf: Leaf) -> list[Leaf]:
        """Cut the rows of one part into full tiles and tails."""
        trace = self.trace
        result: list[Leaf] = []
        inside = leaf.above is not None and (leaf.column or leaf.lane) in self._nested(leaf.above)
        high = leaf.tile.high if inside else 1
        tall = self._cut(leaf, "above", high, "_y") if high > 1 else [(leaf, 1)]
        for part, high in tall:
            above = part.above
            if high > 1 and above is not None and trace.constant(above) != high:
                above = trace.split(above, high)[1]
            inner_above = above if high > 1 else None
            if inner_above is not None:
                self._sink(inner_above, before=part.column or part.lane)
            part = replace(part, above=inner_above)
            for each, size in self._pieces(part):
                row = each.row
                if row is not None and trace.constant(row) != size:
                    row = trace.split(row, size)[1]
                if row is not None:
                    self._sink(row, before=each.lane)
                result.append(replace(each, row=row, tile=Tile(high, size, each.tile.columns)))
        return result

    def _pieces(self, leaf: Leaf) -> list[tuple[Leaf, int]]:
        """Whole tiles of rows and tails, where rows that leave out other summands are no tile."""
        found: list[tuple[Leaf, int]] = []
        begin = 0
        for number, end in enumerate(self.found.breaks or ()):
            assert leaf.row is not None
            self.trace.do("partition", leaf.row, end - begin, f"_b{number}")
            found += self._cut(leaf, "row", leaf.tile.rows, "_x")
            leaf, begin = self._renamed(leaf, f"_b{number}"), end
        return [*found, *self._cut(leaf, "row", leaf.tile.rows, "_x")]

    def _cut(self, leaf: Leaf, role: str, size: int, suffix: str) -> list[tuple[Leaf, int]]:
        """Partition the loop of a role into whole tiles and a tail; both with their tile size."""
        name = getattr(leaf, role)
        if name is None:
            return [(leaf, 1)]
        trace = self.trace
        extent = trace.extent(name)
        if isinstance(extent, Const):
            whole, rest = divmod(int(extent.value), size)
            if not whole:
                return [(leaf, rest)]
            if not rest:
                return [(leaf, size)]
            trace.do("partition", name, whole * size, suffix)
            return [(leaf, size), (self._renamed(leaf, suffix), rest)]
        if role == "column":
            return [(leaf, size if surely_divides(size, extent) else 1)]
        if size == 1 or surely_divides(size, extent):
            return [(leaf, size)]
        extent = iterations(extent)
        whole_tiles = extent // size * size
        if surely_equal(whole_tiles, 0):
            return self._cut(leaf, role, TAIL_ROWS if size > TAIL_ROWS else 1, suffix)
        trace.do("partition", name, str(whole_tiles), suffix)
        tail = self._renamed(leaf, suffix)
        if size > TAIL_ROWS and size % TAIL_ROWS == 0:  # else the cut is not surely inside
            return [(leaf, size), *self._cut(tail, role, TAIL_ROWS, suffix)]
        return [(leaf, size), (tail, 1)]

    def _renamed(self, leaf: Leaf, suffix: str) -> Leaf:
        """The leaf after partition: loops inside of the cut one exist twice."""
        names = loops(self.trace.func.body)

        def copy(name: str | None) -> str | None:
            return f"{name}{suffix}" if name is not None and f"{name}{suffix}" in names else name

        lane = copy(leaf.lane)
        assert lane is not None
        return Leaf(lane, copy(leaf.column), copy(leaf.row), copy(leaf.above), leaf.tile)

    def _sink(self, name: str, before: str | None = None) -> None:
        """Move a loop inside all loops it contains (but outside of `before`)."""
        chain = [name, *self._nested(name)]
        order = chain[1:]
        order.insert(order.index(before) if before else len(order), name)
        if order != chain:
            self.trace.do("reorder", tuple(order))

    def _nested(self, name: str) -> list[str]:
        """The loops inside of a loop with nothing beside them, outermost first."""
        chain: list[str] = []
        stmt = self.trace.loop(name).body
        while isinstance(stmt, For | If):
            if isinstance(stmt, For):
                chain.append(stmt.var)
            stmt = stmt.body
        return chain
