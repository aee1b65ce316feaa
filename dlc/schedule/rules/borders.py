"""The border of an image is filled by the cores that compute what it surrounds.

A line of zeros that one core writes for all is read, and then written again, by cores that have to
fetch it from each other.
"""

from __future__ import annotations

from collections.abc import Iterator

from dlc.core.errors import ScheduleError
from dlc.schedule.loop import Block, For, LoopKind, Stmt, Store, exprs, walk
from dlc.schedule.nest import top_nests
from dlc.schedule.trace import Trace
from dlc.te.expr import ZERO, Binary, BinOp, Expr
from dlc.te.simplify import simplify
from dlc.te.transform import free_vars, loads, substitute
from dlc.te.types import const_or_none


def share_borders(trace: Trace) -> None:
    """Let parallel loops fill what lies around the results of their iterations."""
    results = {b.name for b in trace.func.outputs}
    for top in top_nests(trace.func):
        if isinstance(top, For) and top.kind is LoopKind.PARALLEL:
            store = next((s for s in _stores(top) if s.buffer in results), None)
            along = [d for d, i in enumerate(store.index) if _counts(i, top.var)] if store else []
            if store is not None and len(along) == 1:
                _share(trace, store, along[0], top.var)


def is_fill(top: Stmt) -> bool:
    """Whether a nest stores only what it need not load."""
    return not any(loads(e) for e in exprs(top))


def separate(trace: Trace, top: Stmt) -> None:
    """Give statements that share some of their loops all of them, where that changes no result."""
    names, inner = shared_loops(top)
    if isinstance(inner, Block) and all(isinstance(s, For) for s in inner.stmts):
        part(trace, names)


def shared_loops(top: Stmt) -> tuple[list[str], Stmt]:
    """The loops in order around all of a nest, outermost first, and what is inside of them."""
    names: list[str] = []
    while isinstance(top, For) and top.kind is LoopKind.SERIAL:
        names.append(top.var)
        top = top.body
    return names, top


def part(trace: Trace, names: list[str]) -> ScheduleError | None:
    """Give each statement within `shared_loops` loops of its own; or say why that is refused."""

    def fission(trial: Trace) -> None:
        for name in reversed(names):
            trial.do("fission", name)

    return trace.attempt(fission)


def _counts(index: Expr, var: str) -> bool:
    """Whether an index grows with a variable, rather than begins again and again."""
    if var not in free_vars(index):
        return False
    match index:
        case Binary(BinOp.MOD, _, _):
            return False
        case Binary(BinOp.ADD | BinOp.SUB | BinOp.MUL | BinOp.FLOORDIV, a, b):
            return _counts(a, var) or _counts(b, var)
        case _:
            return True


def _share(trace: Trace, result: Store, along: int, parallel: str) -> None:
    """Let a parallel loop fill the border of its result, of which it counts one dimension."""
    for top in top_nests(trace.func):
        if _fills(top, result.buffer):
            separate(trace, top)
    for top in top_nests(trace.func):
        trial = trace.copy()
        if not _fills(top, result.buffer):
            continue
        try:
            line = _line(trial, top, result, along)
            if line is None:
                continue
            trial.do("share", line, parallel)
        except ScheduleError:
            continue  # another loop may compute what it surrounds
        trace.take(trial)


def _fills(top: Stmt, buffer: str) -> bool:
    """Whether a serial nest fills parts of a buffer."""
    serial = isinstance(top, For) and top.kind is LoopKind.SERIAL
    return serial and is_fill(top) and any(s.buffer == buffer for s in _stores(top))


def _stores(stmt: Stmt) -> Iterator[Store]:
    return (s for s in walk(stmt) if isinstance(s, Store))


def _line(trace: Trace, top: Stmt, result: Store, along: int) -> str | None:
    """A loop around a fill for the iterations of the loop that computes the result to share.

    It runs along that dimension beside the result, and once for all behind. What lies before is
    left to the core that everything begins with, and so is the first part of the result.
    """
    chain: list[str] = []
    stmt = top
    while isinstance(stmt, For):
        if stmt.kind is LoopKind.SERIAL:
            chain.append(stmt.var)
        stmt = stmt.body
    if not isinstance(stmt, Store):
        return None
    found = [v for v in chain if v in free_vars(stmt.index[along])]
    before, begin = _begin(stmt.index[along]), _begin(result.index[along])
    if len(found) != 1 or before is None or begin is None or before < begin:
        return None
    if chain[0] != found[0]:
        trace.do("reorder", (found[0], *(v for v in chain if v != found[0])))
    if before == begin:
        return found[0]
    count = trace.constant(found[0])
    return trace.split(found[0], count)[0] if count else None


def _begin(index: Expr) -> int | None:
    """Where an index begins, all variables being 0."""
    zeros = {v: ZERO for v in free_vars(index)}
    return const_or_none(simplify(substitute(index, zeros)))
