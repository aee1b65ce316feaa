"""The column operand of a contraction, brought together for the rows of a column tile.

It is computed, unpacked or copied so that the lanes of a tile lie side by side and near.
"""

from __future__ import annotations

from collections.abc import Sequence

from dlc.schedule.loop import allocs
from dlc.schedule.rules.contraction import Contraction
from dlc.schedule.rules.cut_tiles import Leaf, loop_outside, loops_down_to
from dlc.schedule.rules.operands import is_unpacked
from dlc.schedule.rules.prepare import unroll_factor
from dlc.schedule.rules.tile import TAIL_ROWS
from dlc.schedule.trace import Trace
from dlc.te.transform import free_vars, loads

UNPACKED_TILES = 64  # of an open number of rows, for which columns are unpacked at once
MAX_STEPS = 16  # elements of a column that one iteration unpacks

Part = tuple[Leaf, str]
"""A tile, and the buffer of its sums."""


def gather_columns(
    trace: Trace, found: Contraction, parts: Sequence[Part], operand: str, *, open_rows: bool
) -> None:
    """Compute or copy the column operand where the rows of a column tile find it."""
    if is_unpacked(trace.func, operand):
        _unpack(trace, found, parts, operand, open_rows)
    elif operand in allocs(trace.func.body):
        _place(trace, found, operand, [leaf for leaf, _ in parts])
    else:
        for leaf, total in parts:
            _pack(trace, found, total, leaf, operand)


def _place(trace: Trace, found: Contraction, operand: str, leaves: Sequence[Leaf]) -> None:
    """Compute the operand in the innermost loop around all rows that use a column tile of it.

    Where there is none, all of it is for one tile.
    """
    shared: list[str] | None = None
    for leaf in leaves:
        place = _outside_of_rows(trace, found, leaf)
        chain = [] if place is None else loops_down_to(trace, place)
        shared = chain if shared is None else [v for v in shared if v in chain]
    if shared:
        trace.do("compute_at", operand, shared[-1])


def _unpack(
    trace: Trace, found: Contraction, parts: Sequence[Part], operand: str, open_rows: bool
) -> None:
    """Unpack columns into memory for whole tiles of rows; tails do so as they multiply.

    An open number of rows may hold no whole tile, for which nothing is unpacked.
    """
    whole: dict[str, Part] = {}
    for part in parts:  # whole tiles come first
        if open_rows and part[0].tile.rows <= TAIL_ROWS:
            continue
        if outside := _outside_of_rows(trace, found, part[0]):
            whole.setdefault(outside, part)
    made = []
    for outside, (leaf, total) in whole.items():
        around = loop_outside(trace, found, leaf.loops(trace)[0]) if open_rows else None
        place = outside if around is None else trace.split(around, UNPACKED_TILES)[0]
        made.append(f"{operand}_{total}")
        trace.do("cache_read", operand, place, made[-1], "local")
    trace.do("compute_inline", operand)
    for name in made:
        each = trace.stage(name).names[-2]  # numbers of one word lie in different places
        if (factor := unroll_factor(trace.extent(each), MAX_STEPS)) > 1:
            trace.do("annotate", each, "unroll", factor)


def _pack(trace: Trace, found: Contraction, total: str, leaf: Leaf, operand: str) -> None:
    """Copy the column operand of one column tile so that lanes lie side by side."""
    if not trace.stage(total).reads(operand):
        return  # packed together with another part
    outside = _outside_of_rows(trace, found, leaf)
    if outside is None:
        return
    name = f"{operand}_packed_{total}"
    trace.do("cache_read", operand, outside, name, "local")
    stage = trace.stage(total)
    load = next(x for x in loads(stage.value) if x.buffer == name)
    along = [d for d, i in enumerate(load.index) if stage.names[-1] in free_vars(i)]
    rank = len(load.index)
    if along and along[0] != rank - 1:
        order = (*(d for d in range(rank) if d != along[0]), along[0])
        trace.do("transform_layout", name, order)


def _outside_of_rows(trace: Trace, found: Contraction, leaf: Leaf) -> str | None:
    """The loop around all rows that use one column tile."""
    tile = leaf.loops(trace)
    down = loops_down_to(trace, leaf.lane)
    reuse = [v for v in down if v in tile or v.startswith(found.rows)]
    return loop_outside(trace, found, reuse[0])
