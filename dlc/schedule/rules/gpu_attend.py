"""Attention on a GPU: a block for some rows of one matrix, from scores to mixed values.

The rows of scores lie in shared memory, so they never become a tensor, and their softmax needs no
second pass over the keys. Keys and values stream through shared memory in chunks, as the columns
of any product do.

Source: Dao et al., "FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness"
(2022), for keeping blocks of scores in fast memory; here whole rows, which fit up to some
thousand keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from dlc.core.target import Target
from dlc.schedule.loop import Func, allocs
from dlc.schedule.nest import stages
from dlc.schedule.rules import attend
from dlc.schedule.rules.attend import Attention
from dlc.schedule.rules.gpu_block import multiply, spread
from dlc.schedule.rules.gpu_reduce import reduce_rows
from dlc.schedule.space import Space
from dlc.schedule.trace import Trace
from dlc.te.expr import ONE, Const

THREADS = 128
ROWS = (32, 16, 8, 4)  # of a block
ROOM = 72 * 1024  # bytes of shared memory for rows of scores, beside chunks of the factors


@dataclass(frozen=True, slots=True)
class BlockAttention:
    """An attention and the rows of one block."""

    parts: Attention
    rows: int


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
    rows = choose_rows(func, found, target)
    return BlockAttention(found, rows) if rows else None


def choose_rows(func: Func, found: Attention, target: Target) -> int:
    """As many rows as leave no processor without a block; 0 where not even a few fit."""
    assert target.gpu is not None, "blocks are for GPUs"
    made = allocs(func.body)
    row = 0
    for name in (found.scores, found.masked, *found.chain):
        shape = made[name].buffer.type.shape if name and name in made else ()
        if not all(isinstance(n, Const) for n in shape):
            return 0
        row += 4 * max((int(n.value) for n in shape[-1:] if isinstance(n, Const)), default=0)
    result = next(s for s in stages(func) if s.buffer == found.result)
    sizes = {f.var: int(f.extent.value) for f in result.loops if isinstance(f.extent, Const)}
    matrices, rows = prod(sizes[v] for v in found.batch), sizes[found.rows]
    fitting = [n for n in ROWS if n <= rows and n * row <= ROOM]
    filling = [n for n in fitting if matrices * -(-rows // n) >= target.gpu.processors]
    return max(filling, default=0) or min(
        (n for n in fitting if n >= 8), default=max(fitting, default=0)
    )


def space(func: Func, target: Target) -> Space:
    """The rows of a block; 0 is the analytic choice."""
    return Space({"rows": (0, *ROWS)})


def schedule(trace: Trace, found: BlockAttention, target: Target, knobs: Mapping[str, int]) -> None:
    """Bring all stages of some rows into one block; see the module."""
    parts = found.parts
    lane = trace.stage(parts.result).names[-1]
    trace.do("reorder", (*parts.batch, parts.rows, lane))
    at, _ = trace.split(parts.rows, knobs.get("rows", 0) or found.rows)
    if parts.weights in allocs(trace.func.body):
        trace.do("compute_inline", parts.weights)
    first = (parts.scores, parts.masked) if parts.masked else (parts.scores,)
    for buffer in reversed((*first, *parts.chain, parts.mixed)):
        trace.do("compute_at", buffer, at)
        trace.do("set_scope", buffer, "shared")
    if parts.masked:
        multiply(trace, parts.scores, parts.masked, at, THREADS)
    else:
        name, top = f"{parts.scores}_product", trace.stage(parts.scores).names[0]
        trace.do("cache_write", parts.scores, top, name, "local")
        multiply(trace, name, parts.scores, at, THREADS)
    for buffer in parts.chain:
        trace.do("drop_guards", buffer)
        stage = trace.stage(buffer)
        if stage.is_reduction:
            reduce_rows(trace, stage, stage.names, THREADS)
        else:
            spread(
                trace, [v for v in stage.names if trace.extent(v) != ONE] or stage.names, THREADS
            )
    multiply(trace, parts.mixed, parts.result, at, THREADS)
    for loop in (*parts.batch, at):
        trace.do("bind", loop, "block")
