"""reverse_compute_at: run a consumer inside a loop of its producer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dlc.schedule.dependence import (
    bounds_in,
    why_not_apart,
    why_not_independent,
    why_not_permutable,
)
from dlc.schedule.edit import (
    aliases,
    guards_around,
    life,
    loops_around,
    map_sequence,
    read,
    sequence,
    sites,
    swap_life,
    swap_loop,
    touched_by_invoke,
    written,
)
from dlc.schedule.loop import (
    Block,
    For,
    Func,
    If,
    LoopKind,
    Stmt,
    Store,
    allocs,
    block,
    dtypes,
    loops,
)
from dlc.schedule.primitive import (
    check_outside_vectors,
    find_loop,
    primitive,
    refuse,
)
from dlc.schedule.primitives.cache_read import shape_of
from dlc.schedule.region import Span, spans
from dlc.schedule.restrict import Anchor, Plan, plan_restriction, restrict
from dlc.schedule.simplify import simplify_stmt
from dlc.te.expr import ONE, ZERO, Const, Expr, Var
from dlc.te.simplify import canonical, surely_at_most, to_poly
from dlc.te.transform import free_vars, loads


@primitive
def reverse_compute_at(func: Func, buffer: str, loop: str) -> Func:
    """Run the first nest that reads a buffer inside a loop of the nest that computes it.

    Each iteration runs the part of the consumer that reads what the iteration has computed, at
    its end.

    Before:
        def f(A: f32[4, 10], *, B: f32[4, 10]):
            t = alloc(f32[4, 10], "local")
            for i in range(4):
                for jo in range(2):
                    for ji in range(5):
                        t[i, jo * 5 + ji] = A[i, jo * 5 + ji] * 2.0
            for y in range(4):
                for x in range(10):
                    B[y, x] = t[y, x] + 1.0

    Call:
        reverse_compute_at("t", "jo")

    After:
        def f(A: f32[4, 10], *, B: f32[4, 10]):
            t = alloc(f32[4, 10], "local")
            for i in range(4):
                for jo in range(2):
                    for ji in range(5):
                        t[i, jo * 5 + ji] = A[i, jo * 5 + ji] * 2.0
                    for y in range(1):
                        for x in range(5):
                            B[i, jo * 5 + x] = t[i, jo * 5 + x] + 1.0

    Raises:
        ScheduleError: no such buffer or loop; the loop does not hold all that writes the buffer;
            no later nest reads it; a guard is around
            the loop; iterations share elements, or do not surely compute all that
            is read; a store of the consumer would run several times; the consumer cannot be
            reordered, or something in between depends on it, or its
            buffers do not live there yet; an instruction uses the buffer.
    """
    target = find_loop("reverse_compute_at", func, loop)
    if buffer not in dtypes(func):
        refuse("reverse_compute_at", func, f"there is no buffer '{buffer}'")
    home, consumer = _nests(func, buffer, target)
    bounds = bounds_in(func.body)
    stores = [s.store.index for s in sites(target.body) if s.store.buffer == buffer]
    box = spans(stores, shape_of(func, buffer), bounds_in(target.body), bounds)
    anchors = list(_reads(consumer, buffer))
    plan = plan_restriction(consumer, anchors, box)
    around = _around(func, home, target)
    _check_parts(func, buffer, consumer, anchors, plan, box)
    if reason := why_not_apart(func, home, tuple(f.var for f in around), buffer, box):
        refuse("reverse_compute_at", func, reason)
    if not _computes_all(consumer, plan, box, around):
        reason = f"'{loop}' does not surely compute all of '{buffer}' that is read"
        refuse("reverse_compute_at", func, reason)
    permuted = tuple(plan.loops)
    reason = why_not_permutable(func, consumer, permuted) if isinstance(consumer, For) else ""
    if reason:
        refuse("reverse_compute_at", func, reason)

    part, now = restrict(
        consumer, plan, box, bounds, lambda why: refuse("reverse_compute_at", func, why)
    )
    result = _moved(func, buffer, loop, consumer, simplify_stmt(part, now))
    for outer in (f for f in around if f.kind is LoopKind.PARALLEL):
        if reason := why_not_independent(result, outer.var):
            refuse("reverse_compute_at", func, reason)
    return result


def _moved(func: Func, buffer: str, loop: str, consumer: Stmt, part: Stmt) -> Func:
    """The function with a part of the consumer at the end of the loop, instead of all of it."""
    alone = swap_life(
        func,
        buffer,
        lambda body: map_sequence(body, lambda s: Block(()) if s is consumer else s),
    )
    return swap_loop(alone, loop, lambda f: replace(f, body=block(f.body, part)))


def _nests(func: Func, buffer: str, target: For) -> tuple[Stmt, Stmt]:
    """The nest that computes the buffer, and the first later one that reads it."""
    loop = target.var
    parts = sequence(life(func, buffer))
    home = next((s for s in parts if loop in loops(s)), None)
    if home is None or any(touched_by_invoke(s, buffer) for s in parts):
        refuse("reverse_compute_at", func, f"an instruction or nothing computes '{buffer}'")
    if guards_around(home, loop):
        refuse("reverse_compute_at", func, f"a guard around '{loop}' may skip iterations")
    inside = [s for s in sites(target.body) if s.store.buffer == buffer]
    everywhere = [s for s in sites(func.body) if s.store.buffer == buffer]
    if not inside or len(inside) < len(everywhere):
        refuse("reverse_compute_at", func, f"'{loop}' does not hold all that writes '{buffer}'")
    place = next(i for i, s in enumerate(parts) if s is home)
    later = parts[place + 1 :]
    at = next((i for i, s in enumerate(later) if buffer in read(s)), None)
    if at is None:
        refuse("reverse_compute_at", func, f"no later nest reads '{buffer}'")
    consumer = later[at]
    check_outside_vectors("reverse_compute_at", func, loop)
    _check_between(func, buffer, home, later[:at], consumer)
    private = allocs(consumer)
    for name in sorted((read(consumer) | written(consumer)) - set(private)):
        if loop not in loops(life(func, name)):
            refuse("reverse_compute_at", func, f"'{name}' does not live in loop '{loop}' yet")
    return home, consumer


def _check_between(
    func: Func, buffer: str, home: Stmt, between: list[Stmt], consumer: Stmt
) -> None:
    same = aliases(func)

    def memory(names: set[str]) -> set[str]:
        return {same.get(name, name) for name in names}

    reads, writes = memory(read(consumer)), memory(written(consumer))
    for s in (home, *between):
        others = memory(written(s)) - ({buffer} if s is home else set())
        clash = (others & (reads | writes)) | (memory(read(s)) & writes)
        if clash:
            reason = f"'{min(clash)}' is used by what runs before the nest that reads '{buffer}'"
            refuse("reverse_compute_at", func, reason)


def _reads(stmt: Stmt, buffer: str, around: tuple[For | If, ...] = ()) -> Iterator[Anchor]:
    """Every index at which a statement reads a buffer, with the loops around."""
    match stmt:
        case Store(_, index, value):
            for expr in (*index, value):
                yield from (Anchor(x.index, around) for x in loads(expr) if x.buffer == buffer)
        case If(cond, body):
            yield from (Anchor(x.index, around) for x in loads(cond) if x.buffer == buffer)
            yield from _reads(body, buffer, (*around, stmt))
        case For(_, _, _, body):
            yield from _reads(body, buffer, (*around, stmt))
        case Block(stmts):
            for child in stmts:
                yield from _reads(child, buffer, around)
        case _:
            for child in sequence(stmt):
                if child is not stmt:
                    yield from _reads(child, buffer, around)


def _around(func: Func, home: Stmt, target: For) -> list[For]:
    """The loops of the producing nest around the place, the loop itself included."""
    inside = loops(home)
    return [f for f in loops_around(func, target.var) if f.var in inside]


def _check_parts(
    func: Func,
    buffer: str,
    consumer: Stmt,
    anchors: list[Anchor],
    plan: Plan,
    box: tuple[Span, ...],
) -> None:
    """Every part of the consumer must run once: under one shortened loop for each dimension."""
    cut = {d for d, span in enumerate(box) if not span.whole}
    if any(plan.dims(a) != cut for a in anchors):
        refuse("reverse_compute_at", func, f"the nest does not walk along the parts of '{buffer}'")
    for site in sites(consumer):
        if plan.dims(Anchor(site.store.index, site.around)) != cut:
            reason = f"a store of '{site.store.buffer}' would run several times"
            refuse("reverse_compute_at", func, reason)


def _computes_all(consumer: Stmt, plan: Plan, box: tuple[Span, ...], around: list[For]) -> bool:
    """Whether the boxes of all iterations together hold what the consumer's loops walk along."""
    extents = {v: f.extent for v, f in loops(consumer).items()}
    return all(
        box[d].whole or _covers(box[d], around, offset, extents[v])
        for v, (d, offset) in plan.loops.items()
    )


def _covers(span: Span, around: list[For], offset: Expr, extent: Expr) -> bool:
    """Whether the boxes of all iterations together hold offset ... offset + extent - 1.

    The start of a box is a sum of loop variables times steps. Sorted by step, each loop must
    continue where the smaller ones together end.
    """
    extents = {f.var: f.extent for f in around}
    steps: list[tuple[int, Expr]] = []
    base: Expr = ZERO
    for atoms, factor in to_poly(span.start, {}).items():
        match atoms:
            case (Var(name, _),) if name in extents:
                steps.append((factor, extents[name]))
            case _ if any(free_vars(a) & set(extents) for a in atoms):
                return False
            case _:
                term: Expr = Const(factor, ONE.dtype)
                for atom in atoms:
                    term = term * atom
                base = base + term
    reach = span.extent
    for step, count in sorted(steps, key=lambda item: item[0]):
        if step < 0 or not surely_at_most(step, reach):
            return False
        reach = canonical(reach + (count - ONE) * step)
    return surely_at_most(base, offset) and surely_at_most(offset + extent, base + reach)
