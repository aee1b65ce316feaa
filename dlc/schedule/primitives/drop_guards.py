"""drop_guards: compute elements that nobody reads, rather than test for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dlc.schedule.dependence import bounds_in
from dlc.schedule.edit import Site, sites, swap_alloc, told_apart, touched_by_invoke, written
from dlc.schedule.loop import Func, If, Stmt, loops, rewrite
from dlc.schedule.primitive import find_intermediate, primitive, refuse
from dlc.schedule.primitives.cache_read import shape_of
from dlc.schedule.restrict import within
from dlc.schedule.simplify import conjuncts, guarded
from dlc.te.expr import ZERO, Expr, Var
from dlc.te.transform import free_vars, loads, substitute


@primitive
def drop_guards(func: Func, buffer: str) -> Func:
    """Store all elements of an intermediate, also those that guards on their position leave out.

    What the guards leave out is undefined before, and so read by nobody; afterwards it is some
    number. The tails of loops then need no test.

    Before:
        def f(n: size, A: f32[8], *, B: f32[n]):
            t = alloc(f32[8], "local")
            for i in range(8):
                if i < n:
                    t[i] = 0.0
            for j in range(8):
                for k in range(3):
                    if j < n:
                        t[j] += A[j]
            for l in range(8):
                if l < n:
                    B[l] = t[l]

    Call:
        drop_guards("t")

    After:
        def f(n: size, A: f32[8], *, B: f32[n]):
            t = alloc(f32[8], "local")
            for i in range(8):
                t[i] = 0.0
            for j in range(8):
                for k in range(3):
                    t[j] += A[j]
            for l in range(8):
                if l < n:
                    B[l] = t[l]

    Raises:
        ScheduleError: no such intermediate; an index of a store is no plain loop variable; the
            stores have different guards on their position; something else is guarded with them;
            without the guard an index may be outside of a buffer; an instruction uses the buffer.
    """
    alloc = find_intermediate("drop_guards", func, buffer)
    if touched_by_invoke(alloc, buffer):
        refuse("drop_guards", func, f"an instruction uses '{buffer}'")
    inside = frozenset(loops(alloc.body))
    body = told_apart(alloc.body)
    found = [s for s in sites(body) if s.store.buffer == buffer]
    dropped = {
        id(s.store): [c for c in _conditions(s) if _on_position(c, s, inside)] for s in found
    }
    if len({_by_position(func, s, dropped[id(s.store)]) for s in found}) > 1:
        refuse("drop_guards", func, f"the stores of '{buffer}' have different guards")
    for site in found:
        if dropped[id(site.store)]:
            _check_inside(func, site)

    def visit(stmt: Stmt) -> Stmt:
        if not isinstance(stmt, If) or buffer not in written(stmt):
            return stmt
        gone = [c for s in sites(stmt) if s.store.buffer == buffer for c in dropped[id(s.store)]]
        kept = [c for c in conjuncts(stmt.cond) if c not in gone]
        if len(kept) < len(conjuncts(stmt.cond)) and written(stmt) != {buffer}:
            refuse("drop_guards", func, f"a guard of '{buffer}' guards other stores too")
        return guarded(kept, stmt.body)

    return swap_alloc(func, buffer, lambda a: replace(a, body=rewrite(body, visit)))


def _conditions(site: Site) -> Iterator[Expr]:
    for outer in site.around:
        if isinstance(outer, If):
            yield from conjuncts(outer.cond)


def _on_position(cond: Expr, site: Site, inside: frozenset[str]) -> bool:
    """Whether a condition reads nothing that differs for one element of the buffer."""
    position = {v for part in site.store.index for v in free_vars(part)}
    return not loads(cond) and free_vars(cond) & inside <= position


def _by_position(func: Func, site: Site, conds: list[Expr]) -> frozenset[str]:
    """The conditions as a function of the element's position."""
    if not conds:
        return frozenset()
    env: dict[str, Expr] = {}
    for dim, part in enumerate(site.store.index):
        if isinstance(part, Var):
            env[part.name] = Var(f"#{dim}")
        elif free_vars(part):
            refuse("drop_guards", func, f"the index '{part}' is no loop variable")
    return frozenset(str(substitute(c, env)) for c in conds)


def _check_inside(func: Func, site: Site) -> None:
    bounds = bounds_in(func.body)
    store = site.store
    accesses = [(store.buffer, store.index)]
    accesses += [(x.buffer, x.index) for e in (*store.index, store.value) for x in loads(e)]
    for buffer, index in accesses:
        for part, size in zip(index, shape_of(func, buffer), strict=True):
            if within(part, ZERO, size, bounds):
                refuse("drop_guards", func, f"'{part}' may be outside of '{buffer}'")
