"""A pool of one window that holds the whole image -> reduce: the window may be far larger than the
image, of which nothing else is read.
"""

from __future__ import annotations

from dlc.graph.graph import Value
from dlc.graph.ops.pool import AveragePool, MaxPool
from dlc.graph.ops.reduce import Reduce
from dlc.graph.rewrite import Match, Pattern, Refusal, rule
from dlc.te.expr import Const
from dlc.te.types import is_const


@rule(Pattern((MaxPool, AveragePool), ("x",)))
def pool_into_reduce(match: Match) -> Value | Refusal:
    """The largest element, or the mean, of each image."""
    pool, x = match.root.op, match["x"]
    assert isinstance(pool, MaxPool | AveragePool)
    rank = len(pool.kernel)
    if not all(is_const(n, 1) for n in match.root.output.type.shape[2 : rank + 2]):
        return Refusal("there are several windows, or may be")
    if isinstance(pool, AveragePool) and pool.count_include_pad and any(pool.pads):
        return Refusal("the average counts pads")
    for size, kernel, begin, step in zip(
        x.type.shape[2 : rank + 2], pool.kernel, pool.pads, pool.dilation, strict=False
    ):
        if not isinstance(size, Const) or (step != 1 and (size.value > 1 or begin % step)):
            return Refusal("the window may leave elements out")
        if begin >= kernel or kernel - begin < size.value:
            return Refusal("the window does not hold the whole image")
    kind = "mean" if isinstance(pool, AveragePool) else "max"
    return match.call(Reduce(kind=kind, axes=tuple(range(2, rank + 2)), keepdims=True), x)
