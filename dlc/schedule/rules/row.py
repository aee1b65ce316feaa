"""Reductions over the innermost dimensions with everything around them: softmax, norms, means.

All stages of one row run before the next row starts, so a row stays in the nearest cache that holds
it: it is read once from beyond, and written once. A row is what one sum is of, be it a line or all
pixels of some channels. Each reduction runs in as many partial results as a vector has lanes. Short
rows of polynomials go through the stages a few at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import prod

from dlc.core.errors import ScheduleError
from dlc.core.target import Target
from dlc.core.types import INDEX
from dlc.schedule.edit import loops_around
from dlc.schedule.loop import For, Func, accumulation, allocs
from dlc.schedule.nest import Stage, simple_index, stages
from dlc.schedule.rules.prepare import unroll_factor
from dlc.schedule.rules.subtotals import cut_sum
from dlc.schedule.rules.vectorize import ABREAST, abreast
from dlc.schedule.space import Space
from dlc.schedule.trace import Trace
from dlc.schedule.work import is_polynomial
from dlc.te.affine import coefficients, step_bytes
from dlc.te.expr import ZERO, BinOp, Const, Expr, Load, Var
from dlc.te.simplify import canonical, surely_divides, surely_less
from dlc.te.transform import free_vars, loads, substitute
from dlc.te.types import is_const

LONGEST_SUM = 1 << 14  # summands in one chain, whose rounding grows with its length
VECTORS = 4  # partial results of a reduction: an addition takes 4 cycles, and each starts one
LEAST_GROUPS = 4  # of as many vectors, before the last group may be masked
SHORT_ROW = 512  # elements, up to which what waits for a sum takes a good part of the time
TOGETHER = 4  # short rows, at most
NEAR_ROWS = 4  # rows of an iteration that stay in the second cache with what becomes of them
LEAST_CHUNKS = 4  # groups of rows for each thread


@dataclass(frozen=True, slots=True)
class Rows:
    """A chain of stages over the rows of one result."""

    result: str
    anchor: str | None  # the innermost loop over rows, of the nest that writes the result


def match(func: Func, target: Target) -> Rows | None:
    """The rows of a function whose moves are inlined, or None."""
    sums = reductions_and_result(func)
    if sums is None or not all(over_last(s) for s in sums[0]):
        return None
    found, (reductions, result) = stages(func), sums
    rank = max(_rank(s) for s in reductions)
    wide = [f for f in result.loops if f.extent != Const(1, f.extent.dtype)]
    has_row = len(wide) > rank or (bool(wide) and _reads_row(found, result, reductions))
    around = _around_sums(found, result) if has_row else result.loops
    return Rows(result.buffer, around[-1].var if around else None)


def reductions_and_result(func: Func) -> tuple[list[Stage], Stage] | None:
    """The reductions of a function, and the one stage that writes its one output; else None.

    What surrounds the results of that stage is filled by others, which load nothing.
    """
    found, written = stages(func), {b.name for b in func.outputs}
    reductions = [s for s in found if s.is_reduction]
    results = [s for s in found if s.buffer in written and loads(s.value)]
    if not reductions or len(func.outputs) != 1 or len(results) != 1:
        return None
    return reductions, results[0]


def over_last(stage: Stage) -> bool:
    """Whether the innermost summand loop walks along contiguous elements."""
    inner = stage.inner[-1].var if stage.inner else None
    if inner is None:
        return False
    for load in loads(stage.value):
        last = coefficients(load.index[-1]) if load.index else None
        if last and last.get(inner) == 1:
            return True
    return False


def _around_sums(found: list[Stage], result: Stage) -> tuple[For, ...]:
    """The loops over rows: those from the outermost to the last one that tells sums apart.

    A row may have several dimensions, as the pixels of a channel do.
    """
    known = telling(found, result, result.names[-1])
    inside = [i for i, f in enumerate(result.loops[:-1]) if f.var in known]
    count = inside[-1] + 1 if inside else 0
    while count + 1 < len(result.loops) and is_const(result.loops[count].extent, 1):
        count += 1
    return result.loops[:count]


def telling(found: list[Stage], result: Stage, along: str | None = None) -> frozenset[str]:
    """The variables of the result's loops that choose the sums an element is computed from.

    What has an element for each of a row `along` a loop, a sum of products for instance, is no
    such sum.
    """
    made = {s.buffer: s for s in found if s is not result}
    known: set[str] = set()
    seen: set[Load] = set()

    def visit(value: Expr) -> None:
        for load in loads(value):
            if load in seen or load.buffer not in made:
                continue
            seen.add(load)
            stage = made[load.buffer]
            used = {v for i in load.index for v in free_vars(simple_index(i, result.loops))}
            if stage.is_reduction and along not in used:
                known.update(used)
            elif all(isinstance(i, Var | Const) for i in stage.store.index):
                places = zip(stage.store.index, load.index, strict=True)
                visit(substitute(stage.value, {p.name: i for p, i in places if isinstance(p, Var)}))
            else:
                known.update(used)

    visit(result.value)
    return frozenset(known)


def _rank(stage: Stage) -> int:
    return sum(1 for f in stage.loops if f.extent != Const(1, f.extent.dtype))


def _reads_row(found: list[Stage], result: Stage, reductions: list[Stage]) -> bool:
    """Whether the result has an element for each summand rather than one for each sum.

    A product with a square matrix has as many sums as summands, and no others.
    """
    last = result.loops[-1].extent
    if len(reductions) == 1 and result.names[-1] in telling(found, result):
        return False
    return any(s.inner and s.inner[-1].extent == last for s in reductions) and last != Const(
        1, last.dtype
    )


def space(func: Func, target: Target) -> Space:
    """The number of vectors in flight."""
    return Space({"vectors": (1, 2, 4, 8)})


def schedule(trace: Trace, found: Rows, target: Target, knobs: Mapping[str, int]) -> None:
    """Bring all stages of a row, or of a few short ones, together; see the module."""
    if found.anchor is not None:
        anchor, groups = _together(trace, found.anchor, target)
        made = trace.bring_together(found.result, anchor)
        if groups != ZERO:
            trace.do("partition", anchor, str(groups), "_r")
        _store_in_result(trace, made, found.result)
        _ask_for_next_rows(trace, anchor, target)
    lanes = target.lanes(4)
    for stage in [s for s in stages(trace.func) if s.is_reduction]:
        together = is_polynomial(stage.value) and abreast(stage, target) > 1
        in_lanes(trace, stage, lanes, knobs.get("vectors", VECTORS), together=together)


def _together(trace: Trace, anchor: str, target: Target) -> tuple[str, Expr]:
    """The loop over groups of short rows: while one waits for its sum, the next ones are added up.

    Also how many groups are whole where some rows may be left, which run row by row, else 0. What
    computes no polynomials waits less. Measured on x86; others keep the loop over rows.
    """
    found, rows = stages(trace.func), trace.extent(anchor)
    lengths = [
        prod(trace.constant(f.var) or SHORT_ROW + 1 for f in s.inner)
        for s in found
        if s.is_reduction
    ]
    if target.arch != "x86_64" or max(lengths) > SHORT_ROW:
        return anchor, ZERO
    if not any(is_polynomial(s.value) for s in found):
        return anchor, ZERO
    count = unroll_factor(rows, TOGETHER)
    if count < TOGETHER - 1 and _share_rest(trace, anchor, target):
        count = TOGETHER
    if count == 1 or surely_less(rows, count * LEAST_CHUNKS * target.cores):
        return anchor, ZERO
    outer, _ = trace.split(anchor, count)
    return outer, ZERO if surely_divides(count, rows) else canonical(rows // count)


def _share_rest(trace: Trace, anchor: str, target: Target) -> bool:
    """Whether threads share what whole groups of rows leave, as they share the groups.

    The loops around do that; without any, so few rows are left that one thread does as well.
    """
    around = [trace.extent(f.var) for f in loops_around(trace.func, anchor)[:-1]]
    known = prod(int(n.value) for n in around if isinstance(n, Const))
    return known >= target.cores or all(is_const(n, 1) for n in around)


def _store_in_result(trace: Trace, made: Iterable[str], result: str) -> None:
    """Keep what elements of a row become where they will be: a long row has less memory to pass.

    Those of short rows stay in the nearest cache.
    """
    there = allocs(trace.func.body)
    for buffer in made:
        size = there[buffer].buffer.type.elems if buffer in there else ZERO
        if isinstance(size, Const) and size.value <= SHORT_ROW:
            continue
        with suppress(ScheduleError):  # it may be accumulated, or lie otherwise
            trace.do("store_in", buffer, result)


def _ask_for_next_rows(trace: Trace, anchor: str, target: Target) -> None:
    """While polynomials are computed, fetch what the next iteration over rows reads first.

    The first pass over a row only compares or adds up: it takes as long as its loads. Processors
    fetch ahead within a page, which a row begins anew. Measured on x86.
    """
    for stage in stages(trace.func):
        along = [f.var for f in (stage.inner if stage.is_reduction else stage.loops)]
        if not along or not is_polynomial(stage.value) or abreast(stage, target) < ABREAST:
            continue
        bytes_ = {_bytes_between(trace.func, x, anchor) for x in loads(stage.value)} - {0}
        if len(bytes_) == 1 and 0 < (ahead := bytes_.pop()) * NEAR_ROWS <= target.l2_bytes:
            trace.do("annotate", along[-1], "prefetch", ahead)


def _bytes_between(func: Func, load: Load, loop: str) -> int:
    """How far apart in memory what two iterations of a loop read of an input is; 0 if not known."""
    given = next((b for b in func.inputs if b.name == load.buffer), None)
    if given is None or not given.type.is_static:
        return 0
    return step_bytes(load.index, given.type, loop) or 0


def in_lanes(
    trace: Trace, stage: Stage, lanes: int, most: int = VECTORS, *, together: bool = False
) -> None:
    """Reduce in one partial result for each lane of one vector, or of several, `most` at most.

    Those of several run as one vector if `together`.
    """
    inner = stage.inner[-1].var
    extent = trace.constant(inner)
    if extent is not None and extent < lanes:
        if extent == 1:
            return
        if len(stage.inner) == 1:
            trace.tile_loop(inner, lanes=True)
            return
        lanes = extent  # a sum over several dimensions has more than one such short row
    if accumulation(stage.store) is BinOp.ADD:
        _, part = cut_sum(trace, [inner], stage.buffer, LONGEST_SUM)
        if part != stage.buffer:
            in_lanes(trace, trace.stage(part), lanes, most, together=together)
            return
    vectors = _vectors(extent, lanes, most)
    count = trace.extent(inner)
    if vectors > 1:
        at_once = lanes * vectors if together else lanes
        _part(trace, stage.buffer, trace.split(inner, lanes * vectors)[1], "vectors", at_once)
        inner = trace.stage(stage.buffer).inner[-1].var
    steps, lane = trace.split(inner, lanes)
    _part(trace, stage.buffer, lane, "lanes", lanes)
    if vectors > 1:
        trace.tile_loop(steps)
    final = trace.stage(stage.buffer)
    for loop in final.inner[:-1]:
        trace.tile_loop(loop.var)
    trace.tile_loop(final.inner[-1].var, lanes=True)
    whole = canonical(count // (lanes * vectors))
    if whole != ZERO and not surely_divides(lanes * vectors, count):
        # The last vectors are masked, no others.
        masked = trace.stage(f"{stage.buffer}_{'vectors' if vectors > 1 else 'lanes'}")
        trace.do("partition", masked.inner[-1].var, str(whole), "_t")


def _vectors(extent: int | None, lanes: int, most: int) -> int:
    """How many vectors of partial results a reduction has.

    As many as leave none over, unless these are few, which wait for each other and round more, and
    the last ones, which are masked, are few among all.
    """
    count = most if extent is None else extent // lanes
    if extent is not None and extent % lanes == 0:
        even = unroll_factor(Const(count, INDEX), most)
        if 2 * even > most or count < LEAST_GROUPS * most:
            return even
    return min(most, count)


def _part(trace: Trace, buffer: str, loop: str, suffix: str, lanes: int) -> None:
    """Reduce in one partial result for each iteration of a loop, all of them in registers."""
    name = f"{buffer}_{suffix}"
    trace.do("rfactor", buffer, loop, name)
    trace.do("decompose_reduction", name, trace.stage(name).names[0])
    partial = trace.stage(name)
    trace.do("reorder", (*(f.var for f in partial.inner), *partial.names))
    for names in (partial.names, [f"{n}_init" for n in partial.names]):
        for each in names[:-1]:
            trace.tile_loop(each)
        last = names[-1]
        if (trace.constant(last) or 0) > lanes:
            outer, last = trace.split(last, lanes)
            trace.tile_loop(outer)
        trace.tile_loop(last, lanes=True)
    trace.do("set_scope", name, "register")
