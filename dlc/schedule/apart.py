"""Whether two statements use different parts of every buffer they share, at least as boxes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dlc.schedule.dependence import accesses, bounds_in
from dlc.schedule.edit import aliases, sites
from dlc.schedule.loop import Func, If, Invoke, Stmt, allocs, walk
from dlc.schedule.primitives.cache_read import shape_of
from dlc.schedule.region import Span, spans
from dlc.schedule.simplify import conjuncts
from dlc.te.expr import ONE, ZERO, Binary, BinOp, Expr, Load, Var
from dlc.te.simplify import Bounds, surely_at_most
from dlc.te.transform import loads, rewrite

Index = tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class _Use:
    """An access, its index as far as the guards around it tell, and the ranges it varies over."""

    buffer: str
    index: Index
    write: bool
    ranges: Bounds


def why_not_unordered(func: Func, a: Stmt, b: Stmt) -> str:
    """Why two statements may not run in any order or at the same time, or ""."""
    same = aliases(func)
    first, second = list(_uses(a)), list(_uses(b))
    for x in first:
        for y in second:
            if same.get(x.buffer, x.buffer) != same.get(y.buffer, y.buffer):
                continue
            if (x.write or y.write) and not _apart(func, x, y):
                return f"both may use one element of '{x.buffer}'"
    return ""


def _apart(func: Func, x: _Use, y: _Use) -> bool:
    """Whether the boxes of two uses are apart in some dimension."""
    shape = shape_of(func, x.buffer)
    bounds = bounds_in(func.body)
    one, two = (spans([u.index], shape, u.ranges, {**bounds, **u.ranges}) for u in (x, y))
    pairs = zip(one, two, strict=True)
    return any(_before(s, t) or _before(t, s) for s, t in pairs if not (s.whole or t.whole))


def _before(first: Span, second: Span) -> bool:
    return surely_at_most(first.start + first.extent, second.start)


def _uses(stmt: Stmt) -> Iterator[_Use]:
    """Every access to a buffer that lives outside of a statement."""
    own = set(allocs(stmt))
    ranges = bounds_in(stmt)
    for site in sites(stmt):
        limits: dict[Expr, Expr] = {}
        reads: list[Load] = list(loads(site.store.value))
        for part in site.store.index:
            reads += loads(part)
        for outer in site.around:
            if isinstance(outer, If):
                reads += loads(outer.cond)
                limits |= _limits(outer.cond)
        found = [(site.store.buffer, site.store.index, True)]
        found += [(x.buffer, x.index, False) for x in reads]
        yield from (_limited(*use, ranges, limits) for use in found if use[0] not in own)
    for access in (a for s in walk(stmt) if isinstance(s, Invoke) for a in accesses(s)):
        if access.buffer not in own:
            known = {**ranges, **dict(access.reach)}
            yield _Use(access.buffer, access.index, access.write, known)


def _limits(cond: Expr) -> dict[Expr, Expr]:
    """Sums that a guard keeps below a size: what `split` and its kind test at tails."""
    found: dict[Expr, Expr] = {}
    for part in conjuncts(cond):
        match part:
            case Binary(BinOp.LT, value, size) if not isinstance(value, Var):
                found[value] = size
    return found


def _limited(
    buffer: str, index: Index, write: bool, ranges: Bounds, limits: dict[Expr, Expr]
) -> _Use:
    """A use with each guarded sum as one variable, which runs from 0 to below its limit.

    A sum may be made of one that a guard further out limits.
    """
    names: dict[Expr, str] = {}
    known = dict(ranges)

    def visit(node: Expr) -> Expr:
        return Var(names[node]) if node in names else node

    for number, (value, size) in enumerate(limits.items()):
        name = f"#{number}"
        names[rewrite(value, visit)] = name
        known[name] = (ZERO, size - ONE)
    return _Use(buffer, tuple(rewrite(part, visit) for part in index), write, known)
