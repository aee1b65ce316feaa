"""Sums of products of 16-bit floats, of TF32 or of bytes, on the matrix engines of a GPU.

As `gpu_contract`, but a warp multiplies what a thread multiplies there: its tile is made of those
that one instruction computes, 16 rows by 8 columns and 32 bytes of summands. Both factors of a
chunk lie in shared memory as 16-bit floats, as the float32 that instructions round to TF32, or as
bytes, whose columns are lines then. Where summands fill no chunk, zeros do.
Lines are longer than they need be, so that those an instruction loads at once begin in different
banks: eight lines of 16 bytes, or four of eight columns of TF32.

Source: PTX ISA 9.0, "Warp Level Matrix Instructions"; the tiles are those of CUTLASS 2's
documentation, "Efficient GEMM in CUDA", in idea.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from dlc.core.target import Target
from dlc.core.types import DType
from dlc.schedule.gpu import WARP
from dlc.schedule.instruction import BYTE_PAIRS, WarpProduct
from dlc.schedule.loop import Func
from dlc.schedule.nest import Stage
from dlc.schedule.rules import gpu_contract, gpu_stage
from dlc.schedule.rules.gpu_block import cache_factors, unroll
from dlc.schedule.rules.gpu_contract import Product
from dlc.schedule.rules.gpu_cost import LARGE, BlockCost, Sums, choose
from dlc.schedule.rules.gpu_pipeline import pipeline_chunks
from dlc.schedule.rules.gpu_split import split_sum, spread_parts
from dlc.schedule.space import Space
from dlc.schedule.trace import Trace
from dlc.te.expr import Cast, Const, Expr, Unary, UnOp

ROWS, COLUMNS = 16, 8  # of one instruction
CHUNKS = (128, 96, 64, 32, 16, 8)
CHUNK_BYTES = (32, 128)  # of a chunk's summands: an instruction's, and as many as lines may have
GAPS = {"bf16": (8, 8), "f16": (8, 8), "tf32": (4, 8)}  # elements behind lines of both factors
GAPS |= dict.fromkeys(BYTE_PAIRS, (16, 16))
RATES = {"bf16": 1.3e6, "f16": 1.3e6, "tf32": 0.65e6}  # multiply-adds of a processor in a us
RATES |= dict.fromkeys(BYTE_PAIRS, 2.6e6)
WARPS = 10  # that reach that; fewer wait for what they load
_BYTES = {"bf16": 2, "f16": 2, "tf32": 4} | dict.fromkeys(BYTE_PAIRS, 1)  # of a factor's element
NARROW = (DType.BF16, DType.F16)
BYTES = (DType.I8, DType.U8)


@dataclass(frozen=True, slots=True)
class WarpTile:
    """The warps of a block in both directions, and the tiles of each."""

    row_warps: int
    column_warps: int
    rows: int
    columns: int

    @property
    def warps(self) -> int:
        """The warps of a block."""
        return self.row_warps * self.column_warps

    @property
    def shape(self) -> tuple[int, int]:
        """The rows and columns of a block."""
        rows = self.row_warps * self.rows * ROWS
        return rows, self.column_warps * self.columns * COLUMNS


TILES = (
    WarpTile(2, 2, 4, 8), WarpTile(2, 2, 4, 4), WarpTile(2, 2, 2, 8), WarpTile(2, 2, 2, 4),
    WarpTile(2, 2, 1, 4), WarpTile(1, 4, 1, 2), WarpTile(2, 2, 1, 2), WarpTile(1, 2, 1, 2),
    WarpTile(2, 4, 4, 4), WarpTile(2, 4, 2, 2), WarpTile(2, 4, 1, 2), WarpTile(4, 2, 1, 4),
    WarpTile(2, 4, 4, 2),
)  # fmt: skip


def match(func: Func, target: Target) -> Product | None:
    """A product of floats of the engines whose summands fill instructions, or None."""
    found = gpu_contract.match(func, target)
    return found if found is not None and takes(func, found) else None


def takes(func: Func, found: Product) -> bool:
    """Whether a product is one of floats of the engines whose summands fill instructions."""
    parts = found.parts
    total, result = gpu_contract.sum_and_result(func, parts)
    kind = kind_of(total)
    if kind is None or (kind in BYTE_PAIRS and found.row_side != 0):
        return False
    depth = _size([f.extent for f in total.inner])
    extents = {f.var: f.extent for f in result.loops}
    rows = _size([extents[v] for v in parts.rows])
    columns = _size([extents[v] for v in (*parts.columns, parts.lane)])
    return depth is not None and fills(kind, depth) and bool(_fitting(rows, columns))


def fills(kind: str, depth: int) -> bool:
    """Whether sums fill instructions, all but at most a third of what these multiply."""
    own = WarpProduct(kind, 1, 1).depth
    return -(-depth // own) * own * 2 <= 3 * depth


def _size(extents: list[Expr]) -> int | None:
    """The product of extents, None where it is only known at run time."""
    whole = [int(n.value) for n in extents if isinstance(n, Const)]
    return prod(whole) if len(whole) == len(extents) else None


def _fitting(rows: int | None, columns: int | None) -> list[WarpTile]:
    """The tiles that are no larger than the whole result."""
    sizes = rows or LARGE, columns or LARGE
    return [t for t in TILES if t.shape[0] <= sizes[0] and t.shape[1] <= sizes[1]]


def kind_of(total: Stage) -> str | None:
    """What both factors of a sum are made of, if it is the same and engines multiply it."""
    if total.factors is None:
        return None
    first, second = map(_rounding, total.factors)
    if f"{first}_{second}" in BYTE_PAIRS:
        return f"{first}_{second}"
    return first if first == second else None


def _rounding(factor: Expr) -> str | None:
    match factor:
        case Cast(DType.F32, a) if a.dtype in NARROW:
            return str(a.dtype)
        case Cast(DType.I32, a) if a.dtype in BYTES:
            return str(a.dtype)
        case Unary(UnOp.TF32, _):
            return "tf32"
        case _:
            return None


def chunk_size(kind: str, depth: int) -> int:
    """The most summands of a chunk whose lines are not too long.

    They divide the sum, or zeros fill the last chunk where chunks would be very short.
    """
    own = WarpProduct(kind, 1, 1).depth
    fitting = [c for c in CHUNKS if own <= c <= own * CHUNK_BYTES[1] // CHUNK_BYTES[0]]
    whole = [c for c in fitting if depth % c == 0 and c > own]
    most = max(-(-depth // own) * own, depth * 9 // 8)
    return next(c for c in whole or fitting if -(-depth // c) * c <= most)


def space(func: Func, target: Target) -> Space:
    """The tile of a block and the chunk of the reduction; 0 is analytic."""
    tiles = tuple(range(len(TILES) + 1))
    knobs = {"tile": tiles, "chunk": (0, *CHUNKS), "parts": (0, 1, 2, 4, 8)}
    return Space({**knobs, "stages": (0, 1, 2, 3, 4, 5, 6)})


def schedule(trace: Trace, found: Product, target: Target, knobs: Mapping[str, int]) -> None:
    """Tile the contraction; see the module."""
    tile_product(trace, found, target, knobs)


def tile_product(trace: Trace, found: Product, target: Target, knobs: Mapping[str, int]) -> int:
    """As `gpu_contract.tile_product`, for what `match` takes."""
    total = found.parts.sum
    loops = gpu_contract.as_matrix(trace, found)
    kind, depth = kind_of(trace.stage(total)), trace.constant(loops.summand)
    assert kind is not None, "match sees to that"
    assert depth is not None, "match sees to that"
    tile, size, parts = choose_tile(gpu_contract.sums_of(trace, loops), kind, target, knobs)
    threads = tile.warps * WARP
    own: list[str] = []
    staged = None
    if parts == 1 and _hands_on(trace, found):
        staged = gpu_stage.place(trace, total, loops.outer, tile.shape, threads)
    else:
        own = _distribute(trace, loops.outer, tile)
        trace.do("compute_at", total, f"{loops.column}_b")
    sums = (loops.sum_row, loops.sum_column, loops.summand)
    cut = split_sum(trace, total, sums, parts) if parts > 1 else None
    name, inside = (total, sums) if cut is None else (cut.total, cut.loops)
    uneven = (trace.constant(inside[2]) or depth) % size != 0
    chunk, tiled = gpu_contract.bring_chunks(trace, name, inside, size)
    cache_factors(
        trace, name, found.row_side, chunk, tiled, threads, GAPS[kind], target, kind in BYTE_PAIRS,
        zeros=uneven,
    )  # fmt: skip
    trace.do("drop_guards", name)
    lay_in_lanes(trace, name, tile)
    bind_lanes(trace, f"{tiled[0]}_init", f"{tiled[1]}_init", tile)
    unroll(trace, own)
    if staged is not None:
        bind_lanes(trace, *staged, tile)
        gpu_stage.write_out(trace, loops.outer, found.parts.result)
    if cut is not None:
        bind_lanes(trace, *cut.out, tile)
        trace.do("drop_guards", total)
        lay_in_lanes(trace, total, tile)
        bind_lanes(trace, *sums[:2], tile)
        bind_lanes(trace, *cut.final[:2], tile, cut.final[2])
        spread_parts(trace, total, cut)
    multiply_tiles(trace, tiled, tile, WarpProduct(kind, tile.rows, tile.columns))
    pipeline_chunks(trace, chunk, knobs)
    return threads


def choose_tile(
    sums: Sums, kind: str, target: Target, knobs: Mapping[str, int]
) -> tuple[WarpTile, int, int]:
    """The fastest tile, the summands of a chunk, and the parts of each sum."""
    assert target.gpu is not None, "tiles of blocks are for GPUs"
    assert sums.depth is not None, "match sees to that"
    wanted = knobs.get("tile", 0)
    tiles = [TILES[wanted - 1]] if wanted else _fitting(sums.rows, sums.columns)
    size = knobs.get("chunk", 0) or chunk_size(kind, sums.depth)
    costs = tuple(
        BlockCost(*t.shape, size, t.warps, RATES[kind] / WARPS, RATES[kind], _BYTES[kind])
        for t in tiles
    )
    number, parts = choose(sums, costs, knobs.get("parts", 0), target.gpu.processors)
    return tiles[number], size, parts


def _hands_on(trace: Trace, found: Product) -> bool:
    """Whether the sums of warps go on through shared memory, rather than from their registers.

    Not where rows are the digits of several loops, as the lines and pixels of an image are: threads
    that have elements of more rows would tell more of them apart.
    """
    result = trace.stage(found.parts.result)
    return len(found.dims[1]) == 1 or gpu_stage.is_long(result)


def _distribute(trace: Trace, outer: tuple[str, ...], tile: WarpTile) -> list[str]:
    """Give each thread what it has of its warp's tiles of the result; the loops over that."""
    row, column = outer[-2:]
    rows = (("w", tile.row_warps, "thread"), ("m", tile.rows, "step"),
            ("c", 2, "step"), ("d", 8, "thread"))  # fmt: skip
    columns = (("w", tile.column_warps, "thread"), ("m", tile.columns, "step"),
               ("c", 4, "thread"), ("d", 2, "step"))  # fmt: skip
    digits = tuple(tuple(d for d in ds if d[0] != "m" or d[1] > 1) for ds in (rows, columns))
    lead = ((("t", 1, "thread"),),) * (len(outer) - 2)
    trace.do("distribute_digits", outer, (*lead, *digits))
    tiles = [*[f"{row}_m"] * (tile.rows > 1), *[f"{column}_m"] * (tile.columns > 1)]
    return [*tiles, f"{row}_c", f"{column}_d"]


