"""Reductions that run along vectors: depthwise convolutions, pools, means of blocks of channels.

The innermost dimension of the result is contiguous in everything that is read, so each step of the
reduction works on whole vectors. Some neighbouring results are computed together: their windows
overlap, and each input vector is loaded once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

from dlc.core.target import Target
from dlc.schedule.loop import Func, loops
from dlc.schedule.nest import Stage, simple_index, stages
from dlc.schedule.rules.accumulate import MAX_OPERATIONS, MAX_WIDTH, accumulate, written_size
from dlc.schedule.rules.lines import share_lines
from dlc.schedule.rules.panel import shares_nothing
from dlc.schedule.rules.prepare import loop_around
from dlc.schedule.rules.tile import TAIL_ROWS, vector_registers
from dlc.schedule.simplify import conjuncts
from dlc.schedule.space import Space
from dlc.schedule.trace import Trace
from dlc.te.affine import coefficients, iterations, leaves_some, loop_bounds, whole_groups
from dlc.te.expr import ONE, TRUE, Binary, BinOp, Const, Expr, Select, Var, index
from dlc.te.simplify import simplify, surely_at_most, surely_divides
from dlc.te.transform import free_vars, loads, substitute, walk
from dlc.te.types import is_const

FEW_RESULTS = 4  # are a tile whose window is written out, rather than more whose rows alone are
OPEN_WIDTH = 64  # stands for the width of a window that is known at run time only
STRIDE = 2  # of lanes, at most: two vectors are loaded, and every other element is taken


@dataclass(frozen=True, slots=True)
class Window:
    """A reduction along vectors, by loops of the nest that writes the result."""

    sum: str
    result: str
    lane: str
    row: str | None  # the loop of neighbouring results
    reach: int  # input vectors that one step of the row brings in (the stride)
    inner: int  # extent of the innermost reduction loop (the width of the window)
    height: int  # extent of the one around it
    channels: tuple[int, ...] = ()  # loops over those of a group of lanes, counted from the last


def match(func: Func, target: Target) -> Window | None:
    """The windowed reduction in a function whose moves are inlined, or None.

    Sums whose neighbours have nothing in common are left to panels of columns.
    """
    found = find(func, STRIDE)
    if found is None:
        return None
    total = next(s for s in stages(func) if s.buffer == found.sum)
    lanes, width = target.lanes(4), total.loops[-1].extent
    if along_vectors(total, total.names[-1]):
        is_panel = not surely_at_most(width, lanes) and shares_nothing(total)
        return None if is_panel else found
    if not isinstance(width, Const):
        return None  # some lanes of vectors that are not full would be loaded one by one
    # Wide windows fill vectors better than a narrow result does.
    return found if surely_at_most(lanes, width) or 2 * found.inner < lanes else None


def find(func: Func, most: int = 1) -> Window | None:
    """The only reduction of a function whose moves are inlined, along vectors, or None.

    Elements along a vector may be up to `most` apart in what is read.
    """
    found = stages(func)
    sums = [s for s in found if s.is_reduction]
    if len(sums) != 1:
        return None
    total = sums[0]
    results = [s for s in found if not s.is_reduction and s.reads(total.buffer)]
    return analyse(total, results[0], most) if len(results) == 1 else None


def analyse(total: Stage, result: Stage, most: int = 1) -> Window | None:
    """A reduction along vectors and the stage that reads it, or None; see `find`."""
    if len(total.loops) != len(result.loops):
        return None
    if not total.inner or not total.loops:
        return None
    lane_axis = total.names[-1]
    if is_const(total.loops[-1].extent, 1) or not along_vectors(total, lane_axis, most):
        return None
    if not _plain(total, result):
        return None
    row = result.names[-2] if len(result.loops) > 1 else None
    row_axis = total.names[-2] if row else None
    channels = _channels(total, lane_axis)
    loops_left = [f for i, f in enumerate(total.inner, -len(total.inner)) if i not in channels]
    above, inner = (ONE, ONE, *(f.extent for f in loops_left))[-2:]
    width = int(inner.value) if isinstance(inner, Const) else OPEN_WIDTH
    reach = max(
        (_step(x.index[-2], row_axis) for x in loads(total.value) if len(x.index) > 1), default=1
    )
    height = int(above.value) if isinstance(above, Const) else 1
    names = (total.buffer, result.buffer, result.names[-1], row)
    return Window(*names, reach, width, height, channels)


def _channels(total: Stage, lane: str) -> tuple[int, ...]:
    """The loops that say which element of their group lanes read, counted from the last one."""
    read: set[str] = set()
    for load in loads(total.value):
        if load.index and _ungrouped(load.index[-1], lane) != load.index[-1]:
            read |= free_vars(load.index[-1])
    inner = [f.var for f in total.inner]
    return tuple(i for i, v in enumerate(inner, -len(inner)) if v in read)


def along_vectors(total: Stage, lane: str, most: int = 1) -> bool:
    """Whether everything read is contiguous along the lane, or does not depend on it.

    Groups of lanes may read one element each: they are shuffled. Elements may be up to `most`
    apart.
    """
    found = False
    for load in loads(total.value):
        if not load.index:
            continue
        last = coefficients(_ungrouped(load.index[-1], lane))
        if last is None or any(lane in free_vars(i) for i in load.index[:-1]):
            return False
        if last.get(lane, 0) not in range(most + 1):
            return False
        found = found or lane in last
    return found


def _ungrouped(index: Expr, lane: str) -> Expr:
    """An index without the groups of lanes that read one element: of lane // 4 * 4, the lane."""
    match index:
        case Binary(BinOp.MUL, Binary(BinOp.FLOORDIV, Var(name), Const(size)), Const(factor)):
            return Var(name) if name == lane and size == factor else index
        case Binary(BinOp.ADD, a, b):
            return _ungrouped(a, lane) + _ungrouped(b, lane)
        case _:
            return index


