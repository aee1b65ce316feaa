"""Attention of any length on a GPU: a block for some rows of one matrix, some keys at a time.

Where whole rows of scores have no place in shared memory, or nobody knows how long they are, the
softmax is brought up to date with each block of keys (`online_softmax`). What a block of threads
keeps does not grow with the keys, so both lengths may be open, and matrix engines multiply
whatever the number of keys is.

Source: Milakov, Gimelshein, "Online normalizer calculation for softmax" (2018); Dao et al.,
"FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness" (2022).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from dlc.core.target import Target
from dlc.schedule.loop import Func, LoopKind, allocs, loops
from dlc.schedule.nest import Stage, stages
from dlc.schedule.rules import attend, gpu_attend, gpu_block_matrix
from dlc.schedule.rules.attend import Attention
from dlc.schedule.rules.gpu_block import multiply, spread
from dlc.schedule.rules.gpu_reduce import reduce_rows
from dlc.schedule.softmax import find_softmax
from dlc.schedule.space import Space
from dlc.schedule.trace import Trace
from dlc.te.expr import Const
from dlc.te.simplify import surely_at_most, surely_divides
from dlc.te.types import const_or, const_size

THREADS = 128
ROWS = (32, 16, 8, 4)  # of a block
ENGINE_ROWS = (32, 16)  # where matrix engines multiply
KEYS = 64  # of a block
MIN_WHOLE = 8  # whole rows of scores that share enough of what is read of the keys
WIDEST = 256  # columns of what is mixed, which a block of threads keeps
LARGE = 1 << 20  # stands for a size that is only known at run time


@dataclass(frozen=True, slots=True)
class OnlineAttention:
    """An attention, the rows of one block, and whether matrix engines multiply."""

    parts: Attention
    rows: int
    on_engine: bool


def match(func: Func, target: Target) -> OnlineAttention | None:
    """The attention in a function whose moves are inlined, if whole rows do not do; or None."""
    whole = gpu_attend.match(func, target)
    parts = attend.match(func, target) if whole is None else whole.parts
    if parts is None or (whole is not None and whole.on_engine):
        return None
    found = find_softmax(func, parts.mixed)
    if isinstance(found, str) or surely_at_most(found.keys, KEYS):
        return None
    width = found.mixed.loops[-1].extent
    if not isinstance(width, Const) or width.value > WIDEST:
        return None
    matrices, rows = _counts(func, parts)
    on_engine = rows >= ENGINE_ROWS[-1] and _is_for_engine(func, parts, int(width.value))
    if whole is not None and whole.rows >= MIN_WHOLE and not on_engine:
        return None
    choices = [n for n in (ENGINE_ROWS if on_engine else ROWS) if n <= rows]
    assert target.gpu is not None, "blocks are for GPUs"
    processors = target.gpu.processors
    filling = [n for n in choices if matrices * -(-rows // n) >= processors]
    shared = [n for n in choices if n >= MIN_WHOLE]
    least = min(shared, default=choices[0])
    return OnlineAttention(parts, max(filling, default=least), on_engine)


def _counts(func: Func, parts: Attention) -> tuple[int, int]:
    """How many matrices there are, and rows of each; open sizes count as large."""
    result = next(s for s in stages(func) if s.buffer == parts.result)
    sizes = {f.var: const_or(f.extent, LARGE) for f in result.loops}
    return prod(sizes[v] for v in parts.batch), sizes[parts.rows]


def _is_for_engine(func: Func, parts: Attention, width: int) -> bool:
    """Whether matrix engines multiply both products of some rows and the keys of a block."""
    found = {s.buffer: s for s in stages(func) if s.is_reduction}
    scores, mixed = found[parts.scores], found[parts.mixed]
    around = prod(const_or(f.extent, LARGE) for f in mixed.inner[:-1])
    rows = ENGINE_ROWS[-1]
    return gpu_block_matrix.takes(scores, rows, KEYS, THREADS) and gpu_block_matrix.takes_sum(
        mixed, around * KEYS, rows, width, THREADS
    )


def space(func: Func, target: Target) -> Space:
    """The rows and the keys of a block; 0 is the analytic choice."""
    return Space({"rows": (0, *ROWS), "keys": (0, 32, 64, 128)})


def schedule(
    trace: Trace, found: OnlineAttention, target: Target, knobs: Mapping[str, int]
) -> None:
    """Bring all stages of some rows into one block, some keys at a time; see the module."""
    parts = found.parts
    lane = trace.stage(parts.result).names[-1]
    trace.do("reorder", (*parts.batch, parts.rows, lane))
    at, _ = trace.split(parts.rows, knobs.get("rows", 0) or found.rows)
    first = (parts.scores, parts.masked) if parts.masked else (parts.scores,)
    for buffer in reversed((*first, *parts.chain, parts.weights, parts.mixed)):
        trace.do("compute_at", buffer, at)
    keys, step = knobs.get("keys", 0) or KEYS, f"{at}_keys"
    softmax = find_softmax(trace.func, parts.mixed)
    assert not isinstance(softmax, str), "match sees to that"
    trace.do("online_softmax", parts.mixed, step, keys)
    trace.do("drop_guards", parts.weights)
    trace.do("compute_inline", parts.weights)
    for buffer in allocs(trace.func.body):
        trace.do("set_scope", buffer, "shared")
    is_cut = not surely_divides(keys, softmax.keys)
    _multiply(trace, found, step, _room(trace, target), is_cut, target)
    for stage in (softmax.largest, softmax.exps, softmax.total):
        trace.do("drop_guards", stage.buffer)
        now = trace.stage(stage.buffer)
        if now.is_reduction:
            reduce_rows(trace, now, now.names, THREADS)
    for loop in (*parts.batch, at):
        trace.do("bind", loop, "block")
    for stage in stages(trace.func):
        _spread(trace, stage, (*parts.batch, at, step))


def _room(trace: Trace, target: Target) -> int:
    """The bytes of shared memory for all chunks of each of the products."""
    assert target.gpu is not None, "blocks are for GPUs"
    used = sum(
        const_size(a.buffer.type.elems) * a.buffer.type.dtype.size_bytes
        for a in allocs(trace.func.body).values()
    )
    return (target.gpu.shared_bytes - gpu_attend.SPARE - used) // 2


def _multiply(
    trace: Trace, found: OnlineAttention, step: str, room: int, is_cut: bool, target: Target
) -> None:
    """Let the threads of a block multiply the scores of some keys, and mix their values."""
    parts = found.parts

    def times(total: str, result: str, zeros: bool) -> None:
        if found.on_engine:
            gpu_block_matrix.multiply(
                trace, total, result, step, THREADS, target, room, zeros=zeros
            )
        else:
            multiply(trace, total, result, step, THREADS, zeros=zeros)

    if parts.masked:
        times(parts.scores, parts.masked, False)
    else:
        name, top = f"{parts.scores}_product", trace.stage(parts.scores).names[0]
        trace.do("cache_write", parts.scores, top, name, "local")
        times(name, parts.scores, False)
    times(f"{parts.mixed}_part", parts.mixed, is_cut)


def _spread(trace: Trace, stage: Stage, outside: tuple[str, ...]) -> None:
    """Let all threads compute the elements of a stage that none of them computes yet."""
    known = loops(trace.func.body)
    names = [f.var for f in stage.loops if f.var not in outside]
    if names and all(v in known and known[v].kind is LoopKind.SERIAL for v in names):
        spread(trace, names, THREADS)
