"""Nests without reductions: how many vectors at a time, and how many loops run parallel."""

from __future__ import annotations

from collections.abc import Mapping

from dlc.autotune.sketch.nests import run_parallel
from dlc.core.target import Target
from dlc.schedule.loop import Func, innermost_loops
from dlc.schedule.nest import stages
from dlc.schedule.rules import finish_rest
from dlc.schedule.space import Space
from dlc.schedule.trace import Trace


def space(func: Func, target: Target) -> Space | None:
    """Vectors written out in one iteration, and loops that run parallel; -1 as without tuning."""
    if any(s.is_reduction for s in stages(func)) or target.gpu is not None:
        return None
    return Space({"vectors": (1, 2, 4, 8), "threads": (-1, 0, 1, 2, 3)})


def schedule(prepared: Trace, target: Target, knobs: Mapping[str, int]) -> Trace:
    """Write out some vectors of each innermost loop.

    Raises:
        ScheduleError: the nest does not allow it.
    """
    trace = prepared.copy()
    vectors = knobs.get("vectors", 1)
    for name in innermost_loops(trace.func.body) if vectors > 1 else ():
        width = target.lanes(4) * vectors
        extent = trace.constant(name)
        if extent is not None and extent > width and extent % width == 0:
            _, inner = trace.split(name, width)
            several, lane = trace.split(inner, target.lanes(4))
            trace.do("vectorize", lane)
            trace.do("unroll", several)
    if knobs.get("threads", -1) >= 0:
        run_parallel(trace, knobs["threads"])
    finish_rest(trace, target)
    return trace
