"""Products of several rows in one block of a GPU, by its matrix engines.

As `gpu_block.multiply`, with tiles of warps: all warps of the block stand side by side along the
columns, and each has all rows. The sums go from the warps' registers to where the stages behind the
product read them.

Source: Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning"
(2023), section 3.3, for rows that no two warps share the sums of.
"""

from __future__ import annotations

from math import prod

from dlc.core.target import Target
from dlc.schedule.gpu import WARP
from dlc.schedule.instruction import BYTE_PAIRS, WarpProduct
from dlc.schedule.nest import Stage
from dlc.schedule.primitive import refuse
from dlc.schedule.rules.gpu_block import cache_factors, place_product, rows_and_columns
from dlc.schedule.rules.gpu_matrix import (
    CHUNK_BYTES,
    COLUMNS,
    GAPS,
    ROWS,
    WarpTile,
    bind_lanes,
    chunk_size,
    fills,
    kind_of,
    lay_in_lanes,
    multiply_tiles,
)
from dlc.schedule.rules.gpu_pipeline import pipeline_chunks
from dlc.schedule.trace import Trace
from dlc.te.expr import Const

WIDE = (2, 1)  # tiles of a warp side by side
LINE = CHUNK_BYTES[1] + 16  # bytes of a line of a chunk, at most


def takes(total: Stage, rows: int, columns: int, threads: int) -> bool:
    """Whether engines multiply this product, and its rows and columns in a block fill tiles."""
    extents = [f.extent for f in total.inner]
    depth = prod(int(n.value) for n in extents if isinstance(n, Const))
    is_known = all(isinstance(n, Const) for n in extents)
    return is_known and takes_sum(total, depth, rows, columns, threads)


def takes_sum(total: Stage, depth: int, rows: int, columns: int, threads: int) -> bool:
    """As `takes`, for so many of the product's summands at a time."""
    kind = kind_of(total)
    if kind is None or kind in BYTE_PAIRS or not fills(kind, depth):
        return False
    return rows % ROWS == 0 and columns >= threads // WARP * COLUMNS


def tile_for(rows: int, columns: int, threads: int) -> WarpTile:
    """The widest tile of a warp that leaves none without columns."""
    warps = threads // WARP
    wide = next(n for n in WIDE if n == 1 or n * warps * COLUMNS <= columns)
    return WarpTile(1, warps, rows // ROWS, wide)


def chunk_bytes(rows: int, threads: int) -> int:
    """The most shared memory that one chunk of both factors takes."""
    return (rows + WIDE[0] * threads // WARP * COLUMNS) * LINE


def multiply(
    trace: Trace,
    total: str,
    result: str,
    at: str,
    threads: int,
    target: Target,
    room: int,
    *,
    zeros: bool = False,
) -> None:
    """Tile a product that `takes` took, and what is written from it, both in the loop `at`.

    `room` are the bytes of shared memory for all chunks that are there at the same time. With
    `zeros`, guards leave summands out, and zeros stand for them.
    """
    row, column = rows_and_columns(trace, result, at)
    rows, columns = trace.constant(row), trace.constant(column)
    stage = trace.stage(total)
    kind = kind_of(stage)
    if rows is None or columns is None or kind is None:
        refuse("tensorize", trace.func, f"'{total}' is no product that fills tiles")
    tile = tile_for(rows, columns, threads)
    depth = prod(trace.constant(f.var) or 1 for f in stage.inner)
    size = chunk_size(kind, depth)
    placed = place_product(trace, total, (row, column), tile.shape[1], size)
    cache_factors(
        trace, total, placed.side, placed.chunk, placed.tiled, threads, GAPS[kind], target,
        zeros=zeros or depth % size != 0,
    )  # fmt: skip
    trace.do("drop_guards", total)
    lay_in_lanes(trace, total, tile)
    sum_row, sum_column, _ = placed.tiled
    bind_lanes(trace, f"{sum_row}_init", f"{sum_column}_init", tile)
    bind_lanes(trace, *placed.result, tile)
    multiply_tiles(trace, placed.tiled, tile, WarpProduct(kind, tile.rows, tile.columns))
    pipeline_chunks(trace, placed.chunk, {}, room)
