"""Each register tile of a contraction computes its own sums, right before it is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dlc.schedule.nest import Stage
from dlc.schedule.rules.contraction import Contraction, column_factor
from dlc.schedule.rules.cut_tiles import Leaf, loop_outside
from dlc.schedule.trace import Trace
from dlc.te.transform import free_vars


@dataclass(frozen=True, slots=True)
class Own:
    """A tile and the buffers of its own: of its sums, and of the parts that they are made of."""

    leaf: Leaf
    sum: str
    parts: str | None


def own_sums(trace: Trace, found: Contraction, leaves: Sequence[Leaf]) -> list[Own]:
    """Compute the sums of each tile in the loop around it; their parts stay where they are."""
    if len(leaves) > 1:
        leaves = [_enclosed(trace, found, leaf) for leaf in leaves]
    tiles = [Own(leaves[0], found.sum, found.parts)]
    for number, leaf in enumerate(leaves[1:], start=1):
        suffix, parts = f"_part{number}", None
        total = f"{found.sum}{suffix}"
        trace.do("duplicate", found.sum, leaf.lane, suffix)
        if found.parts is not None:
            parts = f"{found.parts}{suffix}"
            trace.do("duplicate", found.parts, trace.stage(total).names[0], suffix)
        tiles.append(Own(leaf, total, parts))
    for tile in tiles:
        outside = loop_outside(trace, found, tile.leaf.loops(trace)[0])
        if outside is not None:
            trace.do("compute_at", tile.sum, outside)
    return tiles


def _enclosed(trace: Trace, found: Contraction, leaf: Leaf) -> Leaf:
    """Give a tile that no loop surrounds a loop of one iteration, to compute its own sum in.

    Without it, each part would compute the sums of all parts.
    """
    first = leaf.loops(trace)[0]
    extent = trace.constant(first)
    if extent is None or loop_outside(trace, found, first) is not None:
        return leaf
    _, inner = trace.split(first, extent)
    roles = (leaf.column, leaf.row, leaf.above)
    column, row, above = (inner if name == first else name for name in roles)
    return Leaf(inner if leaf.lane == first else leaf.lane, column, row, above, leaf.tile)


def accumulate(
    trace: Trace, total: str, lanes: int, within: int, first: int = 0
) -> tuple[list[str], list[str]]:
    """Write out the elements of a tile in each step of its sums.

    `within` of the loops over summands, the innermost, stay inside of an element; the others run in
    their own order from `first` on. Both come back.
    """
    trace.do("decompose_reduction", total, trace.stage(total).names[0])
    inner = [f.var for f in trace.stage(total).inner]
    cut = len(inner) - within
    steps, each = trace.turn(inner[:cut], first), inner[cut:]
    if trace.stage(total).names:  # none are left in a tile of one element
        names = _order(trace.stage(total))
        trace.do("reorder", (*steps, *names, *each))
        _write_out(trace, names, lanes)
        _write_out(trace, [f"{n}_init" for n in names], lanes)
    return steps, each


def write_result(trace: Trace, leaf: Leaf) -> None:
    """Write out the elements of a tile where they are read."""
    for name in leaf.loops(trace)[:-1]:
        trace.tile_loop(name)
    trace.tile_loop(leaf.lane, lanes=True)


def _order(stage: Stage) -> list[str]:
    """The loops over a tile of sums: rows, then columns, then lanes.

    A row's scalar is broadcast and used for all columns at once, so that only the vectors of
    the columns, which are fewer, stay in registers beside the accumulators.
    """
    *outer, lane = stage.names
    # A condition alone may tell the lanes apart, where all of them read the same elements.
    column = column_factor(stage)
    inside = [v for v in outer if column is not None and v in free_vars(column)]
    return [*(v for v in outer if v not in inside), *inside, lane]


def _write_out(trace: Trace, names: Sequence[str], lanes: int) -> None:
    """Write a tile of sums out: the last loop as lanes, of which there may be several vectors."""
    last = names[-1]
    width = trace.constant(last)
    if width is not None and width > lanes:
        outer, last = trace.split(last, lanes)
        trace.tile_loop(outer)
    for name in names[:-1]:
        trace.tile_loop(name)
    trace.tile_loop(last, lanes=True)
