"""rfactor: split a reduction into partial reductions and a final one."""

from __future__ import annotations

from dataclasses import replace

from dlc.schedule.dependence import bounds_in
from dlc.schedule.edit import loops_around, redirect, sites, swap_loop, touched_by_invoke
from dlc.schedule.loop import (
    Alloc,
    Buffer,
    For,
    Func,
    If,
    LoopKind,
    Scope,
    Stmt,
    Store,
    accumulation,
    block,
    exprs,
    loops,
    rewrite,
    walk,
)
from dlc.schedule.primitive import (
    check_fresh,
    check_outside_vectors,
    find_serial,
    primitive,
    refuse,
)
from dlc.schedule.primitives.cache_read import shape_of
from dlc.schedule.restrict import within
from dlc.schedule.simplify import conjuncts, guarded
from dlc.te.expr import ZERO, Binary, BinOp, Expr, Load, Var
from dlc.te.tensor import identity
from dlc.te.transform import free_vars, loads
from dlc.te.types import TensorType

SUFFIX = "_final"


@primitive
def rfactor(func: Func, buffer: str, loop: str, name: str) -> Func:
    """Accumulate one partial result for each iteration of a reduction loop, then combine them.

    The loop moves outside of the reduction loops around it; the new buffer has one element for
    each of its iterations. This reorders the reduction, which changes the rounding of a float
    result.

    Before:
        def sum(n: size, A: f32[n, 20], *, s: f32[n]):
            for i in range(n):
                s[i] = 0.0
                for ko in range(5):
                    for ki in range(4):
                        s[i] += A[i, ko * 4 + ki]

    Call:
        rfactor("s", "ki", "partial")

    After:
        def sum(n: size, A: f32[n, 20], *, s: f32[n]):
            for i in range(n):
                s[i] = 0.0
                partial = alloc(f32[4], "local")
                for ki in range(4):
                    partial[ki] = 0.0
                    for ko in range(5):
                        partial[ki] += A[i, ko * 4 + ki]
                for ki_final in range(4):
                    s[i] += partial[ki_final]

    Raises:
        ScheduleError: no such loop; it is no longer serial; it holds something else than one
            accumulation of the buffer, or chooses its element, or is inside a vector loop; a guard
            may skip all summands of an element that is not there; a name is taken.
    """
    target = find_serial("rfactor", func, loop)
    store = _accumulation(func, buffer, target)
    check_outside_vectors("rfactor", func, loop)
    check_fresh("rfactor", func, (name, f"{loop}{SUFFIX}"))
    chosen = {v for part in store.index for v in free_vars(part)}
    inside = {s.var for s in walk(target) if isinstance(s, For)}
    if chosen & inside:
        refuse("rfactor", func, f"'{min(chosen & inside)}' chooses the element of '{buffer}'")

    top = _top(func, loop, chosen)
    op, dtype = accumulation(store), store.value.dtype
    assert op is not None
    partial = Buffer(name, TensorType((target.extent,), dtype))
    axis = (Var(loop),)
    inner = redirect(_without(top, loop), buffer, name, lambda _: axis)
    start = Store(name, axis, identity(op, dtype))
    first = replace(target, body=block(start, inner))
    combine = _final(target, store, op, Load(name, (Var(f"{loop}{SUFFIX}"),), dtype))
    last = guarded(_kept_guards(func, top, store), combine)

    def change(_: For) -> Stmt:
        return Alloc(partial, Scope.LOCAL, block(first, last))

    return swap_loop(func, top.var, change)


def _final(target: For, store: Store, op: BinOp, partial: Load) -> For:
    total = Binary(op, Load(store.buffer, store.index, partial.dtype), partial)
    combine = Store(store.buffer, store.index, total)
    return For(f"{target.var}{SUFFIX}", target.extent, LoopKind.SERIAL, combine)


def _kept_guards(func: Func, top: For, store: Store) -> list[Expr]:
    """The guards of the element. Those of a summand are dropped: then the element must be there."""
    inside = set(loops(top))
    (site,) = sites(top)
    conds = [c for s in site.around if isinstance(s, If) for c in conjuncts(s.cond)]
    kept = [c for c in conds if not free_vars(c) & inside]
    if len(kept) < len(conds):
        bounds = bounds_in(func.body)
        for part, size in zip(store.index, shape_of(func, store.buffer), strict=True):
            if within(part, ZERO, size, bounds):
                reason = f"a guard may skip all summands of an element outside of '{store.buffer}'"
                refuse("rfactor", func, reason)
    return kept


def _accumulation(func: Func, buffer: str, target: For) -> Store:
    """The one store inside the loop."""
    found = [s.store for s in sites(target)]
    single = len(found) == 1 and not touched_by_invoke(target, buffer)
    if not single or found[0].buffer != buffer or accumulation(found[0]) is None:
        reason = f"loop '{target.var}' holds something else than one accumulation of '{buffer}'"
        refuse("rfactor", func, reason)
    reads = sum(x.buffer == buffer for e in exprs(target) for x in loads(e))
    if reads > 1:
        refuse("rfactor", func, f"'{buffer}' is read inside of its own accumulation")
    return found[0]


def _top(func: Func, loop: str, chosen: set[str]) -> For:
    """The outermost loop that holds nothing but the reduction and does not choose its element."""
    around = loops_around(func, loop)
    top = around[-1]
    for outer in reversed(around[:-1]):
        serial = outer.kind is LoopKind.SERIAL
        if not serial or outer.var in chosen or not _is_chain(outer, top):
            break
        top = outer
    return top


def _is_chain(outer: For, inner: For) -> bool:
    """Whether only loops and guards stand between two loops."""
    stmt = outer.body
    while isinstance(stmt, If):
        stmt = stmt.body
    return stmt is inner


def _without(top: Stmt, loop: str) -> Stmt:
    """The nest without one of its loops."""

    def visit(stmt: Stmt) -> Stmt:
        return stmt.body if isinstance(stmt, For) and stmt.var == loop else stmt

    return rewrite(top, visit)
