"""Attention on a GPU: a block for some rows of one matrix, from scores to mixed values.

The rows of scores lie in shared memory, so they never become a tensor, and their softmax needs no
second pass over the keys. Keys and values stream through shared memory in chunks, as the columns
of any product do. Where both products are of 16-bit floats or TF32, warps multiply them on matrix
engines (`gpu_block_matrix`), and the rows of a block are tiles of 16.

Source: Dao et al., "FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness"
(2022), for keeping blocks of scores in fast memory; here whole rows, which fit up to some
thousand keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from dlc.core.target import Gpu, Target
from dlc.schedule.loop import Func, allocs
from dlc.schedule.nest import stages
from dlc.schedule.rules import attend, gpu_block_matrix
from dlc.schedule.rules.attend import Attention
from dlc.schedule.rules.gpu_block import multiply, spread
from dlc.schedule.rules.gpu_reduce import reduce_rows
from dlc.schedule.space import Space
from dlc.schedule.trace import Trace
from dlc.te.expr import ONE, Const

THREADS = 128
ROWS = (32, 16, 8, 4)  # of a block
ENGINE_ROWS = (32, 16)  # where matrix engines multiply
ROOM = 72 * 1024  # bytes of shared memory for rows of scores, beside chunks of the factors
SPARE = 1024  # bytes lost to the alignment of shared buffers


@dataclass(frozen=True, slots=True)
class BlockAttention:
    """An attention, the rows of one block, and whether matrix engines multiply."""

    parts: Attention
    rows: int
    on_engine: bool


def match(func: Func, target: Target) -> BlockAttention | None:
    """The attention in a function whose moves are inlined, where its rows fit; or None."""
    found = attend.match(func, target)
    if found is None:
        return None
    result = next(s for s in stages(func) if s.buffer == found.result)
    extents = {f.var: f.extent for f in result.loops}
    whole = [e.value for e in extents.values() if isinstance(e, Const)]
    if len(whole) < len(extents):
        return None
    on_engine = _is_for_engine(func, found)
    rows = choose_rows(func, found, target, on_engine=True) if on_engine else 0
    if rows:
        return BlockAttention(found, rows, on_engine=True)
    rows = choose_rows(func, found, target, on_engine=False)
    return BlockAttention(found, rows, on_engine=False) if rows else None


def _is_for_engine(func: Func, found: Attention) -> bool:
    """Whether matrix engines multiply both products of the tiles of some rows."""
    products = [s for s in stages(func) if s.buffer in (found.scores, found.mixed)]
    widths = [s.loops[-1].extent for s in products if s.loops]
    return all(
        isinstance(n, Const) and gpu_block_matrix.takes(s, ENGINE_ROWS[-1], int(n.value), THREADS)
        for s, n in zip(products, widths, strict=True)
    )


def choose_rows(func: Func, found: Attention, target: Target, *, on_engine: bool) -> int:
    """As many rows as leave no processor without a block; 0 where not even a few fit."""
    assert target.gpu is not None, "blocks are for GPUs"
    row = _row_bytes(func, found)
    if not row:
        return 0
    result = next(s for s in stages(func) if s.buffer == found.result)
    sizes = {f.var: int(f.extent.value) for f in result.loops if isinstance(f.extent, Const)}
    matrices, rows = prod(sizes[v] for v in found.batch), sizes[found.rows]
    choices = ENGINE_ROWS if on_engine else ROWS
    room = [(n, _room(n, row, target.gpu, on_engine=on_engine)) for n in choices]
    fitting = [n for n, left in room if left >= 0 and n <= rows]
    filling = [n for n in fitting if matrices * -(-rows // n) >= target.gpu.processors]
    return max(filling, default=0) or min(
        (n for n in fitting if n >= 8), default=max(fitting, default=0)
    )


def _row_bytes(func: Func, found: Attention) -> int:
    """The shared memory for a row of scores and what is computed from it; 0 if not constant."""
    made = allocs(func.body)
    total = 0
    for name in (found.masked or found.scores, *found.chain):
        kind = made[name].buffer.type if name in made else None
        if kind is None or not all(isinstance(n, Const) for n in kind.shape):
            return 0
        total += 4 * max((int(n.value) for n in kind.shape[-1:] if isinstance(n, Const)), default=0)
    return total


def _room(rows: int, row_bytes: int, gpu: Gpu, *, on_engine: bool) -> int:
    """The bytes of shared memory that so many rows leave over, less a chunk for each product."""
    if not on_engine:
        return ROOM - rows * row_bytes
    chunks = 2 * gpu_block_matrix.chunk_bytes(rows, THREADS)
    return gpu.shared_bytes - SPARE - rows * row_bytes - chunks


def _chunk_room(func: Func, parts: Attention, rows: int, target: Target) -> int:
    """The bytes of shared memory for all chunks of each of the products."""
    assert target.gpu is not None, "blocks are for GPUs"
    left = _room(rows, _row_bytes(func, parts), target.gpu, on_engine=True)
    return left // 2 + gpu_block_matrix.chunk_bytes(rows, THREADS)


def space(func: Func, target: Target) -> Space:
    """The rows of a block; 0 is the analytic choice."""
    return Space({"rows": (0, *ROWS)})


def schedule(trace: Trace, found: BlockAttention, target: Target, knobs: Mapping[str, int]) -> None:
    """Bring all stages of some rows into one block; see the module."""
    parts = found.parts
    lane = trace.stage(parts.result).names[-1]
    trace.do("reorder", (*parts.batch, parts.rows, lane))
    rows = knobs.get("rows", 0) or found.rows
    on_engine = found.on_engine and rows in ENGINE_ROWS
    room = _chunk_room(trace.func, parts, rows, target) if on_engine else 0
    at, _ = trace.split(parts.rows, rows)
    if parts.weights in allocs(trace.func.body):
        trace.do("compute_inline", parts.weights)

    def times(total: str, result: str) -> None:
        if on_engine:
            gpu_block_matrix.multiply(trace, total, result, at, THREADS, target, room)
        else:
            multiply(trace, total, result, at, THREADS)

    first = (parts.scores, parts.masked) if parts.masked else (parts.scores,)
    for buffer in reversed((*first, *parts.chain, parts.mixed)):
        trace.do("compute_at", buffer, at)
        trace.do("set_scope", buffer, "shared")
    if parts.masked:
        times(parts.scores, parts.masked)
    else:
        name, top = f"{parts.scores}_product", trace.stage(parts.scores).names[0]
        trace.do("cache_write", parts.scores, top, name, "local")
        times(name, parts.scores)
    for buffer in parts.chain:
        trace.do("drop_guards", buffer)
        stage = trace.stage(buffer)
        if stage.is_reduction:
            reduce_rows(trace, stage, stage.names, THREADS)
        else:
            spread(
                trace, [v for v in stage.names if trace.extent(v) != ONE] or stage.names, THREADS
            )
    times(parts.mixed, parts.result)
    for loop in (*parts.batch, at):
        trace.do("bind", loop, "block")
