"""factor_out: multiply a subtotal once by what all its terms have as a factor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dlc.schedule.dependence import why_not_disjoint
from dlc.schedule.edit import Site, sites, swap_life, told_apart, touched_by_invoke
from dlc.schedule.loop import Func, If, Stmt, Store, accumulation, exprs, put_inside, rewrite
from dlc.schedule.primitive import find_intermediate, primitive, refuse
from dlc.te.expr import Binary, BinOp, Expr, Load, Var, const
from dlc.te.transform import free_vars, loads, substitute


@primitive
def factor_out(func: Func, buffer: str) -> Func:
    """Take the factors that are the same for all terms of a sum out of it, to where it is added.

    The buffer is a subtotal, which one accumulation reads. This multiplies in another order, which
    changes the rounding of a float result.

    Before:
        def sum(A: f32[6, 4], w: f32[6, 4, 8], c: f32[6, 8], *, s: f32[8]):
            for i in range(8):
                s[i] = 0.0
            for ko in range(6):
                part = alloc(f32[8], "local")
                for j in range(8):
                    part[j] = 0.0
                for ki in range(4):
                    for j1 in range(8):
                        part[j1] += A[ko, ki] * (w[ko, ki, j1] * c[ko, j1])
                for j2 in range(8):
                    s[j2] += part[j2]

    Call:
        factor_out("part")

    After:
        def sum(A: f32[6, 4], w: f32[6, 4, 8], c: f32[6, 8], *, s: f32[8]):
            for i in range(8):
                s[i] = 0.0
            for ko in range(6):
                part = alloc(f32[8], "local")
                for j in range(8):
                    part[j] = 0.0
                for ki in range(4):
                    for j1 in range(8):
                        part[j1] += A[ko, ki] * w[ko, ki, j1]
                for j2 in range(8):
                    s[j2] += part[j2] * c[ko, j2]

    Raises:
        ScheduleError: no such intermediate; it is no sum of products; no accumulation of sums is
            its only reader; iterations that differ in what chooses the element may use the same
            one; the elements are not read as they are added up, or under guards of their own, which
            factors may rely on; all its terms have no factor in common that only inputs make.
    """
    body = told_apart(find_intermediate("factor_out", func, buffer).body)
    total, (end, read) = _sum(func, body, buffer), _reader(func, body, buffer)
    summands = _summands(func, total)
    env = _loops_of_reader(func, total, end, read, summands)
    assert isinstance(total.store.value, Binary)
    inputs = {b.name for b in func.inputs}
    kept, common = _factors(total.store.value.b, summands, inputs)
    if kept is None or common is None:
        refuse("factor_out", func, f"the terms of '{buffer}' have no factor of inputs in common")
    terms = _accumulating(total.store, kept)
    added = _accumulating(end.store, Binary(BinOp.MUL, read, substitute(common, env)))

    def change(stmt: Stmt) -> Stmt:
        return terms if stmt is total.store else added if stmt is end.store else stmt

    return swap_life(func, buffer, lambda _: rewrite(body, change))


def _sum(func: Func, body: Stmt, buffer: str) -> Site:
    """The accumulation, which begins at zero."""
    found = [s for s in sites(body) if s.store.buffer == buffer]
    sums = [s for s in found if accumulation(s.store) is BinOp.ADD]
    begins = [s.store.value for s in found if s not in sums]
    if len(sums) != 1 or not begins or any(b != const(0, b.dtype) for b in begins):
        refuse("factor_out", func, f"'{buffer}' is no single sum that begins at 0")
    return sums[0]


def _reader(func: Func, body: Stmt, buffer: str) -> tuple[Site, Load]:
    """The one accumulation that adds elements of the buffer to another one, and which it reads."""
    found = [
        s
        for s in sites(body)
        if s.store.buffer != buffer and any(x.buffer == buffer for x in loads(s.store.value))
    ]
    reads = [x for e in exprs(body) for x in loads(e) if x.buffer == buffer]
    if len(found) == 1 and len(reads) == 2 and not touched_by_invoke(body, buffer):
        (site,) = found
        match site.store.value:
            case Binary(BinOp.ADD, _, Load() as read) if accumulation(site.store) is BinOp.ADD:
                return site, read
    refuse("factor_out", func, f"'{buffer}' is read by something else than one sum")


def _summands(func: Func, total: Site) -> set[str]:
    """The loops over the terms of one element."""
    used = {v for part in total.store.index for v in free_vars(part)}
    chosen = tuple(f.var for f in total.loops if f.var in used)
    nest = put_inside(total.around, total.store)
    if reason := why_not_disjoint(func, nest, chosen, total.store.buffer):
        refuse("factor_out", func, reason)
    return {f.var for f in total.loops if f.var not in used}


def _loops_of_reader(
    func: Func, total: Site, end: Site, read: Load, summands: set[str]
) -> Mapping[str, Expr]:
    """The loops that choose an element where it is read, by those that choose it in the sum."""
    buffer = total.store.buffer
    starts, ends = ([f for f in site.loops if f.var not in summands] for site in (total, end))
    env = {a.var: Var(b.var) for a, b in zip(starts, ends, strict=False) if a.extent == b.extent}
    if tuple(substitute(part, env) for part in total.store.index) != read.index:
        refuse("factor_out", func, f"'{buffer}' is not read as it is added up")
    guards = [g.cond for g in end.around if isinstance(g, If)]
    if any(substitute(g.cond, env) not in guards for g in total.around if isinstance(g, If)):
        refuse("factor_out", func, f"'{buffer}' is added up under a guard that its reader lacks")
    return env


def _factors(value: Expr, summands: set[str], inputs: set[str]) -> tuple[Expr | None, Expr | None]:
    """The product of the factors that differ from term to term, and of those that do not."""
    if isinstance(value, Binary) and value.op is BinOp.MUL:
        parts = [_factors(part, summands, inputs) for part in (value.a, value.b)]
        kept, common = ([p for p in side if p is not None] for side in zip(*parts, strict=True))
        return _product(kept), _product(common)
    is_common = not free_vars(value) & summands and {x.buffer for x in loads(value)} <= inputs
    return (None, value) if is_common else (value, None)


def _accumulating(store: Store, term: Expr) -> Store:
    """The same accumulation of another term."""
    assert isinstance(store.value, Binary)
    return replace(store, value=replace(store.value, b=term))


def _product(factors: list[Expr]) -> Expr | None:
    if len(factors) == 2:
        return Binary(BinOp.MUL, factors[0], factors[1])
    return factors[0] if factors else None
