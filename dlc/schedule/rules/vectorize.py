"""Loops over elements as vectors: parted from their edges, several vectors abreast, with what whole
vectors leave.
"""

from __future__ import annotations

from dlc.core.errors import ScheduleError
from dlc.core.target import Target
from dlc.schedule.loop import loops
from dlc.schedule.nest import Stage, simple_index, stages
from dlc.schedule.rules.edges import part_edges
from dlc.schedule.rules.turn import MAX_INSIDE, read_along, turn
from dlc.schedule.trace import Trace
from dlc.schedule.work import is_polynomial, operations
from dlc.te.affine import coefficients, iterations
from dlc.te.expr import Expr
from dlc.te.simplify import canonical, surely_at_most, surely_divides
from dlc.te.transform import free_vars, loads

LONG = 4
"""Vectors of a line from which on its edges are parts of their own."""
ABREAST = 4
"""Vectors of a polynomial that run side by side: its operations wait for each other in turn."""


def part_line(trace: Trace, name: str, target: Target) -> None:
    """Part a long loop over elements from its edges, where it alone says where they are."""
    stage = next((s for s in stages(trace.func) if name in s.names), None)
    if stage is None or not _writes_along(stage, name):
        return
    lanes, extent = target.lanes(stage.value.dtype.size_bytes), trace.constant(name)
    if extent is not None and extent < LONG * lanes:
        return
    # Refused where other loops say where an edge is, or it may lie beyond the loop.
    trace.attempt(part_edges, stage, name)


