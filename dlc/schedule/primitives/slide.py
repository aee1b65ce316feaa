"""slide: let windows that overlap accumulate once what they have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd

from dlc.schedule.dependence import bounds_in
from dlc.schedule.edit import life, map_sequence, sequence, swap_life, written
from dlc.schedule.loop import (
    Alloc,
    Buffer,
    For,
    Func,
    Scope,
    Stmt,
    Store,
    accumulation,
    block,
    dtypes,
    put_inside,
)
from dlc.schedule.nest import Stage, stages
from dlc.schedule.primitive import check_fresh, find_serial, primitive, refuse
from dlc.schedule.primitives.cache_read import shape_of
from dlc.schedule.restrict import within
from dlc.schedule.simplify import conjuncts
from dlc.te.affine import coefficients, iterations, loop_bounds
from dlc.te.expr import ZERO, Binary, BinOp, Expr, Load, Select, Var, children
from dlc.te.simplify import Bounds, canonical, simplify
from dlc.te.tensor import identity
from dlc.te.transform import free_vars, loads, substitute
from dlc.te.types import TensorType


@primitive
def slide(func: Func, buffer: str, loop: str, term: str, name: str) -> Func:
    """Accumulate the terms of each place that windows slide over in a new buffer first.

    `loop` counts windows, and `term` the places of one: both say together which place is read. The
    new buffer has an element for each place; what is left of a window is the loop `term`. Its loops
    are called after the old ones, with its name behind. Where `term` is the only loop over terms,
    the new buffer is a copy of what the windows read, and of what they read outside of it. This
    reorders the reduction, which changes the rounding of a float result.

    Before:
        def f(A: f32[8, 9], *, B: f32[6, 7]):
            for y in range(6):
                for x in range(7):
                    B[y, x] = -inf
                    for i in range(3):
                        for j in range(3):
                            B[y, x] = max(B[y, x], A[y + i, x + j])

    Call:
        slide("B", "x", "j", "line")

    After:
        def f(A: f32[8, 9], *, B: f32[6, 7]):
            line = alloc(f32[6, 9], "local")
            for y_line in range(6):
                for x_line in range(9):
                    line[y_line, x_line] = -inf
                    for i_line in range(3):
                        line[y_line, x_line] = max(line[y_line, x_line], A[i_line + y_line, x_line])
            for y in range(6):
                for x in range(7):
                    B[y, x] = -inf
                    for j in range(3):
                        B[y, x] = max(B[y, x], line[y, x + j])

    Raises:
        ScheduleError: no such loops; they are no longer serial; the buffer is no plain reduction
            whose elements its loops count; the terms depend on the loops in another way than by a
            place; a place that no window reads might not exist; a name is taken.
    """
    each, inside = (find_serial("slide", func, var) for var in (loop, term))
    stage, nest = _reduction(func, buffer)
    if loop not in stage.names or term not in [f.var for f in stage.inner]:
        refuse("slide", func, f"'{loop}' and '{term}' are no element and no term of '{buffer}'")
    windows = _Windows(each, inside, *_steps(func, stage, loop, term))
    others = [f for f in stage.inner if f.var != term]
    names = {f.var: f"{f.var}_{name}" for f in (*stage.loops, *others)}
    check_fresh("slide", func, (name, *names.values()))

    counts = {f.var: f.extent for f in stage.loops} | {loop: windows.places}
    own = [replace(f, var=names[f.var], extent=counts[f.var]) for f in stage.loops]
    rest = [replace(f, var=names[f.var]) for f in others]
    value = _term_at_place(func, stage.value, windows, names, (*own, *rest))

    op, dtype = accumulation(stage.store), dtypes(func)[buffer]
    assert op is not None
    here = Load(name, tuple(Var(f.var) for f in own), dtype)
    filled = _reduction_of(op, here, value, rest) if rest else Store(name, here.index, value)
    index = stage.store.index
    there = Load(name, tuple(windows.place if i == Var(loop) else i for i in index), dtype)
    joined = _reduction_of(op, Load(buffer, index, dtype), there, [inside])
    line = Buffer(name, TensorType(tuple(f.extent for f in own), dtype))
    both = Alloc(line, Scope.LOCAL, block(put_inside(own, filled), put_inside(stage.loops, joined)))
    return swap_life(
        func, buffer, lambda body: map_sequence(body, lambda s: both if s is nest else s)
    )


@dataclass(frozen=True, slots=True)
class _Windows:
    """Windows, and the places that they slide over: a window reads one of them for each term."""

    loop: For
    term: For
    step: int  # places between windows
    apart: int  # places between the terms of one; this or `step` is 1

    @property
    def place(self) -> Expr:
        """What a window reads for a term."""
        return Var(self.loop.var) * self.step + Var(self.term.var) * self.apart

    @property
    def places(self) -> Expr:
        """How many there are; none where there is no window."""
        last = (self.loop.extent - 1) * self.step + (self.term.extent - 1) * self.apart
        return canonical(iterations(canonical(last + 1)))

    def at_place(self, value: Expr, place: Expr) -> Expr:
        """A term by its place: of window and place inside of it, that 1 apart is replaced."""
        if self.apart == 1:
            return substitute(value, {self.term.var: place - Var(self.loop.var) * self.step})
        return substitute(value, {self.loop.var: place - Var(self.term.var) * self.apart})


def _term_at_place(
    func: Func, term: Expr, windows: _Windows, names: Mapping[str, str], around: Iterable[For]
) -> Expr:
    """A term by its place alone, in the loops that fill the new buffer."""
    loop, inside = windows.loop.var, windows.term.var
    bounds = {**bounds_in(func.body), **loop_bounds({f.var: f.extent for f in around})}
    others = {v: Var(n) for v, n in names.items() if v != loop}
    by_place = windows.at_place(term, Var(names[loop]))
    value = simplify(substitute(by_place, others), bounds)
    if free_vars(value) & {loop, inside}:
        refuse("slide", func, f"the terms depend on '{loop}' and '{inside}' not only by a place")
    if not _exists(func, value, names[loop], frozenset(), bounds):
        refuse("slide", func, "a place that no window reads might not exist")
    return value


def _reduction(func: Func, buffer: str) -> tuple[Stage, Stmt]:
    """The stage that computes all of a buffer by one reduction, and its nest."""
    found = [s for s in stages(func) if s.buffer == buffer]
    nests = [s for s in sequence(life(func, buffer)) if buffer in written(s)]
    if len(found) == len(nests) == 1 and found[0].start is not None:
        (stage,) = found
        op, index = accumulation(stage.store), stage.store.index
        assert op is not None
        plain = _reduction_of(op, Load(buffer, index, stage.value.dtype), stage.value, stage.inner)
        alone = all(x.buffer != buffer for x in loads(stage.value))
        counted = index == tuple(map(Var, stage.names))
        if alone and counted and nests[0] == put_inside(stage.loops, plain):
            return stage, nests[0]
    refuse("slide", func, f"'{buffer}' is no plain reduction whose elements its loops count")


def _reduction_of(op: BinOp, total: Load, term: Expr, inner: Sequence[For]) -> Stmt:
    """A reduction of one element over some loops."""
    start = Store(total.buffer, total.index, identity(op, total.dtype))
    join = Store(total.buffer, total.index, Binary(op, total, term))
    return block(start, put_inside(inner, join))


def _steps(func: Func, stage: Stage, loop: str, term: str) -> tuple[int, int]:
    """How many places lie between windows, and between the terms of one; one of both is 1."""
    for index in [i for x in loads(stage.value) for i in x.index if loop in free_vars(i)]:
        found = coefficients(index) or {}
        steps = (found.get(loop, 0), found.get(term, 0))
        common = gcd(*steps)
        if min(steps) > 0 and common in steps:
            return steps[0] // common, steps[1] // common
    refuse("slide", func, f"nothing is read at a place that '{loop}' and '{term}' say together")


def _exists(func: Func, value: Expr, place: str, known: frozenset[Expr], bounds: Bounds) -> bool:
    """Whether everything that is read at a place surely lies inside of its buffer."""
    match value:
        case Select(cond, then, other):
            parts = ((cond, known), (then, known.union(conjuncts(cond))), (other, known))
            return all(_exists(func, e, place, k, bounds) for e, k in parts)
        case Load(buffer, index, _):
            there = zip(index, shape_of(func, buffer), strict=True)
            tests = (
                t for i, n in there if place in free_vars(i) for t in within(i, ZERO, n, bounds)
            )
            return all(test in known for test in tests)
        case _:
            return all(_exists(func, e, place, known, bounds) for e in children(value))
