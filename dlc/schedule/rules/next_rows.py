"""Tiles of rows ask for the summands that come next, where these lie apart.

Pixels of blocked channels are a few lines of the cache from each block, an image apart: more
streams than anything fetches ahead, and the first step of a block waits for all of them at once.
So each step asks for what a later one reads of the same rows, in every pass over them.

Source: measured on Ice Lake, one core, over asking for the rows of the next tile, and asking for
none: layers of 1 x 1 with AVX-512 1.0 to 1.1 times as fast, with AVX2 1.1 to 1.19, from the second
cache or the third. One block ahead or two are the same with AVX-512, four are slower in a loop in
C; with AVX2 two are up to 1.02 times as fast as one. Rows that the first cache holds gain nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from dlc.core.target import Target
from dlc.schedule.rules.contraction import Contraction, column_factor
from dlc.schedule.rules.cut_tiles import Leaf, loops_down_to
from dlc.schedule.rules.operands import loaded
from dlc.schedule.trace import Trace
from dlc.te.expr import ONE
from dlc.te.transform import free_vars

LEVEL = 1  # of the caches that are asked
AHEAD = 2  # blocks; one of a window, whose taps take as long
LEAST_BLOCKS = 9  # what is asked for behind the last one is in vain


def ask_for_next_rows(
    trace: Trace,
    found: Contraction,
    leaf: Leaf,
    total: str,
    steps: Sequence[str],
    target: Target,
) -> None:
    """Let steps of the sums ask for what later ones read of the same rows.

    Args:
        trace: where the sums of a tile are accumulated right before it is written.
        found: what the tile is a part of.
        leaf: the loops over the tile.
        total: the buffer of its sums.
        steps: the loops over their summands, outermost first.
        target: rows that its first cache holds are near.
    """
    stage = trace.stage(total)
    column = column_factor(stage)
    operand = loaded(next((f for f in stage.factors or () if f is not column), None))
    is_near = found.row_bytes is not None and found.row_bytes <= target.l1_bytes
    if operand is None or is_near or found.within is not None or leaf.row is None:
        return
    tile, rows = set(stage.names), {*stage.names, *trace.stage(found.result).names}
    read = [free_vars(i) for i in operand.index]
    if read[-1] & rows:
        return  # pixels side by side
    around = [v for v in loops_down_to(trace, steps[-1]) if trace.extent(v) != ONE]
    beside = {v: {w for dim in read if v in dim for w in dim} for v in around}
    counts = {v: [trace.constant(w) or 0 for w in around if w in beside[v]] for v in around}
    blocks = [v for v in around if not beside[v] & rows and prod(counts[v]) >= LEAST_BLOCKS]
    for part in reversed([v for v in around if v in steps and not beside[v] & tile]):
        known = [v for v in blocks if around.index(v) <= around.index(part)]
        ahead = AHEAD if known[-1:] == [part] else 1
        for inside in dict.fromkeys((steps[-1], part)) if known else ():
            ask = ("prefetch_parts", known[-1], part, inside, operand.buffer, ahead, LEVEL)
            if trace.attempt(Trace.do, *ask) is None:
                return
