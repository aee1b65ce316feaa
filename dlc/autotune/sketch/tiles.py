"""Multi-level tiling of a reduction: blocks for the caches, tiles for the registers.

The loops of the result are cut in two or three levels; the sum of a tile is computed right before
the tile is written, over all summands or in steps, with the tile written out inside.
"""

from __future__ import annotations

from collections.abc import Mapping

from dlc.autotune.sketch.nests import (
    busiest_sum,
    divisors,
    extent,
    reader_of,
    run_parallel,
    write_out,
)
from dlc.core.target import Target
from dlc.schedule.loop import Func
from dlc.schedule.primitive import refuse
from dlc.schedule.rules.prepare import loop_around
from dlc.schedule.space import Limit, Space
from dlc.schedule.trace import Trace

_TILED = 3  # innermost loops of the result that are cut
_MAX_TILE = 32
_MAX_WRITTEN_OUT = 64  # elements or vectors of a tile
_MAX_STEPS = 16


def space(func: Func, target: Target) -> Space | None:
    """Tile sizes of the innermost loops, a block of the outermost of them, steps and threads."""
    total = busiest_sum(func)
    result = reader_of(func, total.buffer) if total else None
    if total is None or result is None or not result.loops or target.gpu is not None:
        return None
    lanes = target.lanes(4)
    knobs: dict[str, tuple[int, ...]] = {}
    tiled = result.loops[-_TILED:]
    for number, loop in enumerate(tiled):
        most = 4 * lanes if loop is tiled[-1] else _MAX_TILE
        knobs[f"tile_{number}"] = divisors(extent(loop), most)
    knobs["block"] = divisors(extent(tiled[0]), 64)
    knobs["steps"] = divisors(extent(total.inner[-1]), _MAX_STEPS)
    knobs["threads"] = (0, 1, 2, 3)
    tiles = tuple(f"tile_{number}" for number in range(len(tiled)))
    return Space(knobs, (Limit(tiles, _MAX_WRITTEN_OUT * lanes),))


def schedule(prepared: Trace, target: Target, knobs: Mapping[str, int]) -> Trace:
    """Tile the busiest reduction.

    Raises:
        ScheduleError: the nest does not allow it.
    """
    trace = prepared.copy()
    total = busiest_sum(trace.func)
    result = reader_of(trace.func, total.buffer) if total else None
    if total is None or result is None:
        refuse("tile", trace.func, "no reduction is read by one result")
    outer, inner = _cut(trace, result.names, knobs)
    trace.do("reorder", (*outer, *inner))
    outside = loop_around(trace.func, inner[0]) if inner else outer[-1]
    if outside is not None:
        trace.do("compute_at", total.buffer, outside)
    _accumulate(trace, total.buffer, knobs.get("steps", 1))
    for name in inner[:-1]:
        trace.tile_loop(name)
    if inner:
        trace.tile_loop(inner[-1], lanes=True)
    run_parallel(trace, knobs.get("threads", 1))
    return trace


def _cut(trace: Trace, names: list[str], knobs: Mapping[str, int]) -> tuple[list[str], list[str]]:
    """Cut the loops of the result: those over tiles, and those inside of one."""
    outer, inner = list(names[:-_TILED]), []
    blocks: list[str] = []
    for number, name in enumerate(names[-_TILED:]):
        size = knobs.get(f"tile_{number}", 1)
        if size == trace.constant(name):
            inner.append(name)
            continue
        if size > 1:
            name, tile = trace.split(name, size)
            inner.append(tile)
        block = knobs.get("block", 1) if not number else 1
        whole = trace.constant(name)
        if block > 1 and whole is not None and whole % block == 0 and whole > block:
            name, part = trace.split(name, block)
            blocks.append(part)
        outer.append(name)
    return [*outer, *blocks], inner


def _accumulate(trace: Trace, total: str, steps: int) -> None:
    """Sum up one tile in registers: summands outside, the tile written out inside."""
    names = trace.stage(total).names
    trace.do("decompose_reduction", total, names[0] if names else trace.stage(total).inner[0].var)
    stage = trace.stage(total)
    summands = [f.var for f in stage.inner]
    if steps > 1 and trace.constant(summands[-1]) not in (None, steps):
        summands[-1:] = trace.split(summands[-1], steps)
    trace.do("reorder", (*summands, *stage.names))
    if steps > 1:
        trace.tile_loop(summands[-1])
    write_out(trace, stage.names)
    trace.do("set_scope", total, "register")