def lay_in_lanes(trace: Trace, total: str, tile: WarpTile) -> None:
    """The sum by warp, tile, and what each thread of the warp has of a tile."""
    lead = len(trace.stage(total).store.index) - 2
    for factors in ((8, 2), (2, 1, 4, 1), (tile.rows, 1, 1, tile.columns, 1, 1)):
        split_dims = lead + len(factors) + sum(f > 1 for f in factors)
        trace.do("transform_layout", total, tuple(range(split_dims)), ((1,) * lead + factors))
    # lead, row warp, [row tile], half, line, column warp, [column tile], pair, place
    rows = list(range(lead, lead + 3 + (tile.rows > 1)))
    columns = list(range(rows[-1] + 1, rows[-1] + 4 + (tile.columns > 1)))
    order = (rows[0], columns[0], *rows[1:-2], *columns[1:-2], *rows[-2:], *columns[-2:])
    trace.do("transform_layout", total, (*range(lead), *order))
    trace.do("set_scope", total, "register")


@dataclass(frozen=True, slots=True)
class _Digits:
    """A loop over rows or columns as the loops over its digits."""

    warp: str
    tiles: tuple[str, ...]  # none where a warp has one
    digits: tuple[str, str]  # half and line of a row; pair and place of a column


def _cut(trace: Trace, var: str, last: int, middle: int, tiles: int) -> _Digits:
    outer, inner = f"{var}_o", f"{var}_d"
    trace.do("split", var, last, (outer, inner))
    above, digit = f"{var}_a", f"{var}_c"
    trace.do("split", outer, middle, (above, digit))
    if tiles == 1:
        return _Digits(above, (), (digit, inner))
    warp, tile = f"{var}_w", f"{var}_m"
    trace.do("split", above, tiles, (warp, tile))
    return _Digits(warp, (tile,), (digit, inner))


