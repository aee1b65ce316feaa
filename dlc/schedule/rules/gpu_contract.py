"""Sums of products on a GPU: matrix products and convolutions as one kind of kernel.

All rows of the result become one loop and so do its columns. A block computes a tile of both; its
threads keep a small tile each in registers. The reduction runs in chunks: for each, the block
computes the tiles of both factors into shared memory, neighbours in memory by neighbouring threads,
and then adds up their products. What was fused behind the sum runs on the registers.

Source: Nath, Tomov, Dongarra, "An Improved MAGMA GEMM for Fermi GPUs" (2010) for the two levels of
tiles; Chetlur et al., "cuDNN" (2014), section 3, for convolution without a matrix in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from dlc.core.target import Target
from dlc.schedule.edit import loops_around
from dlc.schedule.loop import Func
from dlc.schedule.nest import Stage, simple_index, stages
from dlc.schedule.rules import gpu_stage
from dlc.schedule.rules.contraction import Contraction, find_contraction
from dlc.schedule.rules.gpu_block import (
    bind_tile,
    cache_factors,
    keep_in_registers,
    split,
    unroll,
)
from dlc.schedule.rules.gpu_cost import Sums
from dlc.schedule.rules.gpu_pipeline import pipeline_chunks
from dlc.schedule.rules.gpu_split import split_sum, spread_parts
from dlc.schedule.rules.gpu_tile import choose_gpu_tile
from dlc.schedule.space import Space
from dlc.schedule.trace import Trace
from dlc.te.expr import ONE, Var
from dlc.te.transform import free_vars, loads


@dataclass(frozen=True, slots=True)
class Product:
    """A contraction, the dimensions of its sum, and the side of the factor with the rows."""

    parts: Contraction
    dims: tuple[tuple[int, ...], ...]  # of the batch, of the rows, of the columns
    row_side: int  # 0 is left, 1 is right


def match(func: Func, target: Target) -> Product | None:
    """The contraction in a function whose moves are inlined, or None."""
    found = find_contraction(func)
    return None if found is None else as_product(func, found)


def as_product(func: Func, found: Contraction) -> Product | None:
    """A contraction with what its schedule needs, or None where that is not known."""
    total, result = sum_and_result(func, found)
    wide = {f.var for f in result.loops if f.extent != ONE}
    if not wide & set(found.rows) or total.factors is None or not total.inner:
        return None
    index = next(x.index for x in loads(result.value) if x.buffer == found.sum)
    position = [simple_index(i, result.loops) for i in index]
    walks = {p.name: d for d, p in enumerate(position) if isinstance(p, Var)}
    still = [d for d, p in enumerate(position) if not isinstance(p, Var)]
    whole = len(walks) + len(still) == len(position) and wide <= set(walks)
    if not whole or any(total.loops[d].extent != ONE for d in still):
        return None
    batch, rows, columns = ([walks[v] for v in g if v in walks] for g in _groups(found))
    axes = {total.names[d] for d in rows}
    left, right = (bool(axes & free_vars(f)) for f in total.factors)
    if left == right:
        return None
    return Product(found, ((*still, *batch), tuple(rows), tuple(columns)), 0 if left else 1)


def _groups(found: Contraction) -> tuple[tuple[str, ...], ...]:
    """The loops of the result: batch, rows, columns."""
    return found.batch, found.rows, (*found.columns, found.lane)


def sum_and_result(func: Func, found: Contraction) -> tuple[Stage, Stage]:
    """The stage that adds up, and the one that reads the sum."""
    known = stages(func)
    total = next(s for s in known if s.buffer == found.sum and s.is_reduction)
    reads = [s for s in known if s.reads(found.sum)]
    return total, next(s for s in reads if s.buffer == found.result)


def space(func: Func, target: Target) -> Space:
    """The tile of a block and of a thread, how the summands are cut; 0 is analytic."""
    tiles = {"tile": tuple(range(9)), "chunk": (0, 8, 16, 32), "parts": (0, 1, 2, 4, 8)}
    return Space({**tiles, "stages": (0, 1, 2, 3, 4)})


def schedule(trace: Trace, found: Product, target: Target, knobs: Mapping[str, int]) -> None:
    """Tile the contraction; see the module."""
    tile_product(trace, found, target, knobs)


@dataclass(frozen=True, slots=True)
class Matrix:
    """The loops of a product as those of one of matrices."""

    outer: tuple[str, ...]  # of the result: the batch, if there is one, the row and the column
    sum_row: str
    sum_column: str
    summand: str

    @property
    def row(self) -> str:
        """The loop over rows of the result."""
        return self.outer[-2]

    @property
    def column(self) -> str:
        """The loop over columns of the result."""
        return self.outer[-1]


def as_matrix(trace: Trace, found: Product) -> Matrix:
    """Fuse all loops over rows, over columns and over summands, and the dimensions of the sum."""
    parts = found.parts
    total, _ = sum_and_result(trace.func, parts)
    batch, row, column = _fuse_groups(trace, _groups(parts))
    groups = tuple(tuple(total.names[d] for d in dims) for dims in found.dims)
    _, sum_row, sum_column = _fuse_groups(trace, groups)
    _merge_dims(trace, parts.sum, found.dims)
    summand = trace.fuse_all([f.var for f in trace.stage(parts.sum).inner])
    outer = tuple(v for v in (batch, row, column) if v is not None)
    return Matrix(outer, sum_row, sum_column, summand)


def sums_of(trace: Trace, loops: Matrix) -> Sums:
    """The sizes of a product, before its loops are cut."""
    around = [trace.constant(f.var) for f in loops_around(trace.func, loops.row)[:-1]]
    whole = [n for n in around if n is not None]
    return Sums(
        trace.constant(loops.row),
        trace.constant(loops.column),
        trace.constant(loops.summand),
        prod(whole) if len(whole) == len(around) else None,
    )


def bring_chunks(
    trace: Trace, total: str, loops: tuple[str, str, str], size: int
) -> tuple[str, tuple[str, str, str]]:
    """Cut a sum in a block, by rows, columns and summands: the loop over chunks, those of one."""
    row, column, summand = loops
    trace.do("decompose_reduction", total, trace.stage(total).names[0])
    chunk, inner = split(trace, summand, size)
    tiled = (row, column, inner)
    others = [v for v in trace.stage(total).names if v not in tiled]
    trace.do("reorder", (*others, chunk, *tiled))
    return chunk, tiled


def tile_product(trace: Trace, found: Product, target: Target, knobs: Mapping[str, int]) -> int:
    """Tile a contraction whose loops are outside of all others, or right inside of block loops.

    Returns the threads of a block.
    """
    total = found.parts.sum
    loops = as_matrix(trace, found)
    tile, parts = choose_gpu_tile(sums_of(trace, loops), target, knobs)
    sums = (loops.sum_row, loops.sum_column, loops.summand)
    results = tile.rows, tile.columns
    count = tile.row_threads * tile.column_threads
    staged = None
    shape = tile.row_threads * tile.rows, tile.column_threads * tile.columns
    is_long = gpu_stage.is_long(trace.stage(found.parts.result))
    if parts == 1 and is_long and gpu_stage.fits(trace, total, shape, target):
        staged = gpu_stage.place(trace, total, loops.outer, shape, count)
    else:
        lead = (1,) * (len(loops.outer) - 2)
        threads = (*lead, tile.row_threads, tile.column_threads)
        trace.do("distribute", loops.outer, threads, (*lead, *results))
        trace.do("compute_at", total, f"{loops.column}_b")
    cut = split_sum(trace, total, sums, parts) if parts > 1 else None
    name, inside = (total, sums) if cut is None else (cut.total, cut.loops)
    chunk, tiled = bring_chunks(trace, name, inside, tile.chunk)
    cache_factors(trace, name, found.row_side, chunk, tiled, count, target=target)
    trace.do("drop_guards", name)
    keep_in_registers(trace, name, results)
    bind_tile(trace, (f"{tiled[0]}_init", f"{tiled[1]}_init"), results, None)
    bind_tile(trace, tiled[:2], results, tiled[2])
    if cut is not None:
        bind_tile(trace, cut.out, results, None)
        trace.do("drop_guards", total)
        keep_in_registers(trace, total, results)
        bind_tile(trace, sums[:2], results, None)
        bind_tile(trace, cut.final[:2], results, cut.final[2])
        spread_parts(trace, total, cut)
    if staged is not None:
        bind_tile(trace, staged, results, None)
        gpu_stage.write_out(trace, loops.outer, found.parts.result)
    unroll(trace, [f"{loops.row}_s", f"{loops.column}_s"])
    pipeline_chunks(trace, chunk, knobs)
    return count


def _fuse_groups(trace: Trace, groups: tuple[tuple[str, ...], ...]) -> tuple[str | None, str, str]:
    """Loops as three: batch, rows and columns, in this order."""
    trace.do("reorder", tuple(v for group in groups for v in group))
    batch, row, column = (trace.fuse_all(list(g)) if g else None for g in groups)
    assert row is not None, "a contraction has rows"
    assert column is not None, "a contraction has the lane"
    return batch, row, column


def _merge_dims(trace: Trace, total: str, dims: tuple[tuple[int, ...], ...]) -> None:
    """The dimensions of the sum as three too, after the loops that walk along them."""
    trace.do("transform_layout", total, tuple(d for group in dims for d in group))
    at = 0
    for group in dims:
        for _ in group[1:]:
            trace.do("fuse_dims", total, at)
        at += len(group) > 0
