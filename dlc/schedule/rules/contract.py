"""Sums of products: dense layers, batched matrix products and convolutions.

One operand (`columns`) varies along the innermost dimension of the result, the other (`rows`) does
not. The result is cut into register tiles (`cut_tiles.py`): some rows by some vectors of columns,
accumulated in registers over the whole reduction, and written once with everything that was fused
behind it. `stationary.py` says which operand stays near meanwhile, and `gather_columns.py` brings
columns together that lie apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from dlc.core.target import Target
from dlc.schedule.asking import LINE_BYTES
from dlc.schedule.instruction import ADDED_APART, DOT_2XBF16_F32
from dlc.schedule.loop import Func, allocs, loops
from dlc.schedule.nest import stages
from dlc.schedule.rules.contraction import Contraction, find_contraction, shared_terms
from dlc.schedule.rules.cut_tiles import (
    Leaf,
    cut_tiles,
    is_far,
    is_stream,
    tile_registers,
)
from dlc.schedule.rules.dot import add_up_along, find_dot
from dlc.schedule.rules.gather_columns import gather_columns
from dlc.schedule.rules.near_rows import near_rows
from dlc.schedule.rules.next_columns import ask_for_next
from dlc.schedule.rules.next_rows import ask_for_next_rows
from dlc.schedule.rules.own_sums import accumulate, own_sums, write_result
from dlc.schedule.rules.planes import split_rows
from dlc.schedule.rules.prepare import unroll_factor
from dlc.schedule.rules.scattered import scattered_columns
from dlc.schedule.rules.stationary import columns_stay, shares_columns
from dlc.schedule.rules.subtotals import chain_lengths, cut_sum
from dlc.schedule.rules.tile import Tile
from dlc.schedule.space import Limit, Space
from dlc.schedule.trace import Trace
from dlc.te.expr import ONE, Const, Expr
from dlc.te.transform import loads

SUBTOTAL_STEPS = 3  # instructions that add a vector of subtotals: a load, an addition, a store
MAX_STEPS = 16  # reduction steps written out in one iteration
OPEN_STEPS = 4  # the same of an open number of them: what is left runs one by one
PREFETCH_BYTES = 4096  # ahead of columns from beyond the L2 cache: what 100 ns of products take
PREFETCH_SHARE = 4  # of the L1 cache at most a part of this is filled with what is asked for
MAX_PASSES = 16  # tiles of rows that read the same columns; only the first finds them far away
OPEN_PASSES = 2  # over columns between transforms, assumed where their number is open
OPEN_ROWS = 128  # assumed altogether where their number is known at run time only
ROWS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28)  # of a tile, to try
COLUMNS = (0, 1, 2, 3, 4, 6)  # vectors of a tile, to try
STEPS = (0, 1, 2, 4, 8, 16, 32)  # reduction steps in one iteration, to try
AHEADS = (-1, 0, 1024, 2048, 4096, 8192)  # bytes of columns to ask ahead for, to try
LARGE_TILE = 8
"""Vectors of sums of pairs of i16 for which a long loop has one step in an iteration: of several,
each sum lies in another register than before, and some in memory. Measured on Zen 3: 1.03 times
the rate, while a tile of 4 lost as much."""
MAX_FMAS = 64
"""Multiply-adds in one iteration. Measured on Zen 5: 48 and 128 are as fast, while 400 take 1.01 to
1.05 times as long in whole models, and 1.1 where columns lie apart."""


def match(func: Func, target: Target) -> Contraction | None:
    """The contraction in a function whose moves are inlined, or None."""
    found = find_contraction(func)
    if found is None or found.packed is not None:
        return found
    return replace(found, packed=scattered_columns(func, found, target))


def space(func: Func, target: Target) -> Space:
    """Tile sizes, orders of loops, unrolling, and bytes of columns that are asked for `ahead`.

    0 and -1 stand for the analytic choice; no byte at all is 0. `high` image rows make a tile where
    it holds whole rows. The loops over summands run in their own order from the one in place
    `first_summand` on; those before it become the innermost. What is larger than the nest stands
    for what its loops have at most, so it is left out.
    """
    found = match(func, target)
    assert found is not None, "a space is asked for where the rule matches"
    rows = [loops(func.body)[v].extent for v in found.rows]
    row, above = rows[-1:] or [ONE], rows[-2:-1] or [ONE]
    total = next(s for s in stages(func) if s.buffer == found.sum)
    summands = [f for f in total.inner if f.extent != ONE]
    registers = tile_registers(found, target)
    return Space(
        {
            "rows": _up_to(ROWS, row[0]),
            "columns": COLUMNS,
            "columns_outer": (-1,) if found.packed else (0, 1),
            "steps": STEPS,
            "high": _up_to((0, 1, 2, 3, 4), above[0]),
            "first_summand": tuple(range(max(1, min(4, len(summands))))),
            "ahead": AHEADS if is_far(found, target) else (-1,),
        },
        (Limit(("rows", "columns", "high"), registers - 2),),
    )


def _up_to(choices: tuple[int, ...], extent: Expr) -> tuple[int, ...]:
    """The choices that a loop has room for."""
    return tuple(c for c in choices if not isinstance(extent, Const) or c <= extent.value)


def schedule(
    trace: Trace,
    found: Contraction,
    target: Target,
    knobs: Mapping[str, int],
    longest: int | None = None,
) -> None:
    """Tile the contraction; see the module. `longest` is how many products a chain may have."""
    _Tiling(trace, found, target, knobs, longest).run()


class _Tiling:
    def __init__(
        self,
        trace: Trace,
        found: Contraction,
        target: Target,
        knobs: Mapping[str, int],
        longest: int | None,
    ) -> None:
        self.trace, self.found, self.target, self.knobs = trace, found, target, knobs
        self.longest = longest
        self.lanes = target.lanes(4)
        counts = [trace.constant(v) for v in found.rows]
        self.known_rows = prod(count for count in counts if count is not None)
        self.open_rows = OPEN_ROWS if None in counts else 0
        self.row_count = self.known_rows * (self.open_rows or 1)
        self.passing = self.row_count  # how many of them pass the same columns
        self.tallest = 1
        self.shares_columns = shares_columns(trace, found, target, self.row_count)
        self.is_stream = is_stream(trace, found, target)

    def run(self) -> None:
        found = self.found
        if found.at_once is DOT_2XBF16_F32 and found.within is None:
            self._round_rows()
        strips = self._strips()
        stay = strips[0] is not found or self._columns_outside()
        tops = [
            leaf
            for part in strips
            for leaf in cut_tiles(self.trace, part, self.target, self.knobs, columns_outside=stay)
        ]
        self.tallest = max(leaf.tile.high * leaf.tile.rows for leaf in tops)
        parts = [(tile.leaf, tile.sum) for tile in own_sums(self.trace, found, tops)]
        if found.packed is not None:
            gather_columns(self.trace, found, parts, found.packed, open_rows=bool(self.open_rows))
        for leaf, total in parts:
            if (dot := find_dot(self.trace, total, leaf.lane, self.lanes)) is not None:
                add_up_along(self.trace, dot, self.lanes)
                write_result(self.trace, leaf)
            else:
                self._accumulate(leaf, total)

    def _strips(self) -> list[Contraction]:
        """The contraction, in strips of rows that stay near while columns pass them."""
        if self.knobs.get("columns_outer", -1) >= 0 or self.shares_columns:
            return [self.found]
        strips = near_rows(self.trace, self.found, self.target)
        if strips[0] is not self.found:  # of an open line one counts: few ask for columns in vain
            self.passing = prod(self.trace.constant(v) or 1 for v in strips[0].rows)
        return strips

    def _columns_outside(self) -> bool:
        """Whether the loops over rows lie inside of those over column tiles."""
        choice = self.knobs.get("columns_outer", -1)
        if choice >= 0 and self.found.packed is None:
            return bool(choice)
        return columns_stay(self.trace, self.found, self.target, shared=self.shares_columns)

    def _accumulate(self, leaf: Leaf, total: str) -> None:
        """Put the accumulation of one tile into registers, right before the tile is written."""
        trace = self.trace
        within, turned = int(self.found.at_once is not None), self.knobs.get("first_summand", 0)
        inner, each = accumulate(trace, total, self.lanes, within, turned)
        part, shared = total, self._shared(total, leaf.tile)
        for longest in self._chains(inner, shared):
            inner, part = cut_sum(trace, inner, part, longest)
        if part != total and prod(trace.constant(v) or 0 for v in inner) == shared:
            trace.do("factor_out", part)
        if inner:
            self._unroll_steps(inner[-1], leaf)
            self._ask_ahead(leaf, part, inner)
            ask_for_next_rows(trace, self.found, leaf, part, inner, self.target)
        write_result(trace, leaf)
        trace.do("set_scope", part, "register")
        if self.found.at_once:
            trace.do("tensorize", each[0], self.found.at_once.name)

    def _round_rows(self) -> None:
        """Round the row operand to bf16 before all products, where it is not in memory as such.

        Rows in blocks of one plane are rounded by instructions; others are a nest like any other.
        """
        stage = self.trace.stage(self.found.sum)
        read = {x.buffer for factor in stage.factors or () for x in loads(factor)}
        for name in read & set(allocs(self.trace.func.body)):
            names = self.trace.stage(name).names
            if len(names) > 3 and self.trace.constant(names[-2]) == 1:
                split_rows(self.trace, name, parallel=True)

    def _shared(self, total: str, tile: Tile) -> int:
        """How many terms in a row to sum up before a factor that they share; 0 for none.

        Else each vector of columns is multiplied by it once for all rows of a tile.
        """
        shared = 0 if self.found.at_once else shared_terms(self.trace.stage(total))
        return shared if tile.high * tile.rows * SUBTOTAL_STEPS < shared else 0

    def _chains(self, inner: Sequence[str], shared: int) -> tuple[int, ...]:
        """How many products are in one chain, and before that in the chains of those chains.

        Those of bf16 are rounded by far more than their sum is, and those of bytes are exact.
        """
        if self.found.at_once:
            return ()
        products = prod(self.trace.constant(v) or 0 for v in inner)
        chains = (self.longest,) if self.longest else chain_lengths(products, self.row_count)
        return (*(n for n in chains if n > shared), shared) if shared else chains

    def _ask_ahead(self, leaf: Leaf, total: str, inner: Sequence[str]) -> None:
        """Ask for columns that come from afar, unless the hardware does."""
        ahead = self.knobs.get("ahead", -1)
        if ahead < 0:
            is_near = self.found.within is not None and self.found.column_bytes is None
            far = is_far(self.found, self.target) or self.shares_columns
            if not far or is_near or self.is_stream:
                return
            is_tall = leaf.tile.high * leaf.tile.rows == self.tallest
            passes = OPEN_PASSES if self.found.within is not None and is_tall else 1
            if ask_for_next(self.trace, leaf, total, inner[-1], passes):
                return
            ahead = self._bytes_ahead(leaf.tile)
        if ahead:
            first = next((v for v in inner if self.trace.extent(v) != ONE), inner[0])
            self.trace.do("annotate", first, "prefetch", ahead)

    def _bytes_ahead(self, tile: Tile) -> int:
        """How far ahead the first pass asks for its columns; 0 where it is a small share of all."""
        share = self.target.l1_bytes // PREFETCH_SHARE // tile.columns  # each vector is a stream
        asks = self._passes(tile) <= MAX_PASSES
        return min(PREFETCH_BYTES, share // LINE_BYTES * LINE_BYTES) if asks else 0

    def _passes(self, tile: Tile) -> float:
        """How many tiles of rows read the same columns, of which the first brings them near.

        Lower tiles take what is left of an open number of rows: less than the tallest has.
        """
        height = tile.high * tile.rows
        rest = self.known_rows * self.tallest
        rows = rest if self.open_rows and height < self.tallest else self.passing
        return rows / height

    def _unroll_steps(self, name: str, leaf: Leaf) -> None:
        tile = leaf.tile
        fmas = tile.high * tile.rows * tile.columns
        extent, count = self.trace.extent(name), self.trace.constant(name)
        is_open = count is None
        most = min(MAX_STEPS, max(1, MAX_FMAS // fmas))
        if self.found.at_once in ADDED_APART and fmas >= LARGE_TILE and (count or 0) > MAX_STEPS:
            most = 1
        limit = self.knobs.get("steps", 0) or most
        factor = min(limit, OPEN_STEPS) if is_open else unroll_factor(extent, limit)
        if factor > 1:
            self.trace.do("annotate", name, "unroll", factor)