def bind_lanes(
    trace: Trace, row: str, column: str, tile: WarpTile, inner: str | None = None
) -> None:
    """Let each thread run what it has of its warp's tiles, inside of the loop `inner` if any."""
    r = _cut(trace, row, 8, 2, tile.rows)
    c = _cut(trace, column, 2, 4, tile.columns)
    (half, line), (pair, place) = r.digits, c.digits
    own = [*([inner] if inner else []), *r.tiles, *c.tiles, half, place]
    trace.do("reorder", (r.warp, c.warp, line, pair, *own))
    for loop in (r.warp, c.warp, line, pair):
        trace.do("bind", loop, "thread")
    unroll(trace, own)


def multiply_tiles(
    trace: Trace, tiled: tuple[str, str, str], tile: WarpTile, product: WarpProduct
) -> None:
    """Let each warp multiply its tiles, an instruction's summands at a time."""
    row, column, inner = tiled
    r = _cut(trace, row, 8, 2, tile.rows)
    c = _cut(trace, column, 2, 4, tile.columns)
    steps, summand = f"{inner}_o", f"{inner}_d"
    trace.do("split", inner, product.depth, (steps, summand))
    nest = (*r.tiles, *c.tiles, *r.digits, *c.digits, summand)
    trace.do("reorder", (r.warp, c.warp, steps, *nest))
    trace.do("tensorize", nest[0], product.name)
    trace.do("bind", r.warp, "warp")
    trace.do("bind", c.warp, "warp")
    unroll(trace, [steps])
