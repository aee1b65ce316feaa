"""Reductions of short rows, many of them: as many rows together as a vector has lanes.

A row that is shorter than a vector leaves lanes idle, and its lanes would be reduced one after the
other. Here each lane has a row of its own. The rows are loaded as they lie in memory, and tiles of
them are transposed in registers, as `turn` does.

Before:
    for i in range(64):
        sum = 0.0
        for r in range(12):
            sum += A[i, r]
        B[i] = sum

After:
    for io in range(4):
        tile = alloc(f32[16, 12], "register")
        for tile_0 in unroll(16):
            for tile_1 in vectorize(12):
                tile[tile_0, tile_1] = A[tile_0 + io * 16, tile_1]
        for r in unroll(12):
            for ii in vectorize(16):
                sum[ii] += tile[ii, r]
        for ii in vectorize(16):
            B[ii + io * 16] = sum[ii]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dlc.core.target import Target
from dlc.schedule.loop import For, Func, allocs, loops
from dlc.schedule.nest import Stage, stages
from dlc.schedule.primitive import refuse
from dlc.schedule.rules.columns import cut_rest
from dlc.schedule.rules.row import over_last, reductions_and_result, telling
from dlc.schedule.rules.turn import tile
from dlc.schedule.space import Space
from dlc.schedule.trace import Trace
from dlc.te.affine import whole_groups
from dlc.te.expr import Const
from dlc.te.simplify import surely_divides, surely_equal
from dlc.te.transform import free_vars, loads
from dlc.te.types import is_const


@dataclass(frozen=True, slots=True)
class Short:
    """A chain of stages that has one result for each row."""

    result: str
    rows: str  # the loop over rows, of the nest that writes the result
    lanes: int


def match(func: Func, target: Target) -> Short | None:
    """The rows of a function whose moves are inlined, or None."""
    sums = reductions_and_result(func)
    if sums is None:
        return None
    reductions, result = sums
    rows, lanes = _last(result.loops), target.lanes(4)
    if rows is None or rows.var not in telling(stages(func), result):
        return None
    if surely_equal(whole_groups(rows.extent, lanes), 0):
        return None
    if not all(over_last(s) and _is_short(s, lanes) for s in reductions):
        return None
    return Short(result.buffer, rows.var, lanes)


def _last(around: Sequence[For]) -> For | None:
    """The last loop that runs more than once."""
    return next((f for f in reversed(around) if not is_const(f.extent, 1)), None)


def _is_short(stage: Stage, lanes: int) -> bool:
    """Whether a vector has a lane for each of a stage's summands, which no two rows share."""
    rows = _last(stage.loops)
    summed = [f.extent for f in stage.inner if not is_const(f.extent, 1)]
    if rows is None or len(summed) != 1:
        return False
    if not isinstance(summed[0], Const) or summed[0].value > lanes:
        return False
    return not any(rows.var in free_vars(x.index[-1]) for x in loads(stage.value) if x.index)


def space(func: Func, target: Target) -> Space:
    """Nothing to choose."""
    return Space({})


def schedule(trace: Trace, found: Short, target: Target, knobs: Mapping[str, int]) -> None:
    """Bring all stages of some rows together; see the module."""
    rows = trace.extent(found.rows)
    outer, lane = trace.split(found.rows, found.lanes)
    names = [v for v in trace.stage(found.result).names if v != lane]
    trace.do("reorder", (*names, lane))
    made = trace.bring_together(found.result, names[-1])
    if not surely_divides(found.lanes, rows):
        cut_rest(trace, outer, rows, found.lanes)
    for buffer in made:
        _across(trace, buffer, found.lanes)
    trace.tile_loop(lane, lanes=True)


def _across(trace: Trace, buffer: str, lanes: int) -> None:
    """Compute an element for each lane."""
    stage = trace.stage(buffer)
    own = [v for v in stage.names if trace.constant(v) != 1]
    if len(own) != 1 or trace.constant(own[0]) != lanes:
        refuse("schedule", trace.func, f"'{buffer}' has no element for each row")
    (lane,) = own
    if not stage.is_reduction:
        trace.tile_loop(lane, lanes=True)
        return
    trace.do("decompose_reduction", buffer, stage.names[0])
    others = [v for v in (*stage.names, *(f.var for f in stage.inner)) if v != lane]
    others.sort(key=lambda v: trace.constant(v) != 1)  # the summands are the last of them
    trace.do("reorder", (*others, lane))
    tile(trace, others[-1], lane)
    for name in stage.names:
        if f"{name}_init" in loops(trace.func.body):
            trace.tile_loop(f"{name}_init", lanes=name == lane)
    shape = allocs(trace.func.body)[buffer].buffer.type.shape
    while len(shape) > 1:  # what lies side by side is one register
        trace.do("fuse_dims", buffer, len(shape) - 2)
        shape = allocs(trace.func.body)[buffer].buffer.type.shape
    trace.do("set_scope", buffer, "register")
