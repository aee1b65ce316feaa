"""zero_summands: let a sum of products read zeros where it left summands out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dlc.schedule.dependence import bounds_in
from dlc.schedule.edit import Site, sites, touched_by_invoke, written
from dlc.schedule.loop import Func, If, Stmt, Store, accumulation, allocs, loops, rewrite
from dlc.schedule.primitive import primitive, refuse
from dlc.schedule.restrict import within
from dlc.schedule.simplify import all_of, conjuncts, guarded
from dlc.te.expr import ZERO, Binary, BinOp, Cast, Expr, Load, Select, Unary, UnOp, Var, const
from dlc.te.simplify import canonical
from dlc.te.transform import free_vars, loads, substitute


@primitive
def zero_summands(func: Func, buffer: str) -> Func:
    """Store zeros into both factors where guards leave summands out, and add them up.

    A loop over summands that was cut unevenly then needs no test. A product of zeros adds 0, which
    changes at most the sign of a zero.

    Before:
        def f(A: f32[5], B: f32[5], *, C: f32[1]):
            C[0] = 0.0
            for ko in range(2):
                a = alloc(f32[4], "local")
                for a_0 in range(4):
                    if ko * 4 + a_0 < 5:
                        a[a_0] = A[ko * 4 + a_0]
                b = alloc(f32[4], "local")
                for b_0 in range(4):
                    if ko * 4 + b_0 < 5:
                        b[b_0] = B[ko * 4 + b_0]
                for ki in range(4):
                    if ko * 4 + ki < 5:
                        C[0] += a[ki] * b[ki]

    Call:
        zero_summands("C")

    After:
        def f(A: f32[5], B: f32[5], *, C: f32[1]):
            C[0] = 0.0
            for ko in range(2):
                a = alloc(f32[4], "local")
                for a_0 in range(4):
                    a[a_0] = (A[ko * 4 + a_0] if ko * 4 + a_0 < 5 else 0.0)
                b = alloc(f32[4], "local")
                for b_0 in range(4):
                    b[b_0] = (B[ko * 4 + b_0] if ko * 4 + b_0 < 5 else 0.0)
                for ki in range(4):
                    C[0] += a[ki] * b[ki]

    Raises:
        ScheduleError: the buffer is not one sum of products; no guard leaves summands out; a factor
            is no element of an intermediate that one nest stores, in every iteration and under the
            guards of the sum; a guard of the sum also guards something else; an instruction uses a
            factor.
    """
    total = _sum(func, buffer)
    assert isinstance(total.store.value, Binary)
    product = total.store.value.b
    if not (isinstance(product, Binary) and product.op is BinOp.MUL):
        refuse("zero_summands", func, f"what is added to '{buffer}' is no product")
    summands = _summands(func, total)
    known = _tests(total)
    tests = [c for c in known if free_vars(c) & summands and not loads(c)]
    if not tests:
        refuse("zero_summands", func, f"no guard leaves out summands of '{buffer}'")
    fills = [_fill(func, factor, tests, known) for factor in (product.a, product.b)]
    gone = {buffer: tests} | {f.site.store.buffer: f.tests for f in fills}
    values = {id(f.site.store): f.value for f in fills}

    def visit(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Store) and id(stmt) in values:
            return replace(stmt, value=values[id(stmt)])
        return _without(func, stmt, gone) if isinstance(stmt, If) else stmt

    return replace(func, body=rewrite(func.body, visit))


@dataclass(frozen=True, slots=True)
class _Fill:
    """The store of a factor, its guards that become zeros, and what it stores then."""

    site: Site
    tests: list[Expr]
    value: Expr


def _sum(func: Func, buffer: str) -> Site:
    found = [s for s in sites(func.body) if s.store.buffer == buffer]
    sums = [s for s in found if accumulation(s.store) is BinOp.ADD]
    if len(sums) != 1:
        refuse("zero_summands", func, f"'{buffer}' is no single sum")
    return sums[0]


def _summands(func: Func, total: Site) -> set[str]:
    """The loops over the summands of one element, from where the buffer is allocated on."""
    position = {v for part in total.store.index for v in free_vars(part)}
    own = allocs(func.body).get(total.store.buffer)
    inside = loops(func.body if own is None else own.body)
    return {f.var for f in total.loops if f.var in inside} - position


def _tests(site: Site) -> list[Expr]:
    """What the guards around a store test."""
    return [c for s in site.around if isinstance(s, If) for c in conjuncts(s.cond)]


def _fill(func: Func, factor: Expr, tests: list[Expr], known: list[Expr]) -> _Fill:
    """What the nest of a factor stores where the tests fail as well."""
    load = _element(factor)
    made = [] if load is None else [s for s in sites(func.body) if s.store.buffer == load.buffer]
    if load is None or len(made) != 1 or load.buffer not in allocs(func.body):
        refuse("zero_summands", func, f"'{factor}' is no element that one nest stores")
    if touched_by_invoke(func.body, load.buffer):
        refuse("zero_summands", func, f"an instruction uses '{load.buffer}'")
    (site,) = made
    env = _places(func, site, load)
    own = {c: canonical(substitute(c, env)) for c in _tests(site)}
    wanted, others = {canonical(c) for c in tests}, {canonical(c) for c in known}
    if not wanted <= set(own.values()) <= others:
        reason = f"'{load.buffer}' is not stored under the guard of the sum"
        refuse("zero_summands", func, reason)
    same = [c for c, here in own.items() if here in wanted]
    value = Select(all_of(same), site.store.value, const(0, site.store.value.dtype))
    return _Fill(site, same, value)


def _places(func: Func, site: Site, load: Load) -> Mapping[str, Expr]:
    """Which iteration stores the element that the sum reads; there is one for all of them."""
    extents = {f.var: f.extent for f in site.loops}
    bounds = bounds_in(func.body)
    env: dict[str, Expr] = {}
    for part, at in zip(site.store.index, load.index, strict=True):
        if isinstance(part, Var) and part.name in extents and part.name not in env:
            stored = not within(at, ZERO, extents[part.name], bounds)
            env[part.name] = at
        else:
            stored = canonical(part) == canonical(at)
        if not stored:
            refuse("zero_summands", func, f"'{load}' is not stored in every iteration")
    return env


def _element(factor: Expr) -> Load | None:
    """The element that a factor is: what rounds or widens it makes 0 of 0."""
    match factor:
        case Load():
            return factor
        case Cast(_, a) | Unary(UnOp.TF32, a):
            return _element(a)
        case _:
            return None


def _without(func: Func, guard: If, gone: Mapping[str, list[Expr]]) -> Stmt:
    """A guard without the tests that are gone for what is stored under it."""
    inside = written(guard)
    mine = inside & gone.keys()
    if not mine:
        return guard
    tests = conjuncts(guard.cond)
    kept = [c for c in tests if not any(c in gone[b] for b in mine)]
    if len(kept) < len(tests) and len(inside) > 1:
        refuse("zero_summands", func, f"a guard of '{min(inside)}' guards other stores too")
    return guarded(kept, guard.body)
