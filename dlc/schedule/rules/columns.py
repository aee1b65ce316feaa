"""Sums over outer dimensions with everything around them: softmax over channels, blocked norms.

What the row rule does to rows, in as many columns at a time as a vector has lanes: all stages of
these columns run before the next ones start, and each reduction runs along vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dlc.core.target import Target
from dlc.schedule.loop import Func, allocs
from dlc.schedule.nest import stages
from dlc.schedule.rules.row import telling
from dlc.schedule.rules.window import accumulate, along_vectors
from dlc.schedule.space import Space
from dlc.schedule.trace import Trace
from dlc.te.types import is_const


@dataclass(frozen=True, slots=True)
class Columns:
    """A chain of stages over the columns of one result, by the loops of its nest."""

    result: str
    groups: tuple[str, ...]  # the loops that tell sums apart, but for the last one
    along: tuple[str, ...]  # the loops along the columns, none where only sums are left of them
    lane: str


def match(func: Func, target: Target) -> Columns | None:
    """The columns of a function whose moves are inlined, or None."""
    found = stages(func)
    reductions = [s for s in found if s.is_reduction]
    results = [s for s in found if s.buffer == func.outputs[0].name]
    if not reductions or len(func.outputs) != 1 or len(results) != 1 or not results[0].loops:
        return None
    (result,) = results
    lane = result.loops[-1]
    for stage in reductions:
        if not stage.loops or stage.loops[-1].extent != lane.extent:
            return None
        if is_const(lane.extent, 1) or not along_vectors(stage, stage.names[-1]):
            return None
    known = telling(found, result)
    outer = result.loops[:-1]
    groups = tuple(f.var for f in outer if f.var in known or is_const(f.extent, 1))
    along = tuple(f.var for f in outer if f.var not in groups)
    if lane.var not in known:
        return None
    return Columns(result.buffer, groups, along, lane.var)


def space(func: Func, target: Target) -> Space:
    """Nothing to choose."""
    return Space({})


def schedule(trace: Trace, found: Columns, target: Target, knobs: Mapping[str, int]) -> None:
    """Bring all stages of some columns together; see the module."""
    groups, lane = list(found.groups), found.lane
    size = trace.stage(found.result).value.dtype.size_bytes
    lanes = target.lanes(max(4, size))
    width = trace.constant(lane)
    if width is None or width > lanes or not groups:  # something holds the sums
        outer, lane = trace.split(lane, lanes)
        groups.append(outer)
    before = trace.stage(found.result).names
    order = [*groups, *found.along, lane]
    if order != before:
        trace.do("reorder", tuple(order))
    made = dict.fromkeys(s.buffer for s in stages(trace.func) if s.buffer != found.result)
    for buffer in reversed(made):
        if groups and buffer in allocs(trace.func.body):
            trace.do("compute_at", buffer, groups[-1])
    for stage in [s for s in stages(trace.func) if s.is_reduction]:
        accumulate(trace, stage.buffer, keep=True)
