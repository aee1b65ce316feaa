"""Vectors over what is read across them: tiles that are transposed in registers.

A vector along `c` of something stored along `w` would gather an element from each of several lines
of memory, which takes a load for each. Of as many `w` as a vector has lanes, the same elements are
whole vectors along `w`: these are loaded, and transposed in registers.

Before:
    for w in range(64):
        for c in range(32):
            B[w, c] = f(A[c, w], D[c])

After:
    for wo in range(4):
        for co in range(2):
            tile = alloc(f32[16, 16], "register")
            for tile_0 in unroll(16):
                for tile_1 in vectorize(16):
                    tile[tile_0, tile_1] = A[tile_0 + co * 16, tile_1 + wo * 16]
            for wi in unroll(16):
                for ci in vectorize(16):
                    B[wi + wo * 16, ci + co * 16] = f(tile[ci, wi], D[ci + co * 16])

Where `f` is much to write out for each `w`, the transposed tile goes through memory near by.
"""

from __future__ import annotations

from collections.abc import Iterator

from dlc.core.errors import ScheduleError
from dlc.core.target import Target
from dlc.schedule.loop import If, fresh_name, loops, names_in, walk
from dlc.schedule.nest import Stage, simple_index, stages
from dlc.schedule.trace import Trace
from dlc.schedule.work import operations
from dlc.te.affine import coefficients, iterations
from dlc.te.expr import Expr, Load
from dlc.te.simplify import canonical, surely_divides
from dlc.te.transform import free_vars, loads

MAX_INSIDE = 16
"""Vectors that share the lines which each of them gathers an element from, and rows of a tile: more
registers than that are there in no vector unit beside what shuffles make of them."""
LEAST = 4
"""Vectors from which on a tile is worth its shuffles: of less, lanes lie in a window."""
LEAST_LANES = 3
"""Lanes of which the same is true: the colours of a pixel."""
WRITTEN_OUT = 8
"""Instructions for an element that are written out for each vector of a tile."""


def turn(trace: Trace, stage: Stage, name: str, target: Target) -> bool:
    """Run a loop as vectors over transposed tiles; False where nothing is read across it."""
    lanes = min(target.lanes(stage.value.dtype.size_bytes), MAX_INSIDE)
    row = _row(stage, name)
    if row is None or not _across(stage, row, name):
        return False
    if _is_short(trace, row, LEAST) or _is_short(trace, name, LEAST_LANES):
        return False
    trial = trace.copy()
    try:
        made = [tile(trial, *part) for part in list(_parts(trial, stage, row, name, lanes))]
    except ScheduleError:
        return False
    if not any(made):
        return False
    trace.take(trial)
    return True


def _is_short(trace: Trace, name: str, least: int) -> bool:
    extent = trace.constant(name)
    return extent is not None and extent < least


def _row(stage: Stage, name: str) -> str | None:
    """The loop along which most of what is read across the lanes lies side by side."""
    found = [v for x in loads(stage.value) if (v := read_along(x, stage, name))]
    return max(found, key=found.count) if found else None


def read_along(load: Load, stage: Stage, name: str) -> str | None:
    """The one loop outside of `name` that takes a load from element to element."""
    around = (*stage.inner, *stage.loops)
    index = [simple_index(i, around) for i in load.index]
    steps = coefficients(index[-1]) if index else None
    if steps is None or steps.get(name) or not any(name in free_vars(i) for i in index[:-1]):
        return None
    found = [f.var for f in around if steps.get(f.var) == 1]
    return found[0] if len(found) == 1 and stage.names[-1] == name else None


def _parts(
    trace: Trace, stage: Stage, row: str, name: str, lanes: int
) -> Iterator[tuple[str, str]]:
    """Split a nest into parts: loops over some rows and over lanes, directly inside each other.

    They are those that remain of `row` and `name`. Only rests of open sizes have open rows.
    """
    order = stage.names[stage.names.index(row) + 1 :]
    pieces = [(row, name, order)]
    if _cut(trace, row, lanes, "_x"):
        pieces.append((f"{row}_x", f"{name}_x", [f"{v}_x" for v in order]))
    for number, (part, inner, rest) in enumerate(pieces):
        if part not in loops(trace.func.body):
            continue  # of a loop with guards either part may have nothing to do, and be gone
        some = _inner(trace, part, lanes) if number == 0 else part
        trace.do("reorder", (*rest, some))
        ends = [(some, inner)]
        if _cut(trace, inner, lanes, "_v"):
            ends.append((f"{some}_v", f"{inner}_v"))
        for those, end in ends:
            if those in loops(trace.func.body):
                lane = _inner(trace, end, lanes)
                trace.do("reorder", (those, lane))
                yield those, lane


def _cut(trace: Trace, name: str, lanes: int, suffix: str) -> bool:
    """Cut off what whole vectors leave of a loop."""
    count, extent = trace.constant(name), trace.extent(name)
    if surely_divides(lanes, extent) or (count is not None and count < lanes):
        return False
    trace.do("partition", name, str(canonical(iterations(extent) // lanes * lanes)), suffix)
    return True


def _inner(trace: Trace, name: str, lanes: int) -> str:
    """The part of a loop that is one vector: all of it where it is short."""
    count = trace.constant(name)
    return name if count is not None and count <= lanes else trace.split(name, lanes)[1]


def tile(trace: Trace, row: str, lane: str) -> bool:
    """Vectors along `lane`, for each `row`; whether loads across them are transposed."""
    made = False
    if (trace.constant(row) or 0) >= LEAST and (trace.constant(lane) or 0) >= LEAST_LANES:
        stage = next(s for s in stages(trace.func) if lane in s.names)
        direct = (operations(stage.store) or 0) <= WRITTEN_OUT

        def transposed(trial: Trace) -> None:
            for buffer in _across(stage, row, lane):
                _transpose(trial, buffer, row, lane, direct)
            if direct:
                trial.tile_loop(row)

        made = trace.attempt(transposed) is None  # an index may be read from memory, for instance
    if trace.constant(lane) != 1:
        trace.tile_loop(lane, lanes=True)
    return made


def _across(stage: Stage, row: str, lane: str) -> list[str]:
    """The buffers that are read along `row` and across `lane`, at one index each."""
    found: dict[str, set[tuple[Expr, ...]]] = {}
    for load in loads(stage.value):
        found.setdefault(load.buffer, set()).add(load.index)
    turned = {x.buffer for x in loads(stage.value) if read_along(x, stage, lane) == row}
    return [buffer for buffer, at in found.items() if buffer in turned and len(at) == 1]


def _transpose(trace: Trace, buffer: str, row: str, lane: str, direct: bool) -> None:
    """Read a tile of a buffer along `row` into registers, and from there along `lane`.

    Under a guard, what is transposed for one row would not be known to the next.
    """
    guarded = any(isinstance(s, If) for s in walk(trace.loop(row)))
    if not direct or guarded:
        turned = _fresh(trace, f"{buffer}_turned")
        trace.do("cache_load", buffer, (row, lane), turned, "register" if direct else "local")
        row, lane = f"{turned}_0", f"{turned}_1"
    tile = _fresh(trace, f"{buffer}_tile")
    trace.do("cache_load", buffer, (lane, row), tile, "register")
    trace.tile_loop(f"{tile}_0")
    trace.tile_loop(f"{tile}_1", lanes=True)
    if not direct or guarded:
        trace.tile_loop(row)
        trace.tile_loop(lane, lanes=True)


def _fresh(trace: Trace, wanted: str) -> str:
    return fresh_name(wanted, names_in(trace.func))
