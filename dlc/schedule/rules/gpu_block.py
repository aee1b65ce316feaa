"""What rules for GPUs do inside of one block: products of several rows, and elements.

All stages of a block are there already, one after the other, and what they share lies in shared
memory. Here each becomes phases of the block's threads.
"""

from __future__ import annotations

from dataclasses import dataclass

from dlc.core.target import Target
from dlc.schedule.gpu import WARP
from dlc.schedule.loop import loops
from dlc.schedule.nest import Stage, stages
from dlc.schedule.primitive import refuse
from dlc.schedule.rules.gpu_pipeline import copy_in_lines
from dlc.schedule.trace import Trace
from dlc.te.affine import coefficients
from dlc.te.expr import ONE
from dlc.te.transform import free_vars, loads

GAP = 4  # elements behind each row in shared memory: 16 bytes, so that rows begin in other banks
SIDE_BY_SIDE = 4  # columns of one thread: 16 bytes
LANES = 16  # threads side by side in a row of a product
CHUNK = 16  # summands of a product in shared memory at a time


@dataclass(frozen=True, slots=True)
class BlockTile:
    """Threads of a block in both directions, and the results of each."""

    row_threads: int
    column_threads: int
    rows: int
    columns: int


def block_tile(rows: int, columns: int, threads: int) -> BlockTile:
    """How so many threads compute some rows of all columns, or of as many as they can."""
    wide = SIDE_BY_SIDE if columns >= SIDE_BY_SIDE * LANES else 1
    column_threads = min(WARP, -(-columns // wide))
    row_threads = max(1, min(rows, threads // column_threads))
    return BlockTile(row_threads, column_threads, -(-rows // row_threads), wide)


@dataclass(frozen=True, slots=True)
class Placed:
    """A product in a block, chunk by chunk: `result` are the loops over what is written from it.

    `tiled` are the loops over rows, columns and summands of a chunk, `side` the factor that depends
    on the rows.
    """

    result: tuple[str, str]
    chunk: str
    tiled: tuple[str, str, str]
    side: int


def multiply(
    trace: Trace, total: str, result: str, at: str, threads: int, *, zeros: bool = False
) -> None:
    """Tile a sum of products and what is written from it, both right inside of the loop `at`.

    The last two dimensions of the sum are its rows and its columns. With `zeros`, guards leave
    summands out, and zeros stand for them.
    """
    row, column = rows_and_columns(trace, result, at)
    tile = block_tile(*_sizes(trace, row, column), threads)
    placed = place_product(trace, total, (row, column), tile.column_threads * tile.columns, CHUNK)
    cache_factors(trace, total, placed.side, placed.chunk, placed.tiled, threads, zeros=zeros)
    trace.do("drop_guards", total)
    keep_in_registers(trace, total, (tile.rows, tile.columns))
    parts = (tile.rows, tile.columns)
    sum_row, sum_column, inner = placed.tiled
    bind_tile(trace, (f"{sum_row}_init", f"{sum_column}_init"), parts, None)
    bind_tile(trace, (sum_row, sum_column), parts, inner)
    bind_tile(trace, placed.result, parts, None)


def rows_and_columns(trace: Trace, result: str, at: str) -> tuple[str, str]:
    """The loops over rows and columns of what is written inside of the loop `at`."""
    inside = loops(trace.loop(at).body)
    found = [s for s in stages(trace.func) if s.buffer == result and s.loops]
    stage = next(s for s in found if s.names[-1] in inside)
    names = [v for v in _wide(trace, stage) if v in inside]
    if len(names) != 2:
        refuse("split", trace.func, f"'{result}' has {len(names)} dimensions in a block, not 2")
    return names[0], names[1]


def _sizes(trace: Trace, row: str, column: str) -> tuple[int, int]:
    """The extents of two loops."""
    size = trace.constant(row), trace.constant(column)
    if size[0] is None or size[1] is None:
        refuse("split", trace.func, f"'{row}' or '{column}' has no constant extent in a block")
    return size[0], size[1]


def place_product(
    trace: Trace, total: str, result: tuple[str, str], width: int, size: int
) -> Placed:
    """Cut a product into blocks of `width` columns, each of them into chunks of `size` summands."""
    row, column = result
    if _sizes(trace, row, column)[1] > width:
        outer, column = trace.split(column, width)
        trace.do("reorder", (outer, row, column))
        trace.do("compute_at", total, outer)
    summand = trace.fuse_all([f.var for f in trace.stage(total).inner])
    stage = trace.stage(total)
    sum_row, sum_column = _wide(trace, stage)
    others = [v for v in stage.names if v not in (sum_row, sum_column)]
    trace.do("decompose_reduction", total, stage.names[0])
    chunk, inner = split(trace, summand, size)
    trace.do("reorder", (*others, chunk, sum_row, sum_column, inner))
    side = _side(trace.stage(total), sum_row)
    return Placed((row, column), chunk, (sum_row, sum_column, inner), side)


def _wide(trace: Trace, stage: Stage) -> list[str]:
    """The loops of a stage that run more than once."""
    return [v for v in stage.names if trace.extent(v) != ONE]


def _side(stage: Stage, row: str) -> int:
    """The factor that depends on the rows."""
    assert stage.factors is not None, "the stage is a sum of products"
    return 0 if row in free_vars(stage.factors[0]) else 1


def cache_factors(
    trace: Trace,
    total: str,
    row_side: int,
    chunk: str,
    tiled: tuple[str, str, str],
    threads: int,
    gaps: tuple[int, int] = (GAP, 0),
    target: Target | None = None,
    columns_in_lines: bool = False,
    zeros: bool = False,
) -> None:
    """Compute both factors of a chunk into shared memory, by all threads of the block.

    `tiled` are the loops over rows, columns and summands of the chunk, `gaps` the elements behind
    each line of the rows and of the columns. Given a target, copies bring them beside the threads
    where that can be. The lines of the columns are summands, unless `columns_in_lines`. With
    `zeros` a chunk that is not full ends with zeros, and the sum needs no test.
    """
    row, column, inner = tiled
    across = (column, inner) if columns_in_lines else (inner, column)
    parts = ((row_side, (row, inner), "rows", gaps[0]), (1 - row_side, across, "columns", gaps[1]))
    for side, axes, what, _ in parts:
        trace.do("cache_factor", total, side, chunk, axes, f"{total}_{what}", "shared")
    if zeros:
        trace.do("zero_summands", total)
    for _, _, what, gap in parts:
        _bring(trace, f"{total}_{what}", gap, threads, target)


def _bring(trace: Trace, name: str, gap: int, threads: int, target: Target | None) -> None:
    """Let all threads of the block fill a cached factor; a single element is the first thread's."""
    nest = trace.stage(name)
    if not nest.names:
        return
    turned = _runs_across(nest)
    if gap or turned:
        trace.do("pad_dim", name, 1, gap or GAP)
    if turned:
        order = nest.names[::-1]
        trace.do("reorder", tuple(order))
    else:
        order = nest.names if target is None else copy_in_lines(trace, name, target)
    fused = order[0]
    if len(order) == 2:
        fused = f"{name}_copy"
        trace.do("fuse", *order, fused)
    trace.do("cooperate", fused, threads)


def _runs_across(nest: Stage) -> bool:
    """Whether neighbours in memory are those of the outer loop of a copy."""
    if len(nest.names) != 2:
        return False
    outer, inner = nest.names
    along = [coefficients(x.index[-1]) or {} for x in loads(nest.value) if x.index]
    return any(c.get(outer) == 1 for c in along) and not any(inner in c for c in along)


def keep_in_registers(trace: Trace, total: str, parts: tuple[int, int]) -> None:
    """Cut the last two dimensions of the sum into threads and what each of them keeps."""
    rank = len(trace.stage(total).store.index)
    factors = (1,) * (rank - 2) + parts
    dims = tuple(range(rank + sum(f > 1 for f in factors)))
    trace.do("transform_layout", total, dims, factors)
    trace.do("set_scope", total, "register")


def bind_tile(
    trace: Trace, over: tuple[str, str], parts: tuple[int, int], inner: str | None
) -> None:
    """Cut loops over rows and columns of a tile: threads outside, then `inner`, then steps."""
    (row, column), (rows, columns) = over, parts
    row_thread, row_step = split(trace, row, rows)
    column_thread, column_step = split(trace, column, columns)
    between = (inner,) if inner else ()
    trace.do("reorder", (row_thread, column_thread, *between, row_step, column_step))
    trace.do("bind", row_thread, "thread")
    trace.do("bind", column_thread, "thread")
    unroll(trace, [*between, row_step, column_step])


def split(trace: Trace, var: str, factor: int) -> tuple[str, str]:
    """Split a loop into threads, or chunks, and steps."""
    parts = (f"{var}_t", f"{var}_s")
    trace.do("split", var, factor, parts)
    return parts


def unroll(trace: Trace, names: list[str]) -> None:
    """Write out the loops that are there."""
    for name in names:
        if name in loops(trace.func.body):
            trace.tile_loop(name)


def spread(trace: Trace, names: list[str], threads: int) -> str | None:
    """Let all threads compute the elements of a stage; a single element is the first thread's.

    The loop over the turns of a thread comes back, if there is one.
    """
    if all(trace.extent(v) == ONE for v in names):
        return None
    trace.do("reorder", tuple(names))  # moves guards inside
    fused = trace.fuse_all(names) if len(names) > 1 else names[0]
    trace.do("cooperate", fused, threads)
    return f"{fused}_r"
