"""Lines are parted where conditions on the place along them begin to hold, or cease to.

Before:
    for x in range(n + 2):
        padded[x] = image[x - 1] if 0 <= x - 1 and x - 1 < n else 0.0

After:
    padded[0] = 0.0
    for x in range(n):
        padded[x + 1] = image[x]
    padded[n + 1] = 0.0
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dlc.core.types import INDEX
from dlc.schedule.nest import Stage
from dlc.schedule.simplify import conjuncts
from dlc.schedule.trace import Trace
from dlc.te.affine import coefficients
from dlc.te.expr import ZERO, Binary, BinOp, Expr, Select
from dlc.te.simplify import canonical
from dlc.te.transform import loads, substitute, walk

BEHIND = "_behind"  # behind the names of loops that were cut off


def part_edges(trace: Trace, stage: Stage, lane: str) -> None:
    """Part a loop from the edges that values and indices ask for: no vector reads across one."""
    conditions = [c for e in walk(stage.value) if isinstance(e, Select) for c in conjuncts(e.cond)]
    begin, end = (next(_edges(conditions, lane, side), None) for side in (1, -1))
    if begin is not None:
        trace.do("partition", lane, str(begin), BEHIND)
        lane += BEHIND
    if end is not None:
        first = ZERO if begin is None else begin
        trace.do("partition", lane, str(canonical(end - first)), BEHIND)


def _edges(conditions: Sequence[Expr], lane: str, side: int) -> Iterator[Expr]:
    """Where conditions on a loop alone begin to hold (1), or cease to (-1)."""
    for cond in conditions:
        match cond:
            case Binary(BinOp.LT | BinOp.LE as op, a, b) if a.dtype is INDEX and not loads(cond):
                free = b - a if op is BinOp.LE else b - a - 1  # at least 0
                at = canonical(substitute(free, {lane: ZERO}))
                if (coefficients(free) or {}).get(lane) == side:
                    yield canonical(ZERO - at) if side > 0 else canonical(at + 1)
            case _:
                pass
