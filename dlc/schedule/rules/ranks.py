"""Reductions side by side in a function that no other rule knows: the ranks of short rows.

Each runs along vectors, in registers, where what it reads lies side by side as well. No stage
moves into another one.

Before:
    for i in range(64):
        for j in range(8):
            rank[i, j] = 0
            for r in range(8):
                rank[i, j] += 1 if A[i, j] < A[i, r] else 0

After:
    for i in range(64):
        for r in unroll(8):
            for j in vectorize(8):
                rank_sums[0, j] += 1 if A[i, j] < A[i, r] else 0
        for j in vectorize(8):
            rank[i, j] = rank_sums[0, j]
"""

from __future__ import annotations

from collections.abc import Mapping

from dlc.core.target import Target
from dlc.schedule.loop import Func, loops
from dlc.schedule.nest import Stage, stages
from dlc.schedule.rules.prepare import unroll_factor
from dlc.schedule.rules.window import accumulate, along_vectors, in_vectors
from dlc.schedule.space import Space
from dlc.schedule.trace import Trace
from dlc.te.expr import Const

VECTORS = 4  # at most, of one reduction at a time


def match(func: Func, target: Target) -> tuple[str, ...] | None:
    """The buffers of reductions that run along vectors, or None."""
    found = stages(func)
    once = [s for s in found if sum(t.buffer == s.buffer for t in found) == 1]
    return tuple(s.buffer for s in once if s.is_reduction and _panel(s, target)) or None


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
    return (
        0 if count % lanes else lanes * unroll_factor(Const(count // lanes, extent.dtype), VECTORS)
    )


def _lanes(stage: Stage, target: Target) -> int:
    return target.lanes(max(4, stage.value.dtype.size_bytes))


def space(func: Func, target: Target) -> Space:
    """Nothing to choose."""
    return Space({})


def schedule(
    trace: Trace, found: tuple[str, ...], target: Target, knobs: Mapping[str, int]
) -> None:
    """Run each of the reductions along vectors; see the module."""
    for total in found:
        stage = trace.stage(total)
        *around, lane = stage.names
        panel, lanes = _panel(stage, target), _lanes(stage, target)
        if not around or panel < (trace.constant(lane) or 0):
            around.append(trace.split(lane, panel)[0])
        sums = f"{total}_sums"
        trace.do("cache_write", total, around[-1], sums, "register")
        accumulate(trace, sums, keep=True, lanes=lanes)
        in_vectors(
            trace, [v for v in loops(trace.loop(around[-1])) if v.endswith(f"_{sums}")], lanes
        )
