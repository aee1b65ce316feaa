"""What every function gets on a GPU where no rule took it: a thread for each element.

The loops over elements that may run in any order become one, cut into blocks of threads. What must
run in order is run by each thread, or, where no loop may be cut, by one thread alone.
"""

from __future__ import annotations

from dlc.core.errors import ScheduleError
from dlc.schedule.dependence import why_not_independent, why_not_permutable
from dlc.schedule.edit import written
from dlc.schedule.gpu import WARP
from dlc.schedule.loop import For, LoopKind, Stmt, loops, walk
from dlc.schedule.nest import top_nests
from dlc.schedule.rules.borders import is_fill, separate
from dlc.schedule.trace import Trace
from dlc.te.expr import Const, Expr

THREADS = 256


def bind_rest(trace: Trace) -> None:
    """Bind every nest that has no block loop yet."""
    for top in top_nests(trace.func):
        if not _is_bound(top):
            separate(trace, top)
    for fills in (False, True):  # constants last: then there is a launch to fill them in by
        for top in top_nests(trace.func):
            if _is_bound(top) or is_fill(top) != fills:
                continue
            free = _free_loops(trace, top)
            if free:
                bind_elements(trace, free, _launch_for(trace, top) if fills else None)


def _launch_for(trace: Trace, top: Stmt) -> str | None:
    """A launch that can fill in constants by the way, by a block loop of it; or None."""
    filled = written(top)
    for other in top_nests(trace.func):
        if _is_bound(other) and written(other) & filled:
            return next(v for v, f in loops(other).items() if f.kind is LoopKind.BLOCK)
    return None


def _is_bound(top: Stmt) -> bool:
    return any(isinstance(s, For) and s.kind is LoopKind.BLOCK for s in walk(top))


def _free_loops(trace: Trace, top: Stmt) -> list[str]:
    """Perfectly nested loops from the top of a nest whose iterations may run at the same time.

    Loops that may not are moved inside of them, where that changes no result.
    """
    chain: list[str] = []
    stmt = top
    while isinstance(stmt, For) and stmt.kind is LoopKind.SERIAL:
        chain.append(stmt.var)
        stmt = stmt.body
    free = [v for v in chain if not why_not_independent(trace.func, v)]
    order = [*free, *(v for v in chain if v not in free)]
    if order != chain:
        nest = loops(trace.func.body)[chain[0]]
        if why_not_permutable(trace.func, nest, tuple(chain)):
            kept = 0
            while kept < len(chain) and chain[kept] in free:
                kept += 1
            return chain[:kept]
        trace.do("reorder", tuple(order))
    return free


def bind_elements(trace: Trace, names: list[str], launch: str | None) -> None:
    """Run loops that stand directly inside each other on blocks of threads, in `launch` if any."""
    fused = trace.fuse_all(names) if len(names) > 1 else names[0]
    if launch is not None:
        try:
            trace.do("attach", fused, launch)
            return
        except ScheduleError:
            pass
    trace.do("distribute", (fused,), (threads_for(trace.extent(fused)),), (1,))


def threads_for(extent: Expr) -> int:
    """How many threads a block has for some elements: whole warps."""
    if isinstance(extent, Const):
        return min(THREADS, -(-int(extent.value) // WARP) * WARP)
    return THREADS
