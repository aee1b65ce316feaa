"""How a matrix engine computes one sum of products of planes, and what stands around it.

The parts that the rules for single products (`matrix`) and for attention (`attend_planes`) share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod

from dlc.core.types import DType
from dlc.schedule.instruction import SPLIT_LANES, TILE_PRODUCTS, TileProduct, split_name
from dlc.schedule.loop import Func, allocs, loops
from dlc.schedule.nest import Stage, simple_index, stages
from dlc.schedule.primitives.cache_read import shape_of
from dlc.schedule.rules.strip import TALL
from dlc.schedule.trace import Trace
from dlc.te.affine import coefficient, coefficients
from dlc.te.expr import ZERO, Binary, BinOp, Cast, Const, Expr, Load, Select
from dlc.te.simplify import canonical
from dlc.te.transform import free_vars, loads, walk
from dlc.te.types import is_const

ROWS = 16  # rows of a tile, and its columns
PAIR = 2 * ROWS
TILES_RANK = 6  # of columns at least: blocks of columns and of depth, planes, and those of a tile
_ROW_TYPES = (DType.F32, DType.BF16, DType.U8)  # that rows are made of
AHEAD = (2048, 4096)  # bytes before a column operand that is used once, to each cache


@dataclass(frozen=True, slots=True)
class Accumulators:
    """Tiles that are accumulated at a time, and how their operands come.

    Attributes:
        high: tiles of rows.
        wide: tiles of columns, 1 or 2.
        planes_inside: whether all planes of one tile are multiplied before the next tile.
        ahead: how far before they are read columns are asked for; 0 for not at all. Pairs of
            blocks of columns where `wide` is 2, else parts as long as `AHEAD`.
    """

    high: int = 2
    wide: int = 2
    planes_inside: bool = False
    ahead: int = 1

    def asked(self, knobs: Mapping[str, int]) -> Accumulators:
        """These, but for what knobs decide; `wide` decides whether they are these."""
        return replace(
            self,
            high=knobs.get("high", self.high),
            planes_inside=bool(knobs.get("planes_inside", self.planes_inside)),
            ahead=knobs.get("ahead", self.ahead),
        )


TALL_ONES = Accumulators(TALL, 1, planes_inside=True, ahead=2)


def product_of(stage: Stage) -> TileProduct | None:
    """The product of tiles that a stage sums, words of factors for 16 columns side by side.

    Vectors add such words, too: of a matrix of 16 words and columns as well, whose panels have
    fewer dimensions than tiles.
    """
    if stage.factors is None or not stage.is_reduction or len(stage.inner) < 2:
        return None
    read = [f.a for f in stage.factors if isinstance(f, Cast) and isinstance(f.a, Load)]
    kinds = tuple(str(load.dtype) for load in read)
    found = next((p for p in TILE_PRODUCTS if (p.rows, p.columns) == kinds), None)
    if found is None or len(read[1].index) < TILES_RANK:
        return None
    if not is_const(stage.inner[-1].extent, found.each):
        return None
    whole = is_const(stage.inner[-2].extent, ROWS) and is_const(stage.loops[-1].extent, ROWS)
    return found if whole else None


def is_product(stage: Stage) -> bool:
    """Whether a stage sums a product of tiles."""
    return product_of(stage) is not None


def operands(func: Func, of: Callable[[Stage], bool] = is_product) -> frozenset[str]:
    """The intermediates that products of tiles read, and computed ones that are split into them."""
    found = stages(func)
    planes = {x.buffer for s in found if of(s) for x in loads(s.value)}
    split = {x.buffer for s in found if s.buffer in planes for x in loads(s.value)}
    computed = {s.buffer for s in found if not _is_read(s.value)}
    return frozenset((planes | split & computed) & set(allocs(func.body)))


def _is_read(value: Expr) -> bool:
    """Whether a value is an element of a buffer, perhaps of bf16 that are widened."""
    if isinstance(value, Cast) and value.a.dtype is DType.BF16:
        value = value.a
    return isinstance(value, Load)


def finish_reader(trace: Trace, name: str) -> None:
    """Keep what is computed of the sums right before a result in registers."""
    stage = trace.stage(name)
    if stage.is_reduction:
        trace.do("guard_sum", name)
    trace.do("vectorize", stage.names[-1])
    trace.do("set_scope", name, "register")


def split_rows(trace: Trace, name: str, *, width: int = 1, parallel: bool = False) -> None:
    """Split each row's operands into planes at once, or copy them; `width` rows are a line.

    Blocks of 64 bytes that rows fill are split by themselves, the one they do not fill after them.
    """
    *others, row, plane, depth = trace.stage(name).names
    suffixes = [""]
    size = trace.constant(depth)
    assert size is not None, "a row has a constant number of operands"
    whole = _whole_blocks(trace.stage(name), others[-1], size) if others and not parallel else ZERO
    if whole != ZERO:
        trace.do("partition", others[-1], str(whole), "_r")
        suffixes.append("_r")
    for suffix in suffixes:
        inside = [f"{v}{suffix}" for v in (*others[-1:], row, plane, depth)]
        if inside[-1] in loops(trace.func.body):
            _split_rows(trace, [*others[:-1], *inside], width, parallel=parallel)


def _split_rows(trace: Trace, names: list[str], width: int, *, parallel: bool) -> None:
    """The same for one nest, by its loops."""
    *others, row, plane, depth = names
    if width > 1 and (trace.constant(row) or 0) > width:
        line, row = trace.split(row, width)
        others.append(line)
    block, lane = trace.split(depth, _lanes(trace, depth, plane))
    trace.do("reorder", (row, block, plane, lane))
    if parallel:
        trace.do("parallel", trace.fuse_all(others))
    trace.do("unroll", block)
    count, lanes = trace.constant(plane), trace.constant(lane)
    is_split = not isinstance(_stage_of(trace, plane).value, Load)  # else it is bf16, or bytes
    if count and lanes and is_split and _beside(trace, lane, plane):
        trace.do("tensorize", plane, split_name(count, lanes))
    else:
        trace.do("unroll", plane)
        trace.do("vectorize", lane)


def _stage_of(trace: Trace, loop: str) -> Stage:
    """The stage that a loop is around."""
    return next(s for s in stages(trace.func) if loop in s.names)


def _whole_blocks(stage: Stage, block: str, size: int = PAIR) -> Expr:
    """How many blocks of `size` hold only elements that are there, if some do not; else 0."""
    for choice in walk(stage.value):
        if isinstance(choice, Select) and block in free_vars(choice.cond):
            cond = choice.cond
            if isinstance(cond, Binary) and cond.op is BinOp.LT and block in free_vars(cond.a):
                return canonical(cond.b // size)
    return ZERO


def _lanes(trace: Trace, depth: str, plane: str) -> int:
    """The most elements of a row that stand side by side in what is split."""
    for lanes in (2 * PAIR, *SPLIT_LANES):  # a whole row of bytes, or less
        if (trace.constant(depth) or 0) % lanes:
            continue
        trial = trace.copy()
        if _beside(trial, trial.split(depth, lanes)[1], plane):
            return lanes
    return ROWS


def _beside(trace: Trace, lane: str, plane: str) -> bool:
    """Whether the elements that are split stand side by side, and all of them are there."""
    stage = _stage_of(trace, plane)
    for load in loads(stage.value):
        index = [simple_index(i, stage.loops) for i in load.index]
        along = coefficient(index[-1], lane) if index else None
        if along != 1 or load.dtype not in _ROW_TYPES:
            return False
        if any(lane in free_vars(i) for i in index[:-1]):
            return False
    choices = [e for e in walk(stage.value) if isinstance(e, Select)]
    return all(free_vars(e.cond) <= {plane} for e in choices)


def is_tiles(stage: Stage) -> bool:
    """Whether a stage lays an operand out as `pack_tiles` takes it."""
    extents = [f.extent for f in stage.loops[-3:]]
    wanted = zip(extents, (ROWS, ROWS, 2), strict=False)
    return len(stage.loops) > 6 and all(is_const(n, size) for n, size in wanted)


def pack_tiles(trace: Trace, name: str) -> None:
    """Split an operand into planes and lay it out in tiles, whole tiles by instructions.

    A panel has one tile beside the other, or two.
    """
    panel, block, plane, side, pair, column, half = trace.stage(name).names[-7:]
    trace.do("reorder", (panel, block, side, plane, pair, column, half))
    suffixes = [""]
    width = (trace.constant(side) or 1) * ROWS
    for var, size, suffix in ((panel, width, "_c"), (block, PAIR, "_r")):
        limits = _limits(trace.stage(name), var)
        guarded = _whole_blocks(trace.stage(name), var)
        whole = canonical((limits[0] + 1) // size) if limits else guarded
        if whole != ZERO:
            trace.do("partition", var, str(whole), suffix)
            suffixes.append(suffix)
    for suffix in suffixes:
        if f"{plane}{suffix}" not in loops(trace.func.body):
            continue
        stage = next(s for s in stages(trace.func) if f"{plane}{suffix}" in s.names)
        form = _pack_form(trace.func, stage)
        if form is not None:
            trace.do(
                "tensorize", f"{plane}{suffix}", f"{form}_{trace.constant(f'{plane}{suffix}')}"
            )
            continue
        trace.do("unroll", f"{plane}{suffix}")
        trace.do("vectorize", trace.fuse_all([f"{column}{suffix}", f"{half}{suffix}"]))


def split_panels(func: Func, stage: Stage) -> str | None:
    """The input that a stage splits into tiles, if a panel of tiles is made of two panels of it."""
    read = loads(stage.value)
    inputs = {p.name for p in func.inputs if p.type.is_static}
    panel, side = stage.names[-7], stage.names[-4]
    if len({x.buffer for x in read}) != 1 or read[0].buffer not in inputs:
        return None
    return read[0].buffer if {panel, side} <= free_vars(read[0].index[0]) else None


def _limits(stage: Stage, var: str) -> list[Expr]:
    """The last positions to which indices that a loop takes part in are limited."""
    found = []
    for load in loads(stage.value):
        for part in load.index:
            if isinstance(part, Binary) and part.op is BinOp.MIN:
                one, other = part.a, part.b
                if var in free_vars(one) | free_vars(other):
                    found.append(other if var in free_vars(one) else one)
    return found


def _pack_form(func: Func, stage: Stage) -> str | None:
    """The instruction that packs a tile of what a stage reads, if there is one.

    It takes whole tiles, of lines that are a constant number of elements apart.
    """
    plane, pair, column, half = stage.names[-4:]
    guards = [e.cond for e in walk(stage.value) if isinstance(e, Select)]
    if len(set(loads(stage.value))) != 1 or any(free_vars(c) - {plane} for c in guards):
        return None
    if not is_tiles(stage):
        return None
    read = loads(stage.value)[0]
    tail, inside = read.index[-3:], shape_of(func, read.buffer)[-2:]
    steps = [coefficients(simple_index(i, stage.loops)) for i in tail]

    def runs(position: int, **wanted: int) -> bool:
        found = steps[position] if -position <= len(steps) else None
        if found is None:
            return False
        factors = (found.get(pair, 0), found.get(column, 0), found.get(half, 0))
        return factors == tuple(wanted.get(v, 0) for v in ("pair", "column", "half"))

    for back, place in ((-2, ""), (-3, "apart_")):
        if not all(isinstance(size, Const) for size in inside[back + 1 :]):
            continue
        if runs(-1, column=1) and runs(back, pair=2, half=1):
            return f"pack_rows_{place}bf16"
        if runs(-1, pair=2, half=1) and runs(back, column=1):
            return f"pack_columns_{place}bf16"
    return None


def accumulate(
    trace: Trace,
    name: str,
    shape: Accumulators = Accumulators(),
    *,
    asks_in: str | None = None,
    made_of: str | None = None,
) -> None:
    """Accumulate some tiles in registers; what is left over, fewer.

    `asks_in` is the loop, over pairs of blocks of columns or over passes that they take, in each
    iteration of which the next pair is asked for, if it is to be; `made_of` is the input that tiles
    of columns are split of, if they are. Passes read it where they repair a sum.
    """
    stage = trace.stage(name)
    *lead, block, row, lane = stage.names
    summands = [f.var for f in stage.inner]
    factors = stage.factors
    product = product_of(stage)
    assert isinstance(factors, tuple), "a product has factors"
    assert product is not None, "only products of tiles are accumulated"
    dot = product.name(one_row=row not in free_vars(factors[0]))
    one_wide = shape.wide == 1
    if not one_wide and trace.constant(block) not in (1, 2):
        panel, block = trace.split(block, 2)
        lead.append(panel)
    tiles, row = trace.split(row, ROWS)
    count = trace.constant(tiles)
    assert count is not None
    high = min(count, shape.high)
    tile = [row, lane]
    if one_wide:
        lead.append(block)
    else:
        tile = [block, *tile]
    if high > 1:
        tiles, part = trace.split(tiles, high)
        tile = [part, *tile]
    trace.do("reorder", (*lead, tiles, *tile))
    trace.do("decompose_reduction", name, tile[0])
    *steps, planes = summands[:-2]
    order = (*tile[:-2], planes) if shape.planes_inside else (planes, *tile[:-2])
    trace.do("reorder", (*steps, *order, row, lane, *summands[-2:]))
    accumulator = f"{name}_tiles"
    trace.do("cache_write", name, tiles, accumulator, "tile")
    if asks_in is not None and shape.ahead:
        (read,) = loads(factors[1])
        _prefetch(trace, made_of or read.buffer, asks_in, steps[-1], order[-1], shape)
    suffixes = [""]
    if count % high:
        trace.do("partition", tiles, count // high, "_t")
        suffixes.append("_t")
    for suffix in suffixes:
        trace.do("unroll", f"{planes}{suffix}")
        for part in ("_init", "", f"_init_{accumulator}"):
            for var in tile[:-2]:
                if f"{var}{part}{suffix}" in loops(trace.func.body):  # one block may have none
                    trace.do("unroll", f"{var}{part}{suffix}")
        trace.do("tensorize", f"{row}_init{suffix}", f"tile_zero_{product.sums}")
        trace.do("tensorize", f"{row}{suffix}", dot)
        trace.do("tensorize", f"{row}_init_{accumulator}{suffix}", f"tile_store_{product.sums}")


def _prefetch(
    trace: Trace, weights: str, asks_in: str, step: str, inside: str, tiles: Accumulators
) -> None:
    """Ask for columns before they are read, which come from beyond the second cache.

    Tall tiles read a block of them in one pass: some steps before, first for the second cache, as
    the first has few places for what is on its way. Otherwise all passes share the next pair, a
    line or two before each product: many at once would take the places of tiles to be loaded.
    """
    if tiles.wide > 1:
        trace.do("prefetch", asks_in, inside, weights, 0, 2 * tiles.ahead, 2)
        return
    type_ = next(p.type for p in trace.func.inputs if p.name == weights)
    dim = type_.rank - 5  # before planes and what lies in a tile
    step_bytes = prod(type_.static_shape[dim + 1 :]) * type_.dtype.size_bytes
    for level, ahead in enumerate(AHEAD, 1):
        distance = -(-ahead * tiles.ahead // step_bytes)
        trace.do("prefetch", step, inside, weights, dim, distance, level)