def vectorize(trace: Trace, name: str, target: Target) -> None:
    """Run a loop as vectors where it walks along the innermost dimension of what it writes."""
    stage = next((s for s in stages(trace.func) if name in s.names), None)
    if stage is None or not _writes_along(stage, name) or turn(trace, stage, name, target):
        return
    lanes = target.lanes(stage.value.dtype.size_bytes)
    extent = trace.constant(name)
    if extent is not None and extent <= lanes:
        if extent > 1:
            trace.do("vectorize", name)
        return
    together = lanes * abreast(stage, target)
    row = _bring_inside(trace, stage, name)
    if extent is None:
        as_vectors = _as_open_lanes if stage.names == [name] else _as_open_lines
        as_vectors(trace, name, row, lanes, together)
        return
    if row is None and extent >= together > lanes:
        rest = _as_groups(trace, name, extent, together)
        if rest is not None:
            vectorize(trace, rest, target)
        return
    if extent % lanes:
        trace.do("partition", name, extent // lanes * lanes, "_v")
        # Of a loop with guards either part may have nothing to do, and be gone.
        if (tail := f"{name}_v") in loops(trace.func.body) and trace.constant(tail) != 1:
            _as_lanes(trace, tail, row and f"{row}_v")
        if name not in loops(trace.func.body):
            return
    _as_lanes(trace, trace.split(name, lanes)[1], row)


def _as_groups(trace: Trace, name: str, extent: int, together: int) -> str | None:
    """Run groups of as many elements as lanes; the loop over those that are left, or None."""
    if rest := extent % together:
        trace.do("partition", name, extent - rest, "_w")
    _as_lanes(trace, trace.split(name, together)[1] if extent > together else name, None)
    return f"{name}_w" if rest and f"{name}_w" in loops(trace.func.body) else None


def abreast(stage: Stage, target: Target) -> int:
    """How many vectors of a stage run as one: of polynomials, whose operations wait in turn, four.

    As many share what it takes to find a row that data chooses.
    Of other operations two share what the loop costs, which is half as much for each element of a
    vector of 512 bits. Measured on x86.
    """
    if target.gpu is not None or target.arch != "x86_64":
        return 1
    if _reads_rows_by_data(stage):
        return ABREAST
    if is_polynomial(stage.value):
        return max(1, ABREAST * min(4, stage.value.dtype.size_bytes) // 4)
    is_long = stage.value.dtype.size_bytes >= 4 and (operations(stage.store) or 0) > 1
    return 2 if is_long and target.vector_registers <= 16 else 1


def _reads_rows_by_data(stage: Stage) -> bool:
    """Whether data says which rows are read, the same ones for all lanes of a vector."""
    rows = [x.index for x in loads(stage.value) if x.index and not loads(x.index[-1])]
    places = [i for index in rows for i in index if loads(i)]
    return any(stage.names[-1] not in free_vars(i) for i in places)


def _writes_along(stage: Stage, name: str) -> bool:
    """Whether a stage may run in any order, and a loop walks along what it writes."""
    if stage.is_reduction or not stage.store.index:
        return False
    *outer, last = (simple_index(i, stage.loops) for i in stage.store.index)
    step = coefficients(last)
    if not step or step.get(name) != 1 or any(name in free_vars(i) for i in outer):
        return False
    own = [x for x in loads(stage.value) if x.buffer == stage.buffer]
    return all(x.index == stage.store.index for x in own)


def _as_open_lanes(trace: Trace, name: str, row: str | None, lanes: int, together: int) -> None:
    """Run a loop of open extent as vectors: whole ones without a mask, and what they leave.

    A whole one has `together` lanes; what is left has as many vectors of `lanes` as it needs.
    """
    extent = trace.extent(name)
    outer, inner = trace.split(name, together)
    parts = [(inner, row)]
    if cut_rest(trace, outer, extent, together, "_v"):
        rest = f"{inner}_v"
        if together > lanes and rest in loops(trace.func.body):
            rest = trace.split(rest, lanes)[1]
        parts.append((rest, row and f"{row}_v"))
    for lane, along in parts:
        # What is surely left, as of odd extents, has no loop of vectors around it, and no mask.
        if lane in loops(trace.func.body) and trace.constant(lane) is not None:
            _as_lanes(trace, lane, along)


def _as_open_lines(trace: Trace, name: str, row: str | None, lanes: int, together: int) -> None:
    """Run a loop of open extent, one of many, as vectors: those that `together` leave are single.

    A line may be short: only the last of its vectors has a mask.
    """
    extent, rest = trace.extent(name), name
    if row is None and together > lanes and not surely_at_most(extent, together):
        if not surely_divides(together, extent):
            whole = canonical(iterations(extent) // together * together)
            trace.do("partition", name, str(whole), "_w")
            rest = f"{name}_w"
        _as_lanes(trace, trace.split(name, together)[1], None)
        if rest == name or rest not in loops(trace.func.body):
            return
    _as_open_lanes(trace, rest, row, lanes, lanes)


def cut_rest(trace: Trace, outer: str, extent: Expr, lanes: int, suffix: str) -> bool:
    """Cut what whole vectors leave of a line off the loop over them, unless nothing is left."""
    has_rest = not surely_divides(lanes, extent) and not surely_at_most(extent, lanes)
    if has_rest:
        trace.do("partition", outer, str(iterations(canonical(extent // lanes))), suffix)
    return has_rest


def _as_lanes(trace: Trace, name: str, row: str | None) -> None:
    """Run a loop as one vector; a loop inside of it comes around it first."""
    if row is not None:
        trace.do("reorder", (row, name))
    trace.do("vectorize", name)


def _bring_inside(trace: Trace, stage: Stage, name: str) -> str | None:
    """Make the loop along which what is read lies side by side the innermost one.

    A vector along another loop gathers an element from each of several lines: what is left of
    these lines is used next, not after a walk through all the rest.
    """
    row = next((v for x in loads(stage.value) if (v := read_along(x, stage, name))), None)
    if row is None:
        return None
    order = stage.names[stage.names.index(row) + 1 :]
    trial = trace.copy()
    try:
        if (extent := trial.constant(row) or 0) > MAX_INSIDE:
            outer, row = trial.split(row, MAX_INSIDE)
            order = [v for v in order if v != outer]
        trial.do("reorder", (*order, row))
    except ScheduleError:
        return None  # the loops do not stand directly inside each other
    if not extent or (extent > MAX_INSIDE and extent % MAX_INSIDE):
        return None
    trace.take(trial)
    return row
