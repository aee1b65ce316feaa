"""Tiles of rows that pass a tile of columns ask for the next one meanwhile.

Columns from beyond the second cache are read by the first of these passes alone. It would wait for
them, however early it asked, as it takes them faster than they come; those behind it find them
near. So all passes share the lines of the next tile: each step asks for one of them, or for a few.
Those of each image of an open number, or each matrix, ask for all of them again: most are one. So
do tiles of an open number of rows between transforms, which are few; what these leave is too short
to ask.

Source: measured on Zen 5, one core, over asking some KB ahead in the first pass: 3 x 3 convolutions
between transforms of 7 x 7 and 14 x 14 pixels 1.2 to 1.27 times as fast, products of 128 rows 1.04
to 1.05, of 197 1.035. For the first cache it is 1.0 to 1.02 times as fast as for the second.
A model of an open number of texts of 128 tokens is 1.08 times as fast for one, 1.04 for two, 1.02
for four, 1.0 for sixteen. Where rows that were made before fill the last cache, columns come from
memory again for each strip of them, and what the passes ask for is lost: 192 channels of 57 x 57
pixels to 64 by 5 x 5 taps take 13.4 ms, and 4.8 where the first pass asks some KB ahead.
"""

from __future__ import annotations

from math import prod

from dlc.schedule.loop import allocs
from dlc.schedule.rules.contraction import column_factor
from dlc.schedule.rules.cut_tiles import Leaf, loops_down_to
from dlc.schedule.rules.operands import loaded
from dlc.schedule.trace import Trace
from dlc.te.affine import coefficients
from dlc.te.expr import ONE
from dlc.te.transform import free_vars, loads

LEVEL = 1  # of the caches that are asked
MOST_ROW_BYTES = 16 << 20  # half of the last cache of the machine that was measured
MAX_PASSES = 64  # of more, the first is too small a share


def ask_for_next(trace: Trace, leaf: Leaf, total: str, step: str, open_passes: int = 1) -> bool:
    """Let each iteration of `step` ask for columns of the next tile; whether several passes do.

    Args:
        trace: where the sums of a tile are accumulated right before it is written.
        leaf: the loops over that tile.
        total: the buffer of its sums.
        step: the innermost loop over their summands.
        open_passes: how many an open number of them counts for; one does not ask.
    """
    operand = loaded(column_factor(trace.stage(total)))
    if operand is None or _made_bytes(trace, total) > MOST_ROW_BYTES:
        return False
    passes = 1
    for name in reversed(loops_down_to(trace, leaf.loops(trace)[0])[:-1]):
        if trace.extent(name) == ONE:
            continue
        dims = [d for d, i in enumerate(operand.index) if name in free_vars(i)]
        if not dims:
            passes *= trace.constant(name) or open_passes
            continue
        distance = (coefficients(operand.index[dims[0]]) or {}).get(name)
        if len(dims) > 1 or distance is None or not 1 < passes <= MAX_PASSES:
            return False
        ask = ("prefetch", name, step, operand.buffer, dims[0], distance, LEVEL)
        return trace.attempt(Trace.do, *ask) is None
    return False


def _made_bytes(trace: Trace, total: str) -> int:
    """The bytes of what products read that the kernel itself has made; none of open sizes."""
    made = allocs(trace.func.body)
    read = {x.buffer for factor in trace.stage(total).factors or () for x in loads(factor)}
    types = [made[name].buffer.type for name in read & made.keys()]
    return sum(prod(t.static_shape) * t.dtype.size_bytes for t in types if t.is_static)
