"""cache_load: copy what a load reads in all iterations of a nest, in an order of its own."""

from __future__ import annotations

from dlc.schedule.dependence import bounds_in
from dlc.schedule.edit import aliases, loops_around, redirect, swap_loop, touched_by_invoke, written
from dlc.schedule.loop import (
    Alloc,
    Buffer,
    For,
    Func,
    LoopKind,
    Scope,
    Stmt,
    Store,
    allocs,
    block,
    dtypes,
    exprs,
    loops,
)
from dlc.schedule.primitive import (
    check_fresh,
    check_outside_vectors,
    check_scope,
    find_serial,
    primitive,
    refuse,
)
from dlc.schedule.primitives.cache_read import shape_of
from dlc.schedule.restrict import within
from dlc.schedule.simplify import guarded
from dlc.te.expr import ZERO, Expr, Load, Var
from dlc.te.transform import free_vars, loads, substitute
from dlc.te.types import TensorType


@primitive
def cache_load(func: Func, buffer: str, loops: tuple[str, ...], name: str, scope: str) -> Func:
    """Copy what a load reads in the iterations of a nest, and read the copy instead.

    The copy has a dimension for each of `loops`, in this order, and an element for each iteration
    of theirs: unlike that of `cache_read`, it is no box of the buffer. Where the loops stand in
    another order, it is the transpose of what they read. What lies outside of the buffer, where
    the load stands under a condition, is not copied. The loops of the copy are called after it and
    the dimension.

    Before:
        def f(A: f32[8, 6], *, B: f32[6, 8]):
            for i in range(6):
                for j in range(8):
                    B[i, j] = A[j, i] * 2.0

    Call:
        cache_load("A", ("j", "i"), "turned", "local")

    After:
        def f(A: f32[8, 6], *, B: f32[6, 8]):
            turned = alloc(f32[8, 6], "local")
            for turned_0 in range(8):
                for turned_1 in range(6):
                    turned[turned_0, turned_1] = A[turned_0, turned_1]
            for i in range(6):
                for j in range(8):
                    B[i, j] = turned[j, i] * 2.0

    Raises:
        ScheduleError: no such loop or scope; the loops are not serial or do not stand directly
            inside each other; inside of them, the buffer is read at another index or at none, or
            is written; the index is read from memory, or depends on a loop inside; an instruction
            uses the buffer; a name is taken; a register buffer would have no constant shape.
    """
    chain, body = _chain(func, loops)
    index = _index(func, buffer, chain, body)
    check_scope("cache_load", func, scope)
    extents = {f.var: f.extent for f in chain}
    cache = Buffer(name, TensorType(tuple(extents[v] for v in loops), dtypes(func)[buffer]))
    if Scope(scope).is_fixed and not cache.type.is_static:
        refuse("cache_load", func, f"'{name}' would have the shape {cache.type}, not a constant")
    axes = [f"{name}_{d}" for d in range(len(loops))]
    check_fresh("cache_load", func, (name, *axes))
    bounds = bounds_in(func.body)
    there = zip(index, shape_of(func, buffer), strict=True)
    tests = [test for at, size in there for test in within(at, ZERO, size, bounds)]

    env: dict[str, Expr] = {v: Var(axis) for v, axis in zip(loops, axes, strict=True)}
    value = Load(buffer, tuple(substitute(i, env) for i in index), cache.type.dtype)
    inside = [substitute(test, env) for test in tests]
    copy: Stmt = guarded(inside, Store(name, tuple(env.values()), value))
    for var, axis in zip(reversed(loops), reversed(axes), strict=True):
        copy = For(axis, extents[var], LoopKind.SERIAL, copy)
    own = tuple(map(Var, loops))

    def change(top: For) -> Stmt:
        return Alloc(cache, Scope(scope), block(copy, redirect(top, buffer, name, lambda _: own)))

    return swap_loop(func, chain[0].var, change)


def _chain(func: Func, loops: tuple[str, ...]) -> tuple[list[For], Stmt]:
    """The loops from the outermost on, and what is inside of them."""
    found = [find_serial("cache_load", func, name) for name in loops]
    if not found or len(set(loops)) < len(loops):
        refuse("cache_load", func, "it takes loops, each of them once")
    top = min(found, key=lambda f: len(loops_around(func, f.var)))
    check_outside_vectors("cache_load", func, top.var)
    chain: list[For] = []
    stmt: Stmt = top
    while isinstance(stmt, For) and len(chain) < len(loops):
        chain.append(stmt)
        stmt = stmt.body
    if {f.var for f in chain} != set(loops):
        names = ", ".join(loops)
        refuse("cache_load", func, f"the loops {names} do not stand directly inside each other")
    return chain, stmt


def _index(func: Func, buffer: str, chain: list[For], body: Stmt) -> tuple[Expr, ...]:
    """The one index that a buffer is read at."""
    if touched_by_invoke(body, buffer):
        refuse("cache_load", func, f"an instruction uses '{buffer}'")
    if buffer in allocs(body):
        refuse("cache_load", func, f"'{buffer}' is allocated inside of loop '{chain[-1].var}'")
    found = list(
        dict.fromkeys(x.index for e in exprs(body) for x in loads(e) if x.buffer == buffer)
    )
    if len(found) != 1:
        there = "at several indices" if found else "nowhere"
        refuse("cache_load", func, f"'{buffer}' is read {there} inside of '{chain[-1].var}'")
    (index,) = found
    same = aliases(func)
    if same.get(buffer, buffer) in {same.get(b, b) for b in written(body)}:
        refuse("cache_load", func, f"loop '{chain[-1].var}' writes '{buffer}'")
    if any(loads(i) for i in index):
        refuse("cache_load", func, f"an index of '{buffer}' is read from memory")
    if inner := {v for i in index for v in free_vars(i)} & loops(body).keys():
        refuse("cache_load", func, f"an index of '{buffer}' depends on loop '{min(inner)}'")
    return index