def _plain(total: Stage, result: Stage) -> bool:
    """Whether the result reads the sum at its own position, loop by loop."""
    for load in loads(result.value):
        if load.buffer == total.buffer:
            index = [str(simple_index(i, result.loops)) for i in load.index]
            ones = [f.var if f.extent != Const(1, f.extent.dtype) else "0" for f in result.loops]
            if any(i not in (v, w) for i, v, w in zip(index, result.names, ones, strict=True)):
                return False
    return True


def _step(index: Expr, axis: str | None) -> int:
    found = coefficients(index)
    return found.get(axis, 1) if found and axis else 1


def space(func: Func, target: Target) -> Space:
    """How many neighbouring results are computed together; 0 is the analytic choice.

    `vectors` are those of each, and `written_out` loops of the window, innermost first; -1 is the
    analytic choice.
    """
    found = match(func, target)
    assert found is not None, "a space is asked for where the rule matches"
    total = next(s for s in stages(func) if s.buffer == found.sum)
    loops_left = sum(not is_const(f.extent, 1) for f in total.inner)
    return Space(
        {
            "rows": (0, *range(1, 9), 10, 12, 14, 16),
            "vectors": (1, 2, 4),
            "written_out": (-1, *range(loops_left + 1)),
        }
    )


def schedule(trace: Trace, found: Window, target: Target, knobs: Mapping[str, int]) -> None:
    """Tile the windowed reduction; see the module. Cores share its lines."""
    names = next(s.names for s in stages(trace.func) if found.lane in s.names)
    if len(names) > 3:
        share_lines(trace, names[-4], names[-3], found.height, target)
    tile(trace, found, target, knobs)


def tile(trace: Trace, found: Window, target: Target, knobs: Mapping[str, int]) -> None:
    """Tile the windowed reduction, where it is."""
    rows = trace.constant(found.row) if found.row else 1
    registers = vector_registers(target, target.lanes(4))
    if found.channels and found.inner > MAX_WIDTH:
        found = replace(found, inner=1)  # one of its columns at a time
    size = knobs.get("rows", 0) or _choose(rows, found, registers)
    size, outer = _shuffles(trace, found, size) if found.channels else (size, ())
    for lane, row, total in _cut_lanes(trace, found, target):
        leaves, sums = [(lane, row, size)], [total]
        while (cut := _cut(trace, *leaves[-1][1:])) is not None:
            lane, row, _ = leaves[-1]
            trace.do("partition", row, cut[0], "_x")
            leaves.append((f"{lane}_x", f"{row}_x", cut[1]))
            trace.do("duplicate", sums[-1], leaves[-1][0], f"_part{len(sums)}")
            sums.append(f"{sums[-1]}_part{len(sums)}")
        for (lane, row, count), part in zip(leaves, sums, strict=True):
            _tile(trace, target, lane, row, part, count, knobs, outer)


