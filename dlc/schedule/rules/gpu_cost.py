"""How long sums of products take on a GPU: an estimate to choose tiles and parts by.

Each block brings the factors of its tile to shared memory, chunk by chunk, and multiplies them. The
blocks of one processor share its units and its way to the second-level cache; a chunk takes as long
as what is slowest: the products, the way, or the threads' waiting for each other.

The figures are those of 17 products and convolutions on an H200, 4 to 390 us each, whose best times
the estimate meets to a third. Only what differs between schedules is in it: not the 2.2 us of a
launch.

Source: Williams, Waterman, Patterson, "Roofline" (2009), for rates that bound each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

CACHE = 42e3  # bytes per us that a processor gets from the second-level cache, all reading
CHUNK = 0.16  # us of a chunk at least: copies that are asked for and waited for, and barriers
FEW = 4  # warps: fewer take longer to ask
SPLIT = 2.5  # us until the last block of a tile goes on, beside its reading all parts
PART_BYTES = 4  # of an element of a part
RESIDENT = 8  # warps of all blocks that a processor runs at the same time, or two blocks
LARGE = 4096  # stands for a size that is only known at run time
MIN_SUMMANDS = 128  # of a part
MAX_PARTS = 8


@dataclass(frozen=True, slots=True)
class Sums:
    """A product's sizes, None where only a run knows them; `outer` are those of its batch.

    Sums whose number is unknown are not split.
    """

    rows: int | None
    columns: int | None
    depth: int | None
    outer: int | None = 1


@dataclass(frozen=True, slots=True)
class BlockCost:
    """A block's tile, the summands of a chunk, and the multiply-adds that its warps do in a us.

    `rate` is what one warp does, `most` what a processor does, however many warps it has.
    """

    rows: int
    columns: int
    chunk: int
    warps: int
    rate: float
    most: float
    element_bytes: int = 4


@lru_cache(maxsize=4096)
def choose(
    sums: Sums, blocks: tuple[BlockCost, ...], parts: int, processors: int
) -> tuple[int, int]:
    """The number of the fastest block, and in how many parts each sum is: `parts`, unless 0.

    Of those that take as long it is one of many warps.
    """
    found = [
        (microseconds(sums, block, count, processors), -block.warps, number, count)
        for number, block in enumerate(blocks)
        for count in ([parts] if parts else fitting_parts(sums, block.chunk))
    ]
    *_, number, count = min(found)
    return number, count


def fitting_parts(sums: Sums, multiple: int) -> list[int]:
    """Into how many parts sums may be split, each of them a multiple of so many summands."""
    if None in (sums.rows, sums.columns, sums.outer) or sums.depth is None:
        return [1]
    most = min(MAX_PARTS, sums.depth // MIN_SUMMANDS)
    return [1, *(n for n in range(2, most + 1) if sums.depth % (n * multiple) == 0)]


def microseconds(sums: Sums, block: BlockCost, parts: int, processors: int) -> float:
    """How long all blocks take together."""
    rows, columns, outer = sums.rows or LARGE, sums.columns or LARGE, sums.outer or 1
    tiles = -(-rows // block.rows) * -(-columns // block.columns)
    each = -(-tiles * outer * parts // processors)  # blocks of a processor
    warps = block.warps * min(each, max(2, RESIDENT // block.warps))
    products = block.rows * block.columns * block.chunk / min(block.most, block.rate * warps)
    brought = (block.rows + block.columns) * block.chunk * block.element_bytes / CACHE
    chunks = -(-(sums.depth or LARGE) // (parts * block.chunk))
    waiting = CHUNK * max(1.0, FEW / block.warps)
    whole = chunks * max(waiting, each * products, each * brought)
    if parts == 1:
        return whole
    last = -(-tiles * outer // processors)  # tiles of a processor
    moved = block.rows * block.columns * PART_BYTES * (each + last * parts)
    return whole + SPLIT + moved / CACHE
