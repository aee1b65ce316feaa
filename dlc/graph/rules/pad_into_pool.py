"""pool(pad(x)) -> pool(x, pads=...), where the pool's own pads mean the same: -inf before a
max_pool, zero before an average_pool that counts pads.
"""

from __future__ import annotations

import math
from dataclasses import replace

from dlc.graph.graph import Value
from dlc.graph.ops.pool import AveragePool, MaxPool
from dlc.graph.ops.shape import Pad
from dlc.graph.rewrite import Match, Pattern, Refusal, rule
from dlc.te.expr import Const
from dlc.te.types import is_const


@rule(Pattern((MaxPool, AveragePool), (Pattern(Pad, ("x",)),)))
def pad_into_pool(match: Match) -> Value | Refusal:
    """Add the pads to the pool's own."""
    pad, pool = match.op(Pad), match.root.op
    assert isinstance(pool, MaxPool | AveragePool)
    rank = len(pool.kernel)
    if pool.ceil_mode:
        return Refusal("with ceil_mode pads decide where the last window begins")
    if pad.mode != "constant":
        return Refusal("a pool pads with a constant only")
    if isinstance(pool, MaxPool) and pad.value != -math.inf:
        return Refusal("a max_pool pads with -inf")
    if isinstance(pool, AveragePool) and (pad.value != 0 or _excludes_pads(pool)):
        return Refusal("the average would not count the pads as zeros")
    inner = {*range(2, rank + 2)}
    for axis, amounts in enumerate(zip(pad.before, pad.after, strict=True)):
        if axis not in inner and not all(is_const(a, 0) for a in amounts):
            return Refusal("an axis without windows is padded")
    spatial = (*pad.before[2 : rank + 2], *pad.after[2 : rank + 2])
    added = [int(a.value) for a in spatial if isinstance(a, Const) and a.value >= 0]
    if len(added) < 2 * rank:
        return Refusal("an amount is negative or not known")
    pads = tuple(p + a for p, a in zip(pool.pads, added, strict=True))
    if isinstance(pool, AveragePool):
        return match.call(replace(pool, pads=pads, count_include_pad=True), match["x"])
    return match.call(replace(pool, pads=pads), match["x"])


def _excludes_pads(pool: AveragePool) -> bool:
    return any(pool.pads) and not pool.count_include_pad
