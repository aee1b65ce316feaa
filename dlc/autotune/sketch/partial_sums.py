"""A reduction in parts: each lane, or each thread, sums up its own part of the summands."""

from __future__ import annotations

from collections.abc import Mapping

from dlc.autotune.sketch.nests import busiest_sum, divisors, extent, run_parallel, write_out
from dlc.core.target import Target
from dlc.schedule.loop import Func
from dlc.schedule.primitive import refuse
from dlc.schedule.rules import finish_rest
from dlc.schedule.space import Space
from dlc.schedule.trace import Trace


def space(func: Func, target: Target) -> Space | None:
    """How many parts: of the innermost summands, as lanes; of the outermost ones, for threads."""
    total = busiest_sum(func)
    if total is None or target.gpu is not None:
        return None
    lanes = tuple(n for n in divisors(extent(total.inner[-1]), 4 * target.lanes(4)) if n > 1)
    parts = tuple(n for n in divisors(extent(total.inner[0]), 64) if n > 1)
    if not lanes and not parts:
        return None
    return Space({"lanes": (1, *lanes), "parts": (1, *parts), "threads": (0, 1, 2)})


def schedule(prepared: Trace, target: Target, knobs: Mapping[str, int]) -> Trace:
    """Part the busiest reduction.

    Raises:
        ScheduleError: the nest does not allow it.
    """
    trace = prepared.copy()
    total = busiest_sum(trace.func)
    if total is None:
        refuse("rfactor", trace.func, "there is no reduction")
    parts, lanes = knobs.get("parts", 1), knobs.get("lanes", 1)
    if parts > 1:
        first = total.inner[0].var
        whole = trace.constant(first)
        part = first if whole == parts else trace.split(first, (whole or parts) // parts)[0]
        trace.do("rfactor", total.buffer, part, f"{total.buffer}_parts")
    if lanes > 1:
        _lanes(trace, f"{total.buffer}_parts" if parts > 1 else total.buffer, lanes)
    run_parallel(trace, knobs.get("threads", 1))
    finish_rest(trace, target)
    return trace


def _lanes(trace: Trace, buffer: str, lanes: int) -> None:
    """Sum up in one partial result for each lane."""
    summands = trace.stage(buffer).inner
    if not summands:
        refuse("rfactor", trace.func, f"each part of '{buffer}' has one summand only")
    inner = summands[-1].var
    count = trace.constant(inner)
    if count is not None and count % lanes:
        refuse("rfactor", trace.func, f"{count} summands are no whole number of {lanes} lanes")
    lane = inner if count == lanes else trace.split(inner, lanes)[1]
    name = f"{buffer}_lanes"
    trace.do("rfactor", buffer, lane, name)
    stage = trace.stage(name)
    trace.do("decompose_reduction", name, stage.names[0])
    stage = trace.stage(name)
    trace.do("reorder", (*(f.var for f in stage.inner), *stage.names))
    write_out(trace, stage.names)
    trace.tile_loop(trace.stage(buffer).inner[-1].var)  # which adds the lanes up
    trace.do("set_scope", name, "register")
