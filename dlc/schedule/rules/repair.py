"""Sums of products that are computed once more, from fewer of them, where they are not finite.

That must cost nothing where all is finite, so it is no part of the tiles in registers: a strip of
the sums is kept in the first cache, from which the result is written.

Before:
    sums -> exact -> result

After:
    for strip (parallel):
        sums of the strip
        for elements: exact where the sum is not finite, result
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dlc.core.target import Target
from dlc.schedule.loop import Func, loops
from dlc.schedule.nest import Stage, stages
from dlc.schedule.rules.contraction import Contraction, analyse
from dlc.schedule.rules.inner import products_space, schedule_products
from dlc.schedule.rules.planes import finish_reader
from dlc.schedule.space import Space
from dlc.schedule.trace import Trace
from dlc.te.expr import ONE, Const, Select
from dlc.te.transform import loads

LINES = (0, 1, 2, 4, 7, 8)
STRIP_ROWS = 28  # rows that feed enough multiply-adds for each vector of weights


@dataclass(frozen=True, slots=True)
class Repaired:
    """The parts of a function, by buffers and by loops of the nest that writes the result."""

    sums: str
    exact: str
    outer: tuple[str, ...]  # loops over strips, outermost first
    line: str | None  # the innermost of them, of which a strip may hold several iterations
    columns: tuple[str, ...]
    row: str
    lane: str


@dataclass(frozen=True, slots=True)
class Parts:
    """A sum of products, and the buffer of what is added up once more."""

    parts: Contraction
    exact: str


def find(func: Func) -> Parts | None:
    """The only sum of products in a function whose moves are inlined, and its repair, or None."""
    found = stages(func)
    sums = [s for s in found if s.is_reduction and s.factors is not None]
    if len(sums) != 1:
        return None
    exact = [s for s in found if s.is_reduction and _is_repair(s, sums[0].buffer)]
    result = [s for s in found if not s.is_reduction and s.reads(sums[0].buffer)]
    if len(exact) != 1 or len(result) != 1 or not result[0].reads(exact[0].buffer):
        return None
    parts = analyse(func, sums[0], result[0])
    return None if parts is None else Parts(parts, exact[0].buffer)


def match(func: Func, target: Target) -> Repaired | None:
    """The sums in a function whose moves are inlined, or None."""
    found = find(func)
    if found is None or found.parts.packed is not None or not found.parts.rows:
        return None
    parts = found.parts
    *lines, row = parts.rows
    outer = (*parts.batch, *lines)
    line = lines[-1] if lines else None
    return Repaired(parts.sum, found.exact, outer, line, parts.columns, row, parts.lane)


def _is_repair(stage: Stage, sums: str) -> bool:
    """Whether a stage adds up where sums fulfil a condition."""
    value = stage.value
    return isinstance(value, Select) and any(x.buffer == sums for x in loads(value.cond))


def space(func: Func, target: Target) -> Space:
    """How many lines are a strip, and the tiles of the products; 0: the analytic choice."""
    found = match(func, target)
    assert found is not None, "a space is asked for where the rule matches"
    count = loops(func.body)[found.line].extent if found.line is not None else ONE
    most = count.value if isinstance(count, Const) else LINES[-1]
    return products_space(target, {"lines": tuple(n for n in LINES if n <= most)})


def schedule(trace: Trace, found: Repaired, target: Target, knobs: Mapping[str, int]) -> None:
    """Keep the sums of a strip near, and tile their products; see the module."""
    outer, inside = list(found.outer), [*found.columns, found.row, found.lane]
    if found.line is not None:
        lines, line = trace.split(found.line, knobs.get("lines", 0) or _lines(trace, found))
        outer[-1] = lines
        inside.insert(len(found.columns), line)
    trace.do("reorder", (*outer, *inside))
    place = trace.fuse_all(outer) if outer else None
    if place is not None:
        trace.do("parallel", place)
    trace.do("compute_at", found.exact, found.row)
    finish_reader(trace, found.exact)
    trace.do("vectorize", found.lane)
    if place is not None:
        trace.do("compute_at", found.sums, place)
    schedule_products(trace, found.sums, target, knobs)


def _lines(trace: Trace, found: Repaired) -> int:
    """The least number of lines that has enough rows."""
    assert found.line is not None, "there is a loop to split"
    width, count = (trace.extent(v) for v in (found.row, found.line))
    if not isinstance(width, Const) or not isinstance(count, Const):
        return 1
    fitting = [d for d in range(1, int(count.value) + 1) if count.value % d == 0]
    enough = (d for d in fitting if d * width.value >= STRIP_ROWS)
    return next(enough, fitting[-1] if fitting else 1)
