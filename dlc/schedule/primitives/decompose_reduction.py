"""decompose_reduction: give the first values of an accumulator a nest of their own."""

from __future__ import annotations

from collections.abc import Callable

from dlc.schedule.dependence import why_not_disjoint
from dlc.schedule.edit import read, renamed, sites, swap_loop, touched_by_invoke, written
from dlc.schedule.loop import (
    Alloc,
    Block,
    Func,
    If,
    Stmt,
    Store,
    accumulation,
    allocs,
    block,
    loops,
    rewrite,
)
from dlc.schedule.primitive import check_fresh, find_loop, primitive, refuse
from dlc.schedule.simplify import NOTHING
from dlc.te.transform import loads

SUFFIX = "_init"


@primitive
def decompose_reduction(func: Func, buffer: str, loop: str) -> Func:
    """Store the first values of an accumulator in a nest before `loop`, not inside it.

    The loops of the new nest are called after those they copy, with `_init` behind.

    Before:
        def sum(A: f32[4, 8], *, s: f32[4]):
            for i in range(4):
                s[i] = 0.0
                for j in range(8):
                    s[i] += A[i, j]

    Call:
        decompose_reduction("s", "i")

    After:
        def sum(A: f32[4, 8], *, s: f32[4]):
            for i_init in range(4):
                s[i_init] = 0.0
            for i in range(4):
                for j in range(8):
                    s[i] += A[i, j]

    Raises:
        ScheduleError: no such loop; the loop does not hold both a first store and an
            accumulation of the buffer, holds the buffer itself, or stores other first values
            after an accumulation; the first value depends on what the loop writes; iterations
            share elements; an instruction uses the buffer; a name is taken.
    """
    target = find_loop("decompose_reduction", func, loop)
    found = [s for s in sites(target) if s.store.buffer == buffer]
    first = [s for s in found if not _reads_itself(s.store)]
    if not first or len(first) == len(found):
        reason = f"'{loop}' holds no first store and accumulation of '{buffer}'"
        refuse("decompose_reduction", func, reason)
    if found[: len(first)] != first:
        refuse("decompose_reduction", func, f"'{buffer}' is stored anew after an accumulation")
    if buffer in allocs(target):
        refuse("decompose_reduction", func, f"'{buffer}' is allocated inside of '{loop}'")
    if touched_by_invoke(target, buffer):
        refuse("decompose_reduction", func, f"an instruction uses '{buffer}'")
    changed = written(target)
    for site in first:
        conds = [s.cond for s in site.around if isinstance(s, If)]
        if any(load.buffer in changed for e in (site.store.value, *conds) for load in loads(e)):
            refuse("decompose_reduction", func, "the first value depends on what the loop writes")
        names = tuple(f.var for f in site.loops)
        if reason := why_not_disjoint(func, target, names, buffer):
            refuse("decompose_reduction", func, reason)

    stores = [s.store for s in first]
    start = _keep(target, lambda s: any(s is store for store in stores))
    update = _keep(target, lambda s: not any(s is store for store in stores))
    copies = {name: name + SUFFIX for name in loops(start)}
    check_fresh("decompose_reduction", func, copies.values())
    both = block(renamed(start, copies, {}), update)
    return swap_loop(func, loop, lambda _: both)


def _reads_itself(store: Store) -> bool:
    own = any(load.buffer == store.buffer for load in loads(store.value))
    return own or accumulation(store) is not None


def _keep(stmt: Stmt, wanted: Callable[[Store], bool]) -> Stmt:
    """The statement without the stores that are not wanted, and without what is empty then."""

    def visit(node: Stmt) -> Stmt:
        match node:
            case Store():
                return node if wanted(node) else NOTHING
            case Block(stmts):
                return block(*(s for s in stmts if s != NOTHING))
            case Alloc(buffer, _, body) if body == NOTHING or buffer.name not in _used(body):
                return body
            case _ if getattr(node, "body", None) == NOTHING:
                return NOTHING
            case _:
                return node

    return rewrite(stmt, visit)


def _used(stmt: Stmt) -> set[str]:
    return written(stmt) | read(stmt)
