"""Sums for each element of a line in the middle of the dimensions: norms of transposed images.

What the row rule does to rows, where a row does not lie side by side in memory but its neighbours
do: the sums of some neighbours are computed together, along vectors, by all stages before those of
the next ones start. What they are computed from is read from a near cache after the first time.
Only the result is stored along rows; `turn` transposes it. What panels leave of an open number of
neighbours, or of a large one without divisors, is a nest of its own, whose vectors are masked.

Before:
    for w in range(64):
        mean[w] = 0.0
        for c in range(32):
            mean[w] += A[c, w] / 32.0
    for w in range(64):
        for c in range(32):
            B[w, c] = A[c, w] - mean[w]

After:
    for wo in range(2):
        for c in range(32):
            for wi in vectorize(32):
                mean[wi] += A[c, wi + wo * 32] / 32.0
        for wi in range(32):
            for c in range(32):
                B[wi + wo * 32, c] = A[c, wi + wo * 32] - mean[wi]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isqrt, prod

from dlc.core.target import Target
from dlc.schedule.loop import For, Func, accumulation, allocs
from dlc.schedule.nest import Stage, stages
from dlc.schedule.primitives.cache_read import shape_of
from dlc.schedule.rules.accumulate import LONG_SUM
from dlc.schedule.rules.columns import REST, cut_rest
from dlc.schedule.rules.prepare import unroll_factor
from dlc.schedule.rules.row import reductions_and_result, telling
from dlc.schedule.rules.turn import LEAST
from dlc.schedule.space import Space
from dlc.schedule.trace import Trace
from dlc.te.affine import coefficients
from dlc.te.expr import ZERO, BinOp, Const
from dlc.te.simplify import surely_divides
from dlc.te.transform import free_vars, loads
from dlc.te.types import is_const

VECTORS = 4  # of neighbours, at most: as many chains of additions hide each other's latency
MOST_VECTORS = 8  # where the number of neighbours has no better divisor
CHAINS = 2  # of additions, from which on loads are what takes the time
PANEL = 2  # vectors of an open or a large prime number of neighbours: what they leave is masked
OPEN = 64  # stands for an extent that is known at run time only


@dataclass(frozen=True, slots=True)
class Across:
    """A chain of stages over neighbours, by the loops of the nest that writes the result."""

    result: str
    groups: tuple[str, ...]  # the loops that tell sums apart, but for the lane
    lane: str
    along: tuple[str, ...]  # the others
    count: int  # of neighbours whose sums are computed together


def match(func: Func, target: Target) -> Across | None:
    """The neighbours of a function whose moves are inlined, or None."""
    sums = reductions_and_result(func)
    if sums is None:
        return None
    found, (reductions, result) = stages(func), sums
    known = telling(found, result)
    wide = [f for f in result.loops if f.var in known and not is_const(f.extent, 1)]
    if not wide:
        return None
    lane = wide[-1]
    for stage in reductions:
        last = _lane(stage)
        if last is None or last.extent != lane.extent or not _is_along(func, stage, last.var):
            return None
    outer = [f for f in result.loops if f is not lane]
    groups = tuple(f for f in outer if f.var in known or is_const(f.extent, 1))
    along = tuple(f.var for f in outer if f not in groups)
    others = prod(f.extent.value if isinstance(f.extent, Const) else OPEN for f in groups)
    panel = PANEL * target.lanes(4)
    count = panel
    if isinstance(lane.extent, Const):
        count = _neighbours(int(lane.extent.value), int(others), target)
        if count < LEAST and lane.extent.value > panel:
            count = panel
    if count < LEAST:
        return None
    return Across(result.buffer, tuple(f.var for f in groups), lane.var, along, count)


def _lane(stage: Stage) -> For | None:
    """The last loop over elements of a stage that runs more than once."""
    return next((f for f in reversed(stage.loops) if not is_const(f.extent, 1)), None)


def _is_along(func: Func, stage: Stage, lane: str) -> bool:
    """Whether what is added up lies side by side along a loop, or does not depend on it."""
    found = False
    for load in loads(stage.value):
        sizes = zip(load.index, shape_of(func, load.buffer), strict=True)
        *outer, last = [ZERO, *(i for i, size in sizes if not is_const(size, 1))]
        steps = coefficients(last)
        if steps is None or any(lane in free_vars(i) for i in outer):
            return False
        if steps.get(lane, 0) not in (0, 1):
            return False
        found = found or steps.get(lane) == 1
    return found


def _neighbours(extent: int, others: int, target: Target) -> int:
    """How many of `extent` neighbours are computed together: a divisor, whose vectors are full.

    There are `others` lines of them; each thread should have some work.
    """
    lanes = target.lanes(4)

    def cost(count: int) -> float:
        vectors = -(-count // lanes)
        chain = max(1.0, CHAINS / vectors)  # a single sum waits for itself
        idle = others * (extent // count) < target.cores
        return vectors / count * chain * (2.0 if idle else 1.0)

    divisors = [n for n in range(1, min(extent, VECTORS * lanes) + 1) if extent % n == 0]
    whole = [extent] if extent <= MOST_VECTORS * lanes else []
    return min([*whole, *reversed(divisors)], key=cost)


def space(func: Func, target: Target) -> Space:
    """Nothing to choose."""
    return Space({})


def schedule(trace: Trace, found: Across, target: Target, knobs: Mapping[str, int]) -> None:
    """Bring all stages of some neighbours together; see the module."""
    lanes = target.lanes(4)
    extent = trace.extent(found.lane)
    outer, lane = trace.split(found.lane, found.count)
    order = (*found.groups, outer, lane, *found.along)
    if list(order) != trace.stage(found.result).names:
        trace.do("reorder", order)
    made = trace.bring_together(found.result, outer)
    suffixes = [""]
    if not surely_divides(found.count, extent):
        cut_rest(trace, outer, extent, found.count)
        suffixes.append(REST)
    for suffix in suffixes:
        neighbours = f"{lane}{suffix}"
        _in_lanes(trace, [f"{b}{suffix}" for b in made], trace.constant(neighbours), lanes)
        if not found.along:
            _as_lanes(trace, [neighbours], neighbours, lanes)


def _in_lanes(trace: Trace, made: Iterable[str], count: int | None, lanes: int) -> None:
    """Run stages before the result along so many neighbours, where they have one for each."""
    for buffer in made:
        stage = trace.stage(buffer)
        at = _lane(stage)
        if at is None or trace.constant(at.var) != count:
            continue  # it is the same for all of them
        if stage.is_reduction:
            _add_up(trace, buffer, at.var, lanes)
        else:
            _as_lanes(trace, stage.names, at.var, lanes)


def _as_lanes(trace: Trace, names: list[str], lane: str, lanes: int) -> None:
    """Run one of the loops of a nest as vectors, the innermost of all, and write out the others."""
    if names[-1] != lane:
        trace.do("reorder", (*names[names.index(lane) + 1 :], lane))
    count = trace.constant(lane) or 0
    ends = [lane]
    if count > lanes:
        if count % lanes:
            trace.do("partition", lane, count // lanes * lanes, "_x")
            ends.append(f"{lane}_x")
        vectors, ends[0] = trace.split(lane, lanes)
        trace.tile_loop(vectors)
    for end in ends:
        trace.tile_loop(end, lanes=trace.constant(end) != 1)
    for name in names:
        if name != lane:
            trace.tile_loop(name)


def _add_up(trace: Trace, total: str, lane: str, lanes: int) -> None:
    """Reduce in registers, in subtotals where there are many summands."""
    trace.do("decompose_reduction", total, trace.stage(total).names[0])
    stage = trace.stage(total)
    names, inner = stage.names, [f.var for f in stage.inner]
    trace.do("reorder", (*inner, *names))
    terms = prod(trace.constant(v) or 0 for v in inner)
    is_sum = accumulation(stage.store) is BinOp.ADD
    most = isqrt(terms) if is_sum and terms > LONG_SUM else terms
    count = trace.constant(inner[-1])
    size = unroll_factor(trace.extent(inner[-1]), most)
    rows, _ = trace.split(inner[-1], size if size > 1 or count is None else count)
    part = f"{total}_part"
    trace.do("subtotal", total, rows, part)
    for suffix in ("_init", f"_{part}_init", "", f"_{part}"):
        _as_lanes(trace, [f"{v}{suffix}" for v in names], f"{lane}{suffix}", lanes)
    shape = allocs(trace.func.body)[part].buffer.type.shape
    while len(shape) > 1 and is_const(shape[-1], 1):  # what lies side by side is one register
        trace.do("fuse_dims", part, len(shape) - 2)
        shape = allocs(trace.func.body)[part].buffer.type.shape
    trace.do("set_scope", part, "register")
