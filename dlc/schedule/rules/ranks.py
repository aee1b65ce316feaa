"""Ranks of the elements of short rows, and other reductions that no other rule knows.

Those whose results lie side by side, as what they read does, run along vectors, in registers. Those
over such rows then have a partial result for each lane. No stage moves into another one.

Before:
    for i in range(64):
        for j in range(8):
            rank[i, j] = 0
            for r in range(8):
                rank[i, j] += 1 if A[i, j] < A[i, r] else 0
    for i in range(64):
        for k in range(2):
            place[i, k] = 0
            for r in range(8):
                place[i, k] += r if rank[i, r] == k else 0

After:
    for i in range(64):
        for r in unroll(8):
            for j in vectorize(8):
                rank_sums[0, j] += 1 if A[i, j] < A[i, r] else 0
        for j in vectorize(8):
            rank[i, j] = rank_sums[0, j]
    for i in range(64):
        for k in range(2):
            for r in vectorize(8):
                place_lanes[r] = r if rank[i, r] == k else 0
            for r in vectorize(8):
                place[i, k] += place_lanes[r]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from dlc.core.target import Target
from dlc.schedule.loop import Func, loops
from dlc.schedule.nest import Stage, stages
from dlc.schedule.rules.accumulate import accumulate, in_vectors
from dlc.schedule.rules.prepare import unroll_factor
from dlc.schedule.rules.row import in_lanes, over_last
from dlc.schedule.rules.window import along_vectors
from dlc.schedule.space import Space
from dlc.schedule.trace import Trace
from dlc.te.expr import Const

VECTORS = 4  # at most, of one reduction at a time
MANY = 33  # terms that are a loop: ranks are of at most 32, and more choices would fill the stack


@dataclass(frozen=True, slots=True)
class Ranks:
    """The buffers of reductions: of neighbours, and those over rows."""

    beside: tuple[str, ...]
    along: tuple[str, ...]


def match(func: Func, target: Target) -> Ranks | None:
    """The reductions of a function some of which run along vectors, or None."""
    found = stages(func)
    sums = [s for s in found if s.is_reduction and sum(t.buffer == s.buffer for t in found) == 1]
    beside = tuple(s.buffer for s in sums if _panel(s, target))
    along = (s.buffer for s in sums if s.buffer not in beside and _is_row(s, target))
    return Ranks(beside, tuple(along)) if beside else None


def _is_row(stage: Stage, target: Target) -> bool:
    """Whether a stage reduces one row that fills a vector."""
    if stage.is_scattered or len(stage.inner) != 1 or not over_last(stage):
        return False
    extent = stage.inner[0].extent
    return isinstance(extent, Const) and extent.value >= _lanes(stage, target)


def _panel(stage: Stage, target: Target) -> int:
    """How many results of a reduction are computed together; 0 if not along vectors."""
    extent = stage.loops[-1].extent if stage.loops else None
    if not isinstance(extent, Const) or extent.value == 1 or stage.is_scattered:
        return 0
    if not along_vectors(stage, stage.names[-1]):
        return 0
    count, lanes = int(extent.value), _lanes(stage, target)
    if count <= VECTORS * lanes:
        return count
    vectors = unroll_factor(Const(count // lanes, extent.dtype), VECTORS)
    return lanes * (VECTORS if count % lanes or vectors == 1 else vectors)


def _lanes(stage: Stage, target: Target) -> int:
    return target.lanes(max(4, stage.value.dtype.size_bytes))


def space(func: Func, target: Target) -> Space:
    """Nothing to choose."""
    return Space({})


def schedule(trace: Trace, found: Ranks, target: Target, knobs: Mapping[str, int]) -> None:
    """Run each of the reductions in vectors; see the module."""
    for total in found.along:
        stage = trace.stage(total)
        in_lanes(trace, stage, _lanes(stage, target))
    for total in found.beside:
        stage = trace.stage(total)
        *around, lane = stage.names
        panel, lanes = _panel(stage, target), _lanes(stage, target)
        if not around or panel < (trace.constant(lane) or 0):
            around.append(trace.split(lane, panel)[0])
        sums = f"{total}_sums"
        trace.do("cache_write", total, around[-1], sums, "register")
        terms = prod(trace.constant(f.var) or MANY for f in stage.inner)
        written_out = -1 if terms < MANY else 0
        accumulate(trace, sums, keep=True, lanes=lanes, written_out=written_out)
        copied = [v for v in loops(trace.loop(around[-1])) if v.endswith(f"_{sums}")]
        in_vectors(trace, copied, lanes)
