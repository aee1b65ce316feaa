"""How large a register tile should be: an analytic choice.

A tile of `rows` x `columns` vectors keeps rows * columns accumulators in registers. One step of the
reduction loads `columns` vectors, broadcasts `rows` scalars and does rows * columns
multiply-adds. The estimate counts the cycles of one step over all tiles, tails included.

Cores that work on 512 bits in halves start one multiply-add in a cycle beside two broadcasts: a
single vector of columns feeds them, and tall tiles read the columns less often. Where sums are
short, results that leave a tall tile at once are more than the store queue takes, though.

Source: measurements on AVX2 of Zen 3 (2 rows of 5 vectors take 1.1 to 1.16 times what 4 or 5 rows
take with a tail), on AVX-512 (tile sizes, spill rule rows*columns + columns + 1 <=
registers) of a Xeon and of Zen 4; Intel 64 Optimization Manual, section 2.1 (two FMA and two load
ports, FMA latency 4).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import gcd

from dlc.core.target import Target

FULL_RATE = 2  # multiply-adds that start in a cycle, unless vectors are in halves
LOADS = 2.0  # vectors that are loaded in a cycle
FMA_LATENCY = 5  # with one cycle for what delays a chain: 8 sums reached half of the rate of 10
COLUMN_CYCLES = 1.25  # to read a vector of columns, which one or two rows do not hide
COLUMN_OVERHEAD = 0.5  # cycles for a vector of columns from beyond L1, where a single one suffices
COLUMNS_SHARE = 0.75  # of the first cache, which rows and results pass as well
L2_BYTES_PER_CYCLE = 22  # of columns, beside multiply-adds; measured on Ice Lake
STEP_OVERHEAD = 0.25  # cycles per step that no port accounts for; favours larger tiles
TAIL_ROWS = 4  # of a tile for what is left of an open number of rows; what is left then has one
MOST_COLUMNS = 8  # vectors of a tile
LARGE = 1024  # stands for a number of rows that is only known at run time
SET_BYTES = 4096  # addresses as far apart share a set of the first cache: a page, mostly
STORES_HIDDEN = 10  # vectors of results that are written while the next tile multiplies
STORE_CYCLES = 8.0  # that each further vector delays it, where multiply-adds are in halves
VARIANT_COST = 0.02  # each further tile shape costs code and compile time: a tie-breaker


@dataclass(frozen=True, slots=True)
class Tile:
    """A register tile: `high` image rows of `rows` pixels each, by `columns` vectors."""

    high: int
    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class Near:
    """How many vectors of columns the first cache holds, and the cycles to read each of more."""

    vectors: int
    beyond: float


ALL_NEAR = Near(LARGE, 0.0)


def near_columns(steps: int, target: Target) -> Near:
    """What the first cache holds of columns of so many summands, while rows pass them."""
    vector_bytes = target.vector_bits // 8
    held = int(target.l1_bytes * COLUMNS_SHARE) // (steps * vector_bytes)
    return Near(held, vector_bytes / L2_BYTES_PER_CYCLE)


def cycles(
    rows: int, columns: int, fmas: int, near: Near = ALL_NEAR, loads: float = LOADS
) -> float:
    """Cycles of one reduction step of one tile, at least one FMA latency per dependent chain.

    `fmas` and `loads` start in a cycle; columns that are not `near` come from the second cache.
    """
    each = COLUMN_CYCLES if columns <= near.vectors else max(COLUMN_CYCLES, near.beyond)
    read = max((rows + columns) / loads, columns * each)
    busiest = max(rows * columns / fmas, read)
    far = COLUMN_OVERHEAD * columns if fmas < FULL_RATE else 0.0
    return max(busiest, float(FMA_LATENCY)) + STEP_OVERHEAD + far


def fits(rows: int, columns: int, registers: int) -> bool:
    """Whether a tile stays in registers: accumulators, one row of operands, one broadcast."""
    return rows * columns + columns + 1 <= registers


def most_rows(stride: int | None, target: Target) -> int:
    """How many rows of a tile may lie `stride` bytes apart before they push each other out of L1.

    Rows a multiple of `SET_BYTES` apart share the few lines of one set.

    Source: measured on Zen 4 (32 KiB, 8 ways): 14 rows of 1024 floats take 1.32 times what 8 take.
    """
    apart = SET_BYTES // gcd(stride or 1, SET_BYTES)
    return max(1, target.l1_bytes // SET_BYTES) * apart


@lru_cache(maxsize=4096)
def choose_tile(
    rows: int | None,
    high: int | None,
    columns: int | None,
    registers: int,
    most: int = LARGE,
    fmas: int = 2,
    steps: int = LARGE,
    most_columns: int = MOST_COLUMNS,
    near: Near = ALL_NEAR,
    loads: float = LOADS,
) -> Tile:
    """The cheapest tile for `high` image rows of `rows` pixels and `columns` vectors.

    None stands for a size that is only known at run time (taken as large); the rows of such a tile
    are a multiple of those for its tail. A tile has at most `most` rows of both kinds; `fmas`
    multiply-adds and `loads` start in a cycle; a sum has `steps` of them; a tile has `most_columns`
    vectors, of which so many are `near`.
    """
    wide, tall, across, most = rows or LARGE, high or 64, columns or 64, max(most, TAIL_ROWS)
    best: tuple[float, Tile] | None = None
    for nr in range(1, min(across, most_columns) + 1):
        least = TAIL_ROWS if rows is None else 1
        for mr in range(least, min(wide, registers) + 1, least):
            for ty in range(1, (min(tall, 4) if mr == wide else 1) + 1):
                if ty * mr > most or not fits(ty * mr, nr, registers):
                    continue
                whole = wide // mr * mr if rows is None else wide  # tails are told apart anyhow
                cost = _cost((whole, tall, across), (ty, mr, nr), fmas, steps, near, loads)
                tile = Tile(ty, mr, nr)
                if best is None or cost < best[0] - 1e-9:
                    best = (cost, tile)
    assert best is not None, "a tile of one row and one column always fits"
    return best[1]


def _cost(
    sizes: tuple[int, int, int],
    tile: tuple[int, int, int],
    fmas: int,
    steps: int,
    near: Near,
    loads: float,
) -> float:
    wide, tall, across = sizes
    ty, mr, nr = tile
    cost = 0.0
    variants = 0
    for (m, count_m), (t, count_t), (n, count_n) in product(
        _parts(wide, mr), _parts(tall, ty), _parts(across, nr)
    ):
        burst = _burst(m * t * n, fmas) / steps
        cost += count_m * count_t * count_n * (cycles(m * t, n, fmas, near, loads) + burst)
        variants += 1
    ideal = wide * tall * across / fmas
    # One broadcast should feed at least two multiply-adds where two start in a cycle: a single
    # column is load-bound in practice although the port count says otherwise.
    penalty = 1.2 if nr == 1 and mr > 1 and fmas >= FULL_RATE else 1.0
    return cost * penalty / ideal + VARIANT_COST * variants


def _burst(vectors: int, fmas: int) -> float:
    """Cycles that the next tile waits for results of one to be written.

    Source: measured on Zen 4, 1 x 1 convolutions: tiles of 28 vectors take 1.12 times what those
    of 8 to 12 do for sums of 16, 1.08 of 32, 1.03 of 96.
    """
    return STORE_CYCLES * max(0, vectors - STORES_HIDDEN) if fmas < FULL_RATE else 0.0


def _parts(total: int, size: int) -> list[tuple[int, int]]:
    """(size, count) of the full tiles, and of the tail if there is one."""
    whole, rest = divmod(total, size)
    return [(s, n) for s, n in ((size, whole), (rest, 1)) if s and n]


def vector_registers(target: Target, lanes: int) -> int:
    """How many vectors of `lanes` floats the registers hold; one vector may take several."""
    return target.vector_registers // max(1, lanes // target.lanes(4))
