"""cache_factor: compute one factor of a sum of products for a tile before summing it up."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeGuard

from dlc.core.types import DType
from dlc.schedule.edit import Site, insert_before, sequence, sites, swap_loop, written
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
    loops,
    rewrite,
)
from dlc.schedule.primitive import (
    check_fresh,
    check_scope,
    find_loop,
    primitive,
    refuse,
)
from dlc.schedule.simplify import conjuncts, guarded
from dlc.te.expr import ONE, ZERO, Binary, BinOp, Cast, Expr, Load, Unary, UnOp, Var, binary
from dlc.te.transform import free_vars, loads, substitute
from dlc.te.types import TensorType


@primitive
def cache_factor(
    func: Func, buffer: str, side: int, loop: str, axes: tuple[str, ...], name: str, scope: str
) -> Func:
    """Compute a factor of what a loop adds to `buffer` into a new buffer, indexed by `axes`.

    `side` is 0 for the left factor, 1 for the right one. `axes` are the loops inside of `loop` that
    the factor depends on, in the order of the new dimensions. The loops of the copy are called
    after the new buffer and the dimension. Elements whose guards fail stay undefined; nobody
    reads them.

    Before:
        def f(A: f32[6, 8], B: f32[8], *, C: f32[6]):
            for ko in range(2):
                for i in range(6):
                    for ki in range(4):
                        C[i] += A[i, ko * 4 + ki] * B[ko * 4 + ki]

    Call:
        cache_factor("C", 0, "ko", ("ki", "i"), "a", "local")

    After:
        def f(A: f32[6, 8], B: f32[8], *, C: f32[6]):
            for ko in range(2):
                a = alloc(f32[4, 6], "local")
                for a_0 in range(4):
                    for a_1 in range(6):
                        a[a_0, a_1] = A[a_1, ko * 4 + a_0]
                for i in range(6):
                    for ki in range(4):
                        C[i] += a[ki, i] * B[ko * 4 + ki]

    Raises:
        ScheduleError: no such loop, side or scope; the loop does not hold one sum of products into
            the buffer; the factor depends on a loop inside that is no axis, or on something that
            the loop writes; a guard joins axes with other loops; a name is taken.
    """
    target = find_loop("cache_factor", func, loop)
    check_scope("cache_factor", func, scope)
    if side not in (0, 1):
        refuse("cache_factor", func, f"there is no side {side}", "0 is left, 1 is right")
    site = _sum(func, buffer, target)
    a, b = _factors(func, buffer, site.store)
    factor = (a, b)[side]
    inner = loops(target.body)
    _check_factor(func, target, factor, axes)
    guards = _guards(func, site, factor, axes, frozenset(inner))
    news = [f"{name}_{d}" for d in range(len(axes))]
    check_fresh("cache_factor", func, (name, *news))

    # A number that is only made wider is kept as narrow as it is, and what its reader rounds whole.
    narrow = factor.a if _is_of_reader(factor) else factor
    shape = tuple(inner[axis].extent for axis in axes)
    cache = Buffer(name, TensorType(shape, narrow.dtype))
    copy = _copy(cache, narrow, guards, axes, news)
    cached: Expr = Load(name, tuple(map(Var, axes)), narrow.dtype)
    if _is_of_reader(factor):
        cached = replace(factor, a=cached)
    product = binary(BinOp.MUL, *((cached, b) if side == 0 else (a, cached)))
    store = replace(site.store, value=_with_summand(site.store, product))

    def change(stmt: Stmt) -> Stmt:
        return store if stmt is site.store else stmt

    def place(rest: Stmt) -> Stmt:
        return Alloc(cache, Scope(scope), block(copy, rewrite(rest, change)))

    mark = next(s for s in sequence(target.body) if any(t.store is site.store for t in sites(s)))
    return swap_loop(func, loop, lambda f: replace(f, body=insert_before(f.body, mark, place)))


def _copy(
    cache: Buffer, factor: Expr, guards: list[Expr], axes: tuple[str, ...], news: list[str]
) -> Stmt:
    """The nest of loops `news` that fills the cache; loops of one iteration are left out."""
    shape = cache.type.shape
    env: dict[str, Expr] = {
        axis: ZERO if size == ONE else Var(new)
        for axis, size, new in zip(axes, shape, news, strict=True)
    }
    at = tuple(env[axis] for axis in axes)
    copy: Stmt = Store(cache.name, at, substitute(factor, env))
    copy = guarded((substitute(c, env) for c in guards), copy)
    for new, size in reversed(list(zip(news, shape, strict=True))):
        copy = copy if size == ONE else For(new, size, LoopKind.SERIAL, copy)
    return copy


def _is_of_reader(factor: Expr) -> TypeGuard[Cast | Unary]:
    """Whether an instruction does this to its operand: widen it, or round it to TF32."""
    if isinstance(factor, Cast):
        halves = factor.dtype.is_float and factor.a.dtype in (DType.F16, DType.BF16)
        return halves or (factor.dtype is DType.I32 and factor.a.dtype in (DType.I8, DType.U8))
    return isinstance(factor, Unary) and factor.op is UnOp.TF32


def _sum(func: Func, buffer: str, target: For) -> Site:
    found = [s for s in sites(target.body) if s.store.buffer == buffer]
    adding = [s for s in found if accumulation(s.store) is BinOp.ADD]
    if len(adding) != 1:
        refuse("cache_factor", func, f"loop '{target.var}' holds no single sum into '{buffer}'")
    return adding[0]


def _factors(func: Func, buffer: str, store: Store) -> tuple[Expr, Expr]:
    assert isinstance(store.value, Binary)
    match store.value.b:
        case Binary(BinOp.MUL, a, b):
            return a, b
    refuse("cache_factor", func, f"what is added to '{buffer}' is no product")


def _with_summand(store: Store, summand: Expr) -> Expr:
    assert isinstance(store.value, Binary)
    return binary(BinOp.ADD, store.value.a, summand)


def _check_factor(func: Func, target: For, factor: Expr, axes: tuple[str, ...]) -> None:
    inner = loops(target.body)
    for axis in axes:
        if axis not in inner:
            refuse("cache_factor", func, f"there is no loop '{axis}' inside of '{target.var}'")
    depends = free_vars(factor) & set(inner)
    if missing := sorted(depends - set(axes)):
        refuse("cache_factor", func, f"the factor depends on '{missing[0]}', which is no axis")
    spoiled = sorted({x.buffer for x in loads(factor)} & written(target.body))
    if spoiled:
        refuse("cache_factor", func, f"loop '{target.var}' writes '{spoiled[0]}'")


def _guards(
    func: Func, site: Site, factor: Expr, axes: tuple[str, ...], inner: frozenset[str]
) -> list[Expr]:
    """The guards that the factor needs: those that read what it reads.

    One that reads no variable of the factor is left out: the factor is the same, and so within
    its buffers, in the iterations for which that guard holds.
    """
    kept: list[Expr] = []
    needs = free_vars(factor)
    for outer in site.around:
        if not isinstance(outer, If):
            continue
        for cond in conjuncts(outer.cond):
            reads = free_vars(cond)
            if not reads & needs:
                continue
            if loads(cond) or (reads & inner) - set(axes):
                refuse("cache_factor", func, f"the guard '{cond}' reads more than the axes")
            kept.append(cond)
    return kept
