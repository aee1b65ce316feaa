"""Windows that overlap in two dimensions or more, or lie apart: pools, means of neighbours.

All terms of a window are one reduction after the other, along each dimension: lines of windows
share the reductions of columns, which read what lies side by side; vectors of windows that lie
apart pick their elements from these lines only. Everything is computed for some lines of an image
at a time, which stay in the nearest cache: what the windows read, the border around the image
included; from it, the reductions of columns; from these, those of rows. No loop over terms has to
look for the border.

Before:
    for y, x:
        out[y, x] = max of image[y + i, x + j] over i, j, where it lies inside

After:
    for some y:
        padded = image, and what surrounds it
        line[y, x] = max of padded[y + i, x] over i
        out[y, x] = max of line[y, x + j] over j
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from dlc.core.target import Target
from dlc.schedule.loop import Func, loops
from dlc.schedule.nest import Stage, stages
from dlc.schedule.rules import window
from dlc.schedule.rules.accumulate import accumulate, in_vectors
from dlc.schedule.rules.edges import part_edges
from dlc.schedule.rules.prepare import loop_around
from dlc.schedule.rules.vectorize import cut_rest
from dlc.schedule.rules.window import along_vectors
from dlc.schedule.space import Space
from dlc.schedule.trace import Trace
from dlc.te.affine import coefficients
from dlc.te.expr import ONE, Const, Load
from dlc.te.transform import loads

SAVES = 2  # times as many operations on windows as along dimensions: what storing lines costs
SAVES_ACROSS = 3  # where windows share vectors anyhow: 3 x 3 of blocks of channels was no faster
BLOCK_BYTES = 16384  # of lines that are computed together, half of a nearest cache
OPEN_LINES = 8  # the same, where their length is known at run time only
APART = 4  # of lanes, at most: so many vectors are loaded, and elements of all are taken
EDGE = "_edge"  # behind the names of loops that were cut off


@dataclass(frozen=True, slots=True)
class Sliding:
    """Such windows, by the loops of the nest that adds up or of the one of the result."""

    sum: str
    pairs: tuple[tuple[str, str], ...]  # each dimension: its windows and the terms of one
    result: tuple[str, ...]
    first: str  # the loop of the result over the outermost of these dimensions
    lane: str


def match(func: Func, target: Target) -> Sliding | None:
    """The windows of a function whose moves are inlined that are better reduced so, or None."""
    found = window.find(func, APART)
    if found is None or found.channels:
        return None
    total = next(s for s in stages(func) if s.buffer == found.sum)
    pairs = _pairs(total)
    pays = _saves if along_vectors(total, total.names[-1]) else _gathers
    if not pays(total, pairs):
        return None
    result = next(s for s in stages(func) if s.buffer == found.result and not s.is_reduction)
    at = min(total.names.index(loop) for loop, _ in pairs)
    return Sliding(found.sum, pairs, tuple(result.names), result.names[at], found.lane)


def _pairs(total: Stage) -> tuple[tuple[str, str], ...]:
    """For each loop over terms the loop over windows that it is counted on with; or none.

    A loop over one term says nothing.
    """
    found: dict[str, str] = {}
    places = [coefficients(i) for x in loads(total.value) for i in x.index]
    names = set(total.names)
    for term in total.inner:
        partners = [names & set(p or ()) for p in places if p is None or term.var in p]
        if len(partners) != 1 or len(partners[0]) != 1 or not isinstance(term.extent, Const):
            return ()
        if term.extent != ONE:
            found[term.var] = partners[0].pop()
    if len(set(found.values())) < len(found):
        return ()
    return tuple((loop, term) for term, loop in found.items())


def _saves(total: Stage, pairs: tuple[tuple[str, str], ...]) -> bool:
    """Whether lines of windows share enough: operations for each result, one way or the other."""
    terms = {f.var: int(f.extent.value) for f in total.inner if isinstance(f.extent, Const)}
    steps = [p for x in loads(total.value) for i in x.index if (p := coefficients(i))]
    if len(pairs) < 2:
        return False
    shared, lines = 0, 1
    for loop, term in reversed(pairs):
        shared += (terms[term] - 1) * lines
        lines *= next(p[loop] for p in steps if loop in p and term in p)
    along = total.names[-1] in {loop for loop, _ in pairs}
    return prod(terms.values()) - 1 >= (SAVES if along else SAVES_ACROSS) * shared


def _gathers(total: Stage, pairs: tuple[tuple[str, str], ...]) -> bool:
    """Whether elements that lie apart along a line are better picked from lines of windows.

    Where a line of known length is all there is, `window` parts it from its border, and windows
    that lie `APART` are rows.
    """
    lane = total.loops[-1]
    if len(pairs) == 1 and isinstance(lane.extent, Const):
        near = along_vectors(total, lane.var, APART - 1)
        return near and isinstance(total.value, Load) and pairs[0][0] == lane.var
    return lane.var in {loop for loop, _ in pairs}


def space(func: Func, target: Target) -> Space:
    """How many lines are computed together; 0 is the analytic choice."""
    return Space({"lines": (0, 2, 4, 8, 16, 32)})


def schedule(trace: Trace, found: Sliding, target: Target, knobs: Mapping[str, int]) -> None:
    """Reduce along one dimension after the other; see the module."""
    made, behind = [found.sum], ""
    for n, (loop, term) in enumerate(reversed(found.pairs)):
        if n + 1 == len(found.pairs) and isinstance(trace.stage(made[-1]).value, Load):
            break  # it can be read where it is
        line = f"{found.sum}_line{n}"
        trace.do("slide", made[-1], f"{loop}{behind}", f"{term}{behind}", line)
        made.append(line)
        behind += f"_{line}"
    outer = _cut_lines(trace, found, knobs.get("lines", 0))
    for buffer in made:
        trace.do("compute_at", buffer, outer)
    lanes = target.lanes(4)
    for buffer in made[:0:-1]:
        if trace.stage(buffer).is_reduction:
            _reduce_line(trace, buffer, lanes)
        else:
            trace.attempt(part_edges, trace.stage(buffer), trace.stage(buffer).names[-1])
    extent = trace.extent(found.lane)
    outer, lane = _as_vectors(trace, found.lane, lanes)
    trace.do("compute_at", found.sum, outer)
    accumulate(trace, found.sum, keep=True)
    if trace.constant(lane) != 1:
        trace.tile_loop(lane, lanes=True)
    cut_rest(trace, outer, extent, lanes, EDGE)


def _cut_lines(trace: Trace, found: Sliding, lines: int) -> str:
    """Cut the outermost dimension of an image into some lines each; the loop over these."""
    extent, around = trace.constant(found.first), loop_around(trace.func, found.first)
    if found.first == found.lane and around is not None:
        return around
    inside = found.result[found.result.index(found.first) + 1 :]
    sizes = [trace.constant(v) for v in inside]
    if not lines:
        known = prod(n for n in sizes if n is not None)
        most = max(OPEN_LINES, BLOCK_BYTES // (4 * known))
        lines = OPEN_LINES if None in sizes or extent is None else _balanced(extent, most)
    if extent is not None and lines >= extent and around is not None:
        return around
    return trace.split(found.first, max(2, lines if extent is None else min(lines, extent)))[0]


def _balanced(extent: int, most: int) -> int:
    """Up to so many lines, of an image that is cut evenly where it can be."""
    divisor = max(n for n in range(1, min(extent, most) + 1) if extent % n == 0)
    return divisor if 2 * divisor > min(extent, most) else -(-extent // -(-extent // most))


def _as_vectors(trace: Trace, lane: str, lanes: int) -> tuple[str, str]:
    """A loop around vectors of a line, and the one along them."""
    extent, outer = trace.constant(lane), loop_around(trace.func, lane)
    if extent is not None and extent <= lanes and outer is not None:
        return outer, lane
    return trace.split(lane, lanes if extent is None else max(2, min(lanes, extent)))


def _reduce_line(trace: Trace, buffer: str, lanes: int) -> None:
    """Reduce the lines of an intermediate in registers, a vector at a time."""
    lane = trace.stage(buffer).names[-1]
    extent, panel = trace.extent(lane), f"{buffer}_panel"
    outer, _ = _as_vectors(trace, lane, lanes)
    trace.do("cache_write", buffer, outer, panel, "register")
    accumulate(trace, panel, keep=True)
    in_vectors(trace, [v for v in loops(trace.loop(outer)) if v.endswith(f"_{panel}")])
    cut_rest(trace, outer, extent, lanes, EDGE)