def _shuffles(trace: Trace, found: Window, size: int) -> tuple[int, tuple[int, ...]]:
    """How many results are a tile whose shuffles, by constants, are written out.

    And which loops of a large window, counted from the last one, stay loops, outside: those over
    its rows, and along rows that are long.
    """
    sizes = [written_size(trace, f.var) for f in trace.stage(found.sum).inner]
    whole = MAX_OPERATIONS // prod(sizes)
    if whole >= min(size, FEW_RESULTS):
        return min(size, whole), ()
    outer = [i for i in range(-len(sizes), 0) if i not in found.channels]
    if outer and sizes[outer[-1]] <= MAX_WIDTH:
        outer.pop()
    row = prod(n for i, n in enumerate(sizes, -len(sizes)) if i not in outer)
    return max(1, min(size, MAX_OPERATIONS // row)), tuple(outer)


def _cut_lanes(trace: Trace, found: Window, target: Target) -> list[tuple[str, str | None, str]]:
    """The parts of a result along its lanes: their loops over lanes and rows, and their sums.

    Of lanes whose elements lie apart all must be there, or they are loaded one by one: what reads
    beyond an edge is a part of its own. So is what whole vectors leave, which would all be masked.
    """
    parts = [(found.lane, found.row, found.sum)]
    for size in _lane_parts(trace, found, target.lanes(4)):
        lane, row, total = parts[-1]
        names = next(s.names for s in stages(trace.func) if lane in s.names)
        trace.do("partition", lane, size, "_v")
        for var in reversed(names[:-1]):
            trace.do("fission", var, "_v")
        parts.append((f"{lane}_v", row and f"{row}_v_2", f"{total}_edge"))
        trace.do("duplicate", total, f"{lane}_v", "_edge")
    return parts


def _lane_parts(trace: Trace, found: Window, lanes: int) -> list[int | str]:
    """How many lanes each part has, but for the last one."""
    reads, width = trace.stage(found.sum), trace.constant(found.lane)
    is_along = along_vectors(reads, reads.names[-1])
    if width is None:
        extent = trace.extent(found.lane)
        return [str(whole_groups(extent, lanes))] if is_along and leaves_some(extent, lanes) else []
    first, last = (0, width) if is_along else _inside(reads, width)
    ends = sorted({first, first + (last - first) // lanes * lanes, last} - {0, width})
    return [end - begin for begin, end in pairwise((0, *ends))]


def _inside(total: Stage, width: int) -> tuple[int, int]:
    """The first lane from which on no element lies beyond an edge, and where that ends."""
    lane = total.names[-1]
    conditions = [c for e in walk(total.value) if isinstance(e, Select) for c in conjuncts(e.cond)]
    bounds = loop_bounds({f.var: f.extent for f in total.inner})
    known = [c for c in conditions if lane in free_vars(c)]

    def holds(cond: Expr, place: int) -> bool:
        return simplify(substitute(cond, {lane: index(place)}), bounds) == TRUE

    inside = [n for n in range(width) if all(holds(c, n) for c in known)]
    return (inside[0], inside[-1] + 1) if inside else (0, 0)


def _cut(trace: Trace, row: str | None, size: int) -> tuple[int | str, int] | None:
    """Where a loop of neighbouring results is cut, and how many of the rest are a tile.

    An open number of results leaves a rest that only a run knows: a few at a time, then one.
    """
    if row is None or size == 1:
        return None
    rows = trace.constant(row)
    if rows is not None:
        return (rows // size * size, size) if rows > size and rows % size else None
    extent = trace.extent(row)
    if surely_divides(size, extent):
        return None
    rest = TAIL_ROWS if size > TAIL_ROWS and size % TAIL_ROWS == 0 else 1
    return str(iterations(extent) // size * size), rest


def _choose(rows: int | None, found: Window, registers: int) -> int:
    """The most results whose accumulators, inputs and one weight stay in registers."""
    most = max(1, (registers - 2 - found.inner + found.reach) // (1 + found.reach))
    if rows is None:
        return most // TAIL_ROWS * TAIL_ROWS or 1
    most = min(most, rows)
    whole = [s for s in range(1, most + 1) if rows % s == 0]
    return whole[-1] if whole[-1] * 2 > most else most


def _tile(
    trace: Trace,
    target: Target,
    lane: str,
    row: str | None,
    total: str,
    size: int,
    knobs: Mapping[str, int],
    outer: tuple[int, ...],
) -> None:
    lanes = target.lanes(4)
    width = trace.constant(lane)
    tile_row, tile_lanes = None, [lane]
    if row is not None and size > 1:
        tile_row = row
        if (trace.constant(row) or size + 1) > size:
            tile_row = trace.split(row, size)[1]
    if width is None or width > lanes:
        several, lane = trace.split(lane, lanes)
        tile_lanes = [lane]
        vectors = knobs.get("vectors", 1)
        if vectors > 1 and (trace.constant(several) or 0) % vectors == 0:
            several, each = trace.split(several, vectors)
            tile_lanes = [each, lane]
        if tile_row is not None:
            trace.do("reorder", (several, tile_row, *tile_lanes))
    written_out = [v for v in (tile_row, *tile_lanes[:-1]) if v is not None]
    outside = loop_around(trace.func, [*written_out, lane][0])
    if outside is not None:
        trace.do("compute_at", total, outside)
    count = knobs.get("written_out", -1)
    accumulate(trace, total, keep=not written_out, written_out=count, outer=outer)
    for name in written_out:
        trace.tile_loop(name)
    if lane in loops(trace.func.body):
        trace.tile_loop(lane, lanes=True)
