"""How large the tiles of a sum of products are on a GPU: an analytic choice.

A thread with `rows` x `columns` results reads rows + columns elements of shared memory for
rows * columns multiply-adds. Large tiles read less, small ones leave no processor without a block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dlc.core.target import Target
from dlc.schedule.gpu import WARP
from dlc.schedule.rules.gpu_cost import BlockCost, Sums, choose

READ_COST = 0.5  # of an element of shared memory, in multiply-adds: 32 lanes wide against 64
SCHEDULERS = 4  # of a processor, each of them with an instruction of a warp in a cycle
LANES = WARP * 1900  # multiply-adds of a warp in a us that does nothing else
ONE_WARP, ALL_WARPS = 0.75, 0.9  # of that: what one warp of a scheduler reaches, and several


@dataclass(frozen=True, slots=True)
class GpuTile:
    """The threads of a block in both directions, the results of each, the summands of a chunk."""

    row_threads: int
    column_threads: int
    rows: int
    columns: int
    chunk: int


# Threads of a block by results of a thread. 16 columns of 4 results are 64 neighbouring floats.
TILES = (
    (16, 16, 8, 8), (16, 16, 8, 4), (16, 16, 4, 4), (8, 16, 4, 4), (16, 16, 2, 4), (8, 8, 4, 4),
    (8, 16, 2, 4), (8, 8, 2, 4),
)  # fmt: skip


def choose_gpu_tile(sums: Sums, target: Target, knobs: Mapping[str, int]) -> tuple[GpuTile, int]:
    """The fastest tile, and the parts of each sum."""
    assert target.gpu is not None, "tiles of blocks are for GPUs"
    wanted = knobs.get("tile", 0)
    tiles = [
        _tile(t, sums, knobs.get("chunk", 0)) for t in ([TILES[wanted - 1]] if wanted else TILES)
    ]
    costs = tuple(_cost(t) for t in tiles)
    number, parts = choose(sums, costs, knobs.get("parts", 0), target.gpu.processors)
    return tiles[number], parts


def _tile(shape: tuple[int, int, int, int], sums: Sums, chunk: int) -> GpuTile:
    row_threads, column_threads, high, wide = shape
    return GpuTile(
        _at_most(row_threads, sums.rows, high),
        _at_most(column_threads, sums.columns, wide),
        high,
        wide,
        chunk or _chunk(sums.depth, shape),
    )


def _cost(tile: GpuTile) -> BlockCost:
    """What a tile asks of a processor: each lane reads two factors for some multiply-adds."""
    count = tile.rows * tile.columns
    rate = LANES * count / (count + READ_COST * (tile.rows + tile.columns))
    return BlockCost(
        tile.row_threads * tile.rows,
        tile.column_threads * tile.columns,
        tile.chunk,
        -(-tile.row_threads * tile.column_threads // WARP),
        rate * ONE_WARP,
        rate * SCHEDULERS * ALL_WARPS,
    )


def _at_most(threads: int, size: int | None, results: int) -> int:
    """No more threads than a whole dimension has work for."""
    return threads if size is None else min(threads, -(-size // results))


def _chunk(summands: int | None, tile: tuple[int, int, int, int]) -> int:
    """Summands in shared memory at a time: fewer where a thread has many results."""
    most = 16 if tile[2] * tile[3] >= 32 else 32
    if summands is None:
        return most
    whole = [c for c in (32, 16, 8) if c <= most and summands % c == 0]
    return whole[0] if whole else min(most, summands)
