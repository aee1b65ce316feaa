"""Sums over outer dimensions with everything around them: softmax over channels, blocked norms.

What the row rule does to rows, in as many columns at a time as a vector has lanes, or as some
vectors have (see `panel`): all stages of these columns run before the next ones start, and each
reduction runs along vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dlc.core.target import Target
from dlc.schedule.loop import Func, loops
from dlc.schedule.nest import stages, top_nests
from dlc.schedule.rules.accumulate import accumulate, in_vectors
from dlc.schedule.rules.borders import separate
from dlc.schedule.rules.panel import choose_vectors
from dlc.schedule.rules.row import reductions_and_result, telling
from dlc.schedule.rules.window import along_vectors
from dlc.schedule.space import Space
from dlc.schedule.trace import Trace
from dlc.te.affine import iterations
from dlc.te.expr import Expr
from dlc.te.simplify import canonical, surely_at_most, surely_divides
from dlc.te.types import is_const

REST = "_t"  # behind the names of what computes the columns that are no whole panel


@dataclass(frozen=True, slots=True)
class Columns:
    """A chain of stages over the columns of one result, by the loops of its nest."""

    result: str
    groups: tuple[str, ...]  # the loops that tell sums apart, but for the last one
    along: tuple[str, ...]  # the loops along the columns, none where only sums are left of them
    lane: str


def match(func: Func, target: Target) -> Columns | None:
    """The columns of a function whose moves are inlined, or None."""
    sums = reductions_and_result(func)
    if sums is None or not sums[1].loops:
        return None
    found, (reductions, result) = stages(func), sums
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
    """How many vectors of columns go together; 0 is the analytic choice."""
    return Space({"vectors": (0, 1, 2, 4, 6, 8, 12, 16)})


def schedule(trace: Trace, found: Columns, target: Target, knobs: Mapping[str, int]) -> None:
    """Bring all stages of some columns together; see the module."""
    groups, lane = list(found.groups), found.lane
    size = trace.stage(found.result).value.dtype.size_bytes
    lanes = target.lanes(max(4, size))
    width, around = trace.extent(lane), [trace.extent(v) for v in groups]
    vectors = knobs.get("vectors", 0) or choose_vectors(trace.func, width, around, lanes, target)
    if not surely_at_most(width, lanes) or not groups:  # something holds the sums
        outer, lane = trace.split(lane, vectors * lanes)
        groups.append(outer)
    order = [*groups, *found.along, lane]
    if order != trace.stage(found.result).names:
        trace.do("reorder", tuple(order))
    if groups:
        trace.bring_together(found.result, groups[-1])
    totals = [s.buffer for s in stages(trace.func) if s.is_reduction]
    if vectors == 1:
        for total in totals:
            accumulate(trace, total, keep=True)
        return
    if not surely_divides(vectors * lanes, width) and not surely_at_most(width, vectors * lanes):
        cut_rest(trace, groups[-1], width, vectors * lanes)
        totals += [f"{total}{REST}" for total in totals]
        in_vectors(trace, [f"{lane}{REST}"], lanes, write_out=False)
    for total in totals:
        _add_panel(trace, total, lanes)


def cut_rest(trace: Trace, outer: str, width: Expr, columns: int) -> None:
    """Cut off what whole panels of so many columns leave."""
    trace.do("partition", outer, str(canonical(iterations(width) // columns)), REST)
    for top in top_nests(trace.func):
        if outer in loops(top):
            separate(trace, top)  # threads share both parts


def _add_panel(trace: Trace, total: str, lanes: int) -> None:
    """Add some vectors of columns up together, in registers, and store the totals behind."""
    once, *others = trace.stage(total).names
    if not others:
        once, _ = trace.split(once, trace.constant(once) or 0)
    panel = f"{total}_panel"
    trace.do("cache_write", total, once, panel, "register")
    accumulate(trace, panel, keep=True, written_out=0, lanes=lanes)
    copied = [v for v in loops(trace.loop(once)) if v.endswith(f"_{panel}")]
    in_vectors(trace, copied, lanes)
