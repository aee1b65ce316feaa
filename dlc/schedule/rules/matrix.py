"""Sums of products of planes, or of bytes, on a matrix engine of 16 x 16 tiles.

Two tiles of rows by two of columns are accumulated at a time, which loads one operand for each
product. Where the columns come from beyond the caches and few rows use them, it is four tiles of
rows by one of columns: each column operand is read once. What comes from there is asked for before
it is read: a core waits for memory as long as for the products, and does both at a time only so.

The row operand is computed where it is needed, for a strip of the result that keeps it in the
second cache; a strip's sums of 32 columns lie in the first cache until the rest of the kernel reads
them.

Before, where `sums` reads `rows` and `w`:
    rows -> sums -> exact -> result

After:
    for strip (parallel):                 for columns / 32 (parallel):
        rows of the strip                     for strip:
        for columns / 32:            or           sums, result
            sums, result

An open number of rows is cut into strips of pairs of tiles, of which the last strip has fewer: its
guard stands around whole pairs of tiles, and the rows behind the last are computed and not read.
The threads share one strip, because there may be no other:
    for strip:
        rows of the strip (parallel)
        for columns / 32 (parallel):
            planes of the columns, unless they are constants
            for rows / 32:
                sums, result

Lines of an image of an open size are rows of their own; some lines share a strip:
    for images, lines / n (parallel):
        rows of the lines
        for columns / 32:
            for line:
                for rows / 32:
                    sums, result
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from dlc.core.target import Target
from dlc.schedule.loop import Func, allocs, loops
from dlc.schedule.nest import Stage, simple_index, stages
from dlc.schedule.rules.planes import (
    PAIR,
    ROWS,
    TALL_ONES,
    Accumulators,
    accumulate,
    finish_reader,
    is_product,
    pack_tiles,
    product_of,
    split_panels,
    split_rows,
)
from dlc.schedule.rules.strip import (
    OPEN_ROWS,
    STRIPS,
    Shape,
    Strip,
    choose_lines,
    choose_pairs,
    choose_strip,
    columns_stay,
    strip_rows,
    strip_space,
)
from dlc.schedule.space import Space
from dlc.schedule.trace import Trace
from dlc.te.affine import coefficients
from dlc.te.expr import ONE, Const, Expr, Var
from dlc.te.transform import free_vars, loads, substitute
from dlc.te.types import const_or, const_size, is_const

MIN_RANK = 3  # of the sums: blocks of columns, rows, and columns
MAX_LINE = 12 * ROWS  # pixels of a line of constant length that are computed at a time


@dataclass(frozen=True, slots=True)
class Products:
    """The parts of a sum over planes."""

    sums: str
    rows: str  # the row operand
    tiles: str | None  # the column operand, if it is computed
    readers: tuple[str, ...]  # what reads the sums before the result, in order
    order: tuple[str, ...]  # the loops of the result
    lead: tuple[str, ...]  # loops of the result over what is computed on its own
    lines: tuple[str, ...]  # loops over lines of rows of an image of an open size
    row: tuple[str, ...]  # loops of the result over rows, outermost first
    width: int  # rows of the sums for one iteration of the outermost of them
    line: int  # rows that the other row loops span
    blocks: tuple[str, ...]  # the loops over blocks of 16 columns, outermost first
    lane: str
    is_open: bool  # whether the number of rows is known at run time only


def match(func: Func, target: Target) -> Products | None:
    """The products in a function whose moves are inlined, or None."""
    if "amx-tile" not in target.features:
        return None
    found = stages(func)
    sums = [s for s in found if is_product(s)]
    product = product_of(sums[0]) if len(sums) == 1 else None
    if product is None or product.feature not in target.features:
        return None
    made, read = allocs(func.body), [loads(f)[0].buffer for f in sums[0].factors or ()]
    if read[0] not in made:
        return None
    readers = _readers(found, sums[0])
    result = readers[-1]
    at = _index_in(readers, sums[0].buffer)
    if at is None or len(at) < MIN_RANK or not isinstance(sums[0].factors, tuple):
        return None
    position = [simple_index(i, result.loops) for i in at]
    used = [[v for v in result.names if v in free_vars(i)] for i in position]
    *lead, block, row, lane = used
    factors, steps = coefficients(position[-2]), coefficients(position[-3])
    extents = {f.var: f.extent for f in result.loops}
    counting = [v for v in block if not is_const(extents[v], 1)]
    named = {v for part in used for v in part}  # what no index names: an only row, an only block
    unnamed = [v for v in extents if is_const(extents[v], 1) and v not in named]
    row = row or unnamed[:1]
    block = counting or block or [v for v in unnamed if v not in row][-1:]
    if len(lane) != 1 or not row or not block or factors is None:
        return None
    factors = {**dict.fromkeys(row, 1), **factors}
    row.sort(key=lambda v: -factors[v])
    lead, lines = _lines(sums[0], lead)
    if len(block) > 1:
        block.sort(key=lambda v: -steps[v] if steps else 0)
        if not steps or not _are_digits([(steps[v], extents[v]) for v in block]):
            return None
    fixed = {v: n for v, n in extents.items() if not any(v in part for part in (*lead, lines))}
    is_open = len(row) == 1 and not isinstance(fixed[row[0]], Const)
    if is_open:
        del fixed[row[0]]
    if not all(isinstance(n, Const) for n in fixed.values()):
        return None
    parts = Products(
        sums=sums[0].buffer,
        rows=read[0],
        tiles=next((x.buffer for x in loads(sums[0].factors[1]) if x.buffer in made), None),
        readers=tuple(s.buffer for s in readers[:-1]),
        order=tuple(result.names),
        lead=tuple(v for part in lead for v in part),
        lines=lines,
        row=tuple(row),
        width=factors[row[0]],
        line=1 + sum((const_size(extents[v]) - 1) * factors[v] for v in row[1:]),
        blocks=tuple(block),
        lane=lane[0],
        is_open=is_open,
    )
    return parts if is_open or _fits(func, parts, target) else None


def _fits(func: Func, parts: Products, target: Target) -> bool:
    """Whether there is a strip for a known number of rows, of columns that are constant.

    Planes of computed columns are made where an open number of rows is in strips.
    """
    if parts.tiles is not None:
        return False
    return bool(parts.lines) or choose_strip(_shape(func, parts), target, {}) is not None


def _are_digits(loops: list[tuple[int, Expr]]) -> bool:
    """Whether loops, as (step, extent), count blocks one by one, the last the fastest."""
    step = 1
    for factor, extent in reversed(loops):
        if factor != step or not isinstance(extent, Const):
            return False
        step *= int(extent.value)
    return True


def _lines(sums: Stage, lead: list[list[str]]) -> tuple[list[list[str]], tuple[str, ...]]:
    """Tell loops over lines of one row operand from those over operands of their own.

    A line stands right before the row in the operand, where others have blocks of summands.
    """
    assert isinstance(sums.factors, tuple)
    index = next(x.index for x in loads(sums.factors[0]))
    count = 0
    while count < len(lead) and free_vars(index[-4 - count]) & set(sums.names):
        count += 1
    kept = len(lead) - count
    return lead[:kept], tuple(v for part in lead[kept:] for v in part)


def _readers(found: list[Stage], sums: Stage) -> list[Stage]:
    """The stages that depend on the sums, in order."""
    known, readers = {sums.buffer}, []
    for stage in found[found.index(sums) + 1 :]:
        if any(x.buffer in known for x in loads(stage.value)):
            readers.append(stage)
            known.add(stage.buffer)
    return readers


def _index_in(readers: list[Stage], sums: str) -> tuple[Expr, ...] | None:
    """Where the result reads the sums, by its own loops; through what stands between if need be."""
    name, index, axes = sums, None, list[str]()
    for stage in readers:
        here = {x.index for x in loads(stage.value) if x.buffer == name}
        if stage.is_reduction or len(here) != 1:
            continue
        (at,) = here
        if index is None:
            index = at
        else:
            index = tuple(substitute(i, dict(zip(axes, at, strict=True))) for i in index)
        axes = [i.name for i in stage.store.index if isinstance(i, Var)]
        if len(axes) != len(stage.store.index) and stage is not readers[-1]:
            return None
        name = stage.buffer
    return index if name == readers[-1].buffer else None


def space(func: Func, target: Target) -> Space:
    """Lines of a strip, which loop is the outer, and the tiles: choices that differ for this nest.

    See `strip_space`; the loops over steps of the sums run in their own order from `first_summand`
    on. Of an open number of rows, only the strip is a choice; 0 is the analytic one.
    """
    found = match(func, target)
    assert found is not None, "a space is asked for where the rule matches"
    steps = [f for f in _product(func, found).inner[:-3] if f.extent != ONE]
    first = {"first_summand": tuple(range(max(1, min(3, len(steps)))))}
    if found.is_open or found.lines:
        return Space({"strip": (0, *(n for n in STRIPS if n % 2 == 0)), **first})
    found_strips = strip_space(_shape(func, found), target)
    return replace(found_strips, knobs={**found_strips.knobs, **first})


def schedule(trace: Trace, found: Products, target: Target, knobs: Mapping[str, int]) -> None:
    """Tile the products; see the module."""
    _Tiling(trace, found, target, knobs).run()


def _shape(func: Func, found: Products) -> Shape:
    """The sizes of the products; of an open number of rows or of matrices, what is assumed."""
    lead = {v: const_or(loop.extent, 1) for v, loop in loops(func.body).items()}
    extents = {v: const_or(loop.extent, OPEN_ROWS) for v, loop in loops(func.body).items()}
    buffers = allocs(func.body)
    rows, sums = (
        [const_or(size, OPEN_ROWS) for size in buffers[name].buffer.type.shape]
        for name in (found.rows, found.sums)
    )
    stage, row_type = _product(func, found), buffers[found.rows].buffer.type
    inner = [extents[f.var] for f in stage.inner]
    height = (extents[found.row[0]] - 1) * found.width + found.line
    return Shape(
        lead=prod(lead[v] for v in found.lead),
        lines=extents[found.row[0]],
        width=found.width,
        last=found.line,
        reach=max(0, rows[-3] - sums[-2]),  # an only row is there once for all of its sums
        spare=sums[-2] - height,
        columns=-(-prod(extents[v] for v in found.blocks) // 2),
        steps=prod(inner[:-3]),
        products=inner[-3],
        planes=rows[-2],
        row_bytes=prod(rows) // rows[-3] // prod(sums[:-3]) * row_type.dtype.size_bytes,
        constant=found.tiles is None,
    )


def _product(func: Func, found: Products) -> Stage:
    return next(s for s in stages(func) if s.buffer == found.sums)


class _Tiling:
    def __init__(
        self, trace: Trace, found: Products, target: Target, knobs: Mapping[str, int]
    ) -> None:
        self.trace, self.found, self.target, self.knobs = trace, found, target, knobs

    def run(self) -> None:
        self._join_blocks()
        trace, found = self.trace, self.found
        shape, parallel_rows, tall = _shape(trace.func, found), True, False
        panels, made_of, asks_in = "", None, None
        if found.lines:
            strip, outer, inside = self._order_lines(choose_lines(shape, self.target, self.knobs))
            parallel_rows = False
        elif found.is_open:
            strip, outer, inside, panels, asks_in = self._order_open(shape)
        else:
            plan = choose_strip(shape, self.target, self.knobs)
            assert plan is not None, "match has found one"
            strip, outer, inside, asks_in = self._order(plan)
            # One tile of rows is split before other threads would hear of it.
            parallel_rows = plan.columns_outside and strip_rows(shape, shape.lines) > ROWS
            tall = plan.tall
            stay = "ahead" not in self.knobs and columns_stay(shape, plan, self.target)
            asks_in = None if shape.is_near or stay else asks_in
        for name in reversed(found.readers):
            trace.do("compute_at", name, inside)
        for name in found.readers:
            finish_reader(trace, name)
        trace.do("vectorize", found.lane)
        rank = len(allocs(trace.func.body)[found.sums].buffer.type.shape)
        trace.do("compute_at", found.sums, strip, (*(1,) * (rank - 2), ROWS, 1))
        trace.do("compute_at", found.rows, outer)
        if found.is_open:  # blocks of a power of two of rows would share few places of a cache
            trace.do("pad_dim", found.rows, rank - 2, ROWS)
        if found.tiles is not None:
            made_of = split_panels(trace.func, trace.stage(found.tiles))
            asks_in = None if made_of is None else asks_in
            trace.do("compute_at", found.tiles, panels)
            pack_tiles(trace, found.tiles)
        width = 1 if found.lines else found.width
        split_rows(trace, found.rows, width=width, parallel=parallel_rows)
        steps = [f.var for f in trace.stage(found.sums).inner][:-3]
        trace.turn(steps, self.knobs.get("first_summand", 0))
        tiles = (TALL_ONES if tall else Accumulators()).asked(self.knobs)
        asks_in = asks_in if tall or shape.columns > 1 else None
        accumulate(trace, found.sums, tiles, asks_in=asks_in, made_of=made_of)

    def _join_blocks(self) -> None:
        """Make one loop of those over blocks of columns, as where they are phases of a stride."""
        found = self.found
        if len(found.blocks) > 1:
            rest = [v for v in found.order if v not in (*found.lead, *found.blocks)]
            self.trace.do("reorder", (*found.lead, *found.blocks, *rest))
            block = self.trace.fuse_all(list(found.blocks))
            order = (*found.lead, block, *rest)
            self.found = replace(found, blocks=(block,), order=order)

    def _split_block(self) -> tuple[str, str]:
        """Cut the loop over blocks of columns into pairs."""
        (block,) = self.found.blocks
        return self.trace.split(block, min(2, self.trace.constant(block) or 2))

    def _order(self, plan: Strip) -> tuple[str, str, str, str]:
        """Cut and order the loops of the result.

        Returns the loops in which sums, row operand and what reads the sums are computed, and the
        one over pairs of blocks of columns.
        """
        trace, found = self.trace, self.found
        original = [v for v in found.order if v not in found.lead]
        top = found.row[0]
        row_outer, row_inner = trace.split(top, plan.lines)
        block_outer, block_inner = self._split_block()
        inner = [{top: row_inner, found.blocks[0]: block_inner}.get(v, v) for v in original]
        if plan.columns_outside:
            group = max(1, self.knobs.get("columns_outer", 1))
            groups, passing, pairs = block_outer, row_outer, block_outer
            if group > 1:
                groups, pairs = trace.split(block_outer, group)
                passing = pairs
                inner.insert(0, pairs)
            whole = trace.constant(groups)
            assert whole is not None
            place, groups = trace.split(groups, whole)
            trace.do("reorder", (*found.lead, place, groups, row_outer, *inner))
            trace.do("parallel", groups)
            return passing, place, inner[-2], groups if group == 1 else pairs
        trace.do("reorder", (*found.lead, row_outer, block_outer, *inner))
        fused = trace.fuse_all([*found.lead, row_outer])
        trace.do("parallel", fused)
        return block_outer, fused, inner[-2], block_outer

    def _order_open(self, shape: Shape) -> tuple[str, str, str, str, str]:
        """The same for an open number of rows; its passes ask for the next pair of blocks."""
        trace, found, pairs = self.trace, self.found, choose_pairs(shape, self.target, self.knobs)
        pair, row = trace.split(found.row[0], PAIR)
        strip, pair = trace.split(pair, pairs)
        passes, pair = trace.split(pair, min(pairs, OPEN_ROWS // PAIR))
        columns, block = self._split_block()
        whole = trace.constant(columns)
        assert whole is not None
        place, columns = trace.split(columns, whole)
        rest = [v for v in found.order if v not in (*found.lead, found.row[0], found.blocks[0])]
        inner = [{found.row[0]: row, found.blocks[0]: block}.get(v, v) for v in found.order]
        inner = [v for v in inner if v in (row, block, *rest)]
        trace.do("reorder", (*found.lead, strip, place, columns, passes, pair, *inner))
        trace.do("parallel", columns)
        return pair, place, inner[-2], columns, passes

    def _order_lines(self, count: int) -> tuple[str, str, str]:
        """The same for an image of an open size, `count` lines in a strip."""
        trace, found = self.trace, self.found
        line, row = found.lines[-1], found.row[0]
        strip, line = trace.split(line, count)
        columns, block = self._split_block()
        pairs = [] if (trace.constant(row) or MAX_LINE + 1) <= MAX_LINE else [row]
        if pairs:
            pair, row = trace.split(row, PAIR)
            pairs = [pair]
        renamed = {found.row[0]: row, found.blocks[0]: block}
        inner = [renamed.get(v, v) for v in found.order if v not in (*found.lead, *found.lines)]
        trace.do("reorder", (*found.lead, *found.lines[:-1], strip, columns, line, *pairs, *inner))
        fused = trace.fuse_all([*found.lead, *found.lines[:-1], strip])
        trace.do("parallel", fused)
        return [line, *pairs][-1], fused, inner[-2]
