"""How large the tiles of a sum of products are on a GPU: an analytic choice.

A thread with `rows` x `columns` results reads rows + columns elements of shared memory for
rows * columns multiply-adds. Large tiles read less, small ones leave no processor without a block:
the estimate counts rounds of blocks over the processors, times the cost of one block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from dlc.core.target import Target

READ_COST = 0.5  # of an element of shared memory, in multiply-adds: 32 lanes wide against 64
LARGE = 4096  # stands for a size that is only known at run time


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


def choose_gpu_tile(
    rows: int | None,
    columns: int | None,
    summands: int | None,
    target: Target,
    knobs: Mapping[str, int],
) -> GpuTile:
    """The cheapest tile; None stands for a size that is only known at run time."""
    assert target.gpu is not None, "tiles of blocks are for GPUs"
    wanted = knobs.get("tile", 0)
    if wanted:
        best = TILES[wanted - 1]
    else:
        best = _best(rows or LARGE, columns or LARGE, target.gpu.processors)
    chunk = knobs.get("chunk", 0) or _chunk(summands, best)
    row_threads, column_threads, high, wide = best
    return GpuTile(
        _at_most(row_threads, rows, high),
        _at_most(column_threads, columns, wide),
        high,
        wide,
        chunk,
    )


def _at_most(threads: int, size: int | None, results: int) -> int:
    """No more threads than a whole dimension has work for."""
    return threads if size is None else min(threads, -(-size // results))


@lru_cache(maxsize=4096)
def _best(rows: int, columns: int, processors: int) -> tuple[int, int, int, int]:
    def cost(tile: tuple[int, int, int, int]) -> float:
        row_threads, column_threads, high, wide = tile
        blocks = -(-rows // (row_threads * high)) * -(-columns // (column_threads * wide))
        rounds = -(-blocks // processors)
        work = row_threads * column_threads * (high * wide + READ_COST * (high + wide))
        return rounds * work

    return min(TILES, key=cost)


def _chunk(summands: int | None, tile: tuple[int, int, int, int]) -> int:
    """Summands in shared memory at a time: fewer where a thread has many results."""
    most = 16 if tile[2] * tile[3] >= 32 else 32
    if summands is None:
        return most
    whole = [c for c in (32, 16, 8) if c <= most and summands % c == 0]
    return whole[0] if whole else min(most, summands)
