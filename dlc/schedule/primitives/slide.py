"""slide: let windows that overlap accumulate once what they have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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
    for var in (loop, term):
        find_serial("slide", func, var)
    stage, nest = _reduction(func, buffer)
    at = stage.names.index(loop) if loop in stage.names else -1
    if at < 0 or term not in [f.var for f in stage.inner]:
        refuse("slide", func, f"'{loop}' and '{term}' are no element and no term of '{buffer}'")
    extents = {f.var: f.extent for f in (*stage.loops, *stage.inner)}
    step, apart = _steps(func, stage, loop, term)
    place = Var(loop) * step + Var(term) * apart
    count = canonical((extents[loop] - 1) * step + (extents[term] - 1) * apart + 1)
    count = canonical(iterations(count))  # none where there is no window

    names = {v: f"{v}_{name}" for v in extents if v != term}
    check_fresh("slide", func, (name, *names.values()))
    own = [replace(f, var=names[f.var]) for f in stage.loops]
    own[at] = replace(own[at], extent=count)
    rest = [replace(f, var=names[f.var]) for f in stage.inner if f.var != term]
    bounds = {**bounds_in(func.body), **loop_bounds({f.var: f.extent for f in (*own, *rest)})}
    value = _at_place(stage.value, loop, term, (step, apart), Var(own[at].var))
    value = simplify(substitute(value, {v: Var(n) for v, n in names.items() if v != loop}), bounds)
    if free_vars(value) & {loop, term}:
        refuse("slide", func, f"the terms depend on '{loop}' and '{term}' not only by a place")
    if not _exists(func, value, own[at].var, frozenset(), bounds):
        refuse("slide", func, "a place that no window reads might not exist")

    op, dtype = accumulation(stage.store), dtypes(func)[buffer]
    assert op is not None
    index = tuple(Var(f.var) for f in own)
    terms = _reduction_of(op, Load(name, index, dtype), value, rest)
    made = put_inside(own, terms if rest else Store(name, index, value))
    read = tuple(place if i == Var(loop) else i for i in stage.store.index)
    left = [f for f in stage.inner if f.var == term]
    joined = _reduction_of(
        op, Load(buffer, stage.store.index, dtype), Load(name, read, dtype), left
    )
    shape = tuple(f.extent for f in own)
    line = Buffer(name, TensorType(shape, dtype))
    both = Alloc(line, Scope.LOCAL, block(made, put_inside(stage.loops, joined)))
    return swap_life(
        func, buffer, lambda body: map_sequence(body, lambda s: both if s is nest else s)
    )


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


def _at_place(value: Expr, loop: str, term: str, steps: tuple[int, int], place: Expr) -> Expr:
    """A term by its place: of window and place inside of it, that which is 1 apart is replaced."""
    step, apart = steps
    if apart == 1:
        return substitute(value, {term: place - Var(loop) * step})
    return substitute(value, {loop: place - Var(term) * apart})


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
