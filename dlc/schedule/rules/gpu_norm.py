"""A product whose rows are normalised, as one launch on a GPU.

Blocks compute tiles of some rows, as of any product. The one that is done last with its rows goes
on with them: the norm needs whole rows, and those are complete now, in the second-level cache. The
rows themselves may be a result too, as those that a residual of a later layer adds to.

Source: CUDA C++ Programming Guide, "Memory Fence Functions", for the last block of several.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil

from dlc.core.target import Target
from dlc.schedule.loop import Func, allocs
from dlc.schedule.nest import Stage, stages
from dlc.schedule.rules import gpu_contract, gpu_matrix, row
from dlc.schedule.rules.contraction import analyse
from dlc.schedule.rules.gpu_block import spread
from dlc.schedule.rules.gpu_contract import Product
from dlc.schedule.rules.gpu_reduce import reduce_rows
from dlc.schedule.rules.gpu_tile import TILES
from dlc.schedule.space import Space
from dlc.schedule.trace import Trace
from dlc.te.expr import ONE, Const
from dlc.te.simplify import surely_equal
from dlc.te.types import const_size

TILE = 7  # of `gpu_tile.TILES`, from 1: 16 rows by 64 columns; few rows make the tail short
ROWS, COLUMNS = 16, 64
ENGINE_TILE = 6  # of `gpu_matrix.TILES`: the same
ROOM = 64 * 1024  # bytes of shared memory for the rows of a block
AT_ONCE = 64  # turns of a thread that are written out
MAX_TAIL = 64 * 1024  # elements that one block may normalise by itself


@dataclass(frozen=True, slots=True)
class Norm:
    """A product, and what is computed from its rows."""

    product: Product
    on_engine: bool  # whether warps multiply it
    row: str  # the loop over rows of the nest that writes the result
    chain: tuple[str, ...]  # from the rows of the product to the result, both left out


def match(func: Func, target: Target) -> Norm | None:
    """The norm in a function whose moves are inlined, or None."""
    known = stages(func)
    products = [s for s in known if s.is_reduction and s.factors is not None]
    if not products:
        return None
    total, result = products[0], known[-1]
    after = known[known.index(total) + 1 :]
    if len(after) < 3 or after[0] is result or not any(s.is_reduction for s in after):
        return None
    rows, chain = after[0], after[1:-1]
    results = {b.name for b in func.outputs}
    if results - {rows.buffer} != {result.buffer} or known.index(total) != 0:
        return None
    if not all(_is_of_rows(s, rows) for s in (*chain, result)):
        return None
    parts = analyse(func, total, rows)
    product = None if parts is None else gpu_contract.as_product(func, parts)
    wide = [f for f in result.loops if f.extent != ONE]
    if product is None or len(wide) != 2 or len(product.dims[1]) != 1:
        return None
    sizes = [f.extent.value for f in wide if isinstance(f.extent, Const)]
    if len(sizes) != 2 or sizes[1] > MAX_TAIL // ROWS:
        return None
    assert target.gpu is not None, "blocks are for GPUs"
    if ceil(sizes[0] / ROWS) * ceil(sizes[1] / COLUMNS) > target.gpu.processors:
        return None  # larger tiles, and a launch for the norm, are faster
    on_engine = min(sizes[0] // ROWS, sizes[1] // COLUMNS) > 0 and gpu_matrix.takes(func, product)
    return Norm(product, on_engine, wide[0].var, tuple(dict.fromkeys(s.buffer for s in chain)))


def _is_of_rows(stage: Stage, rows: Stage) -> bool:
    """Whether a stage is computed row by row, or reduces whole rows."""
    pairs = list(zip(stage.loops, rows.loops, strict=False))
    if len(stage.loops) != len(rows.loops) or not pairs:
        return False
    if not all(surely_equal(a.extent, b.extent) for a, b in pairs[:-1]):
        return False
    last, whole = (f.extent for f in pairs[-1])
    if stage.is_reduction:
        return last == ONE and row.over_last(stage)
    return last == ONE or surely_equal(last, whole)


def space(func: Func, target: Target) -> Space:
    """The chunk of the reduction; 0 is analytic."""
    return Space({"chunk": (0, 8, 16, 32)})


def schedule(trace: Trace, found: Norm, target: Target, knobs: Mapping[str, int]) -> None:
    """Let blocks share the product of some rows; the last one normalises them."""
    product = found.product
    parts = product.parts
    row_threads, _, high, _ = TILES[TILE - 1]
    result = trace.stage(stages(trace.func)[-1].buffer)
    at, _ = _split_rows(trace, result, found.row, row_threads * high)
    for buffer in reversed(found.chain):
        trace.do("compute_at", buffer, at)
    is_result = parts.result not in allocs(trace.func.body)
    if is_result:
        at, product = _merge(trace, found.product, result.buffer, at, row_threads * high)
    else:
        trace.do("compute_at", parts.result, at)
    trace.do("compute_at", parts.sum, at)
    near = _bring_near(trace, parts.result, at)
    names = trace.stage(result.buffer).names
    blocks = names[: names.index(at) + 1]
    for outer in blocks:
        trace.do("bind", outer, "block")
    tiled = gpu_matrix.tile_product if found.on_engine else gpu_contract.tile_product
    tile = ENGINE_TILE if found.on_engine else TILE
    threads = tiled(trace, product, target, {**knobs, "tile": tile})
    for outer in reversed(blocks if not is_result else ()):
        trace.do("expand_alloc", parts.result, outer)
    for buffer in (*near, *found.chain):
        if not is_result:
            if buffer not in near:
                trace.do("sink_alloc", buffer)
            trace.do("drop_guards", buffer)
        trace.do("set_scope", buffer, "shared")
        for stage in [s for s in stages(trace.func) if s.buffer == buffer]:
            if stage.is_reduction:
                reduce_rows(trace, stage, stage.names, threads)
            else:
                _spread(trace, [v for v in stage.names if trace.extent(v) != ONE], threads)
    inside = trace.stage(result.buffer).names
    _spread(trace, inside[inside.index(at) + 1 :], threads)


def _bring_near(trace: Trace, rows: str, at: str) -> tuple[str, ...]:
    """Let what follows read the rows from a copy in shared memory, if there is room: its name.

    The second-level cache takes long to answer, and the sums of a norm depend on each other: so
    all is asked for at once.
    """
    near = f"{rows}_near"
    trial = trace.copy()
    trial.do("hand_on", rows, at, near, "shared")
    kind = allocs(trial.func.body)[near].buffer.type
    if not kind.is_static or const_size(kind.elems) * kind.dtype.size_bytes > ROOM:
        return ()
    trace.take(trial)
    return (near,)


def _spread(trace: Trace, names: list[str], threads: int) -> None:
    """As `gpu_block.spread`, the turns of a thread written out, so that its loads go together."""
    turns = spread(trace, names, threads)
    if turns is not None and (trace.constant(turns) or AT_ONCE + 1) <= AT_ONCE:
        trace.tile_loop(turns)


def _split_rows(trace: Trace, stage: Stage, row: str, size: int) -> tuple[str, str]:
    """Bring the rows of a stage outside of its columns, some at a time."""
    trace.do("reorder", (*[v for v in stage.names if v != row][:-1], row))
    return trace.split(row, size)


def _merge(trace: Trace, product: Product, result: str, at: str, size: int) -> tuple[str, Product]:
    """Let the nest that writes the rows, a result itself, share the loop `at` over tiles of rows.

    The shared loop comes back, and the product as it is inside of it.
    """
    parts = product.parts
    stage = trace.stage(parts.result)
    (row,) = (v for v in parts.rows if trace.extent(v) != ONE)
    tile, inner = _split_rows(trace, stage, row, size)
    names, others = trace.stage(parts.result).names, trace.stage(result).names
    shared = names[: names.index(tile) + 1]
    for loop, other in zip(shared, others[: others.index(at) + 1], strict=True):
        trace.do("merge", loop, other)

    def rest(loops: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(inner if v == row else v for v in loops if v not in shared)

    inside = replace(
        parts, rows=rest(parts.rows), columns=rest(parts.columns), batch=rest(parts.batch)
    )
    return tile, replace(product, parts=inside)
