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

from dlc.core.target import Target
from dlc.schedule.loop import Func, loops
from dlc.schedule.nest import Stage, stages
from dlc.schedule.rules.contraction import Contraction, find_contraction
from dlc.schedule.rules.gpu_tile import GpuTile, choose_gpu_tile
from dlc.schedule.rules.prepare import simple_index
from dlc.schedule.space import Space
from dlc.schedule.trace import Trace
from dlc.te.expr import ONE, Var
from dlc.te.transform import free_vars, loads

GAP = 4  # elements behind each row in shared memory: 16 bytes, so that rows begin in other banks


@dataclass(frozen=True, slots=True)
class Product:
    """A contraction, the dimensions of its sum, and the side of the factor with the rows."""

    parts: Contraction
    dims: tuple[tuple[int, ...], ...]  # of the batch, of the rows, of the columns
    row_side: int  # 0 is left, 1 is right


def match(func: Func, target: Target) -> Product | None:
    """The contraction in a function whose moves are inlined, or None."""
    found = find_contraction(func)
    if found is None:
        return None
    total, result = _stages(func, found)
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


def _stages(func: Func, found: Contraction) -> tuple[Stage, Stage]:
    """The stage that adds up, and the one that reads the sum."""
    known = stages(func)
    total = next(s for s in known if s.buffer == found.sum and s.is_reduction)
    reads = [s for s in known if any(x.buffer == found.sum for x in loads(s.value))]
    return total, next(s for s in reads if s.buffer == found.result)


def space(func: Func, target: Target) -> Space:
    """The tile of a block and of a thread, and the chunk of the reduction; 0 is analytic."""
    return Space({"tile": tuple(range(9)), "chunk": (0, 8, 16, 32)})


def schedule(trace: Trace, found: Product, target: Target, knobs: Mapping[str, int]) -> None:
    """Tile the contraction; see the module."""
    parts = found.parts
    total, _ = _stages(trace.func, parts)
    batch, row, column = _fuse_groups(trace, _groups(parts))
    groups = tuple(tuple(total.names[d] for d in dims) for dims in found.dims)
    _, sum_row, sum_column = _fuse_groups(trace, groups)
    _merge_dims(trace, parts.sum, found.dims)
    summand = trace.fuse_all([f.var for f in trace.stage(parts.sum).inner])
    tile = choose_gpu_tile(
        trace.constant(row), trace.constant(column), trace.constant(summand), target, knobs
    )

    outer = [v for v in (batch, row, column) if v is not None]
    threads = (1,) * (len(outer) - 2) + (tile.row_threads, tile.column_threads)
    steps = (1,) * (len(outer) - 2) + (tile.rows, tile.columns)
    trace.do("distribute", tuple(outer), threads, steps)
    trace.do("compute_at", parts.sum, f"{column}_b")
    trace.do("decompose_reduction", parts.sum, trace.stage(parts.sum).names[0])
    chunk, inner = _split(trace, summand, tile.chunk)
    others = [v for v in trace.stage(parts.sum).names if v not in (sum_row, sum_column)]
    trace.do("reorder", (*others, chunk, sum_row, sum_column, inner))
    _cache_factors(trace, found, tile, chunk, (sum_row, sum_column, inner))
    trace.do("drop_guards", parts.sum)
    _keep_in_registers(trace, parts.sum, tile)
    _bind_tile(trace, (f"{sum_row}_init", f"{sum_column}_init"), tile, None)
    _bind_tile(trace, (sum_row, sum_column), tile, inner)
    _unroll(trace, [f"{row}_s", f"{column}_s"])


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


def _cache_factors(
    trace: Trace, found: Product, tile: GpuTile, chunk: str, tiled: tuple[str, str, str]
) -> None:
    """Compute both factors of a chunk into shared memory, by all threads of the block."""
    row, column, inner = tiled
    total = found.parts.sum
    threads = tile.row_threads * tile.column_threads
    for side, axes, what in (
        (found.row_side, (row, inner), "rows"),
        (1 - found.row_side, (inner, column), "columns"),
    ):
        name = f"{total}_{what}"
        trace.do("cache_factor", total, side, chunk, axes, name, "shared")
        nest = trace.stage(name)
        fused = f"{what}_copy"
        if len(nest.names) == 2:
            trace.do("fuse", *nest.names, fused)
        trace.do("cooperate", fused if len(nest.names) == 2 else nest.names[0], threads)
        if what == "rows":
            trace.do("pad_dim", name, 1, GAP)


def _keep_in_registers(trace: Trace, total: str, tile: GpuTile) -> None:
    """Cut the last two dimensions of the sum into threads and what each of them keeps."""
    rank = len(trace.stage(total).store.index)
    factors = (1,) * (rank - 2) + (tile.rows, tile.columns)
    dims = tuple(range(rank + sum(f > 1 for f in factors)))
    trace.do("transform_layout", total, dims, factors)
    trace.do("set_scope", total, "register")


def _bind_tile(trace: Trace, loops_: tuple[str, str], tile: GpuTile, inner: str | None) -> None:
    """Cut loops over rows and columns of a tile: threads outside, then `inner`, then steps."""
    row, column = loops_
    row_thread, row_step = _split(trace, row, tile.rows)
    column_thread, column_step = _split(trace, column, tile.columns)
    between = (inner,) if inner else ()
    trace.do("reorder", (row_thread, column_thread, *between, row_step, column_step))
    trace.do("bind", row_thread, "thread")
    trace.do("bind", column_thread, "thread")
    _unroll(trace, [*between, row_step, column_step])


def _split(trace: Trace, var: str, factor: int) -> tuple[str, str]:
    parts = (f"{var}_t", f"{var}_s")
    trace.do("split", var, factor, parts)
    return parts


def _unroll(trace: Trace, names: list[str]) -> None:
    for name in names:
        if name in loops(trace.func.body):
            trace.tile_loop(name)
