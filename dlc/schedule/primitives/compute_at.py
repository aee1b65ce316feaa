"""compute_at: compute an intermediate inside a loop of its consumer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dlc.schedule.dependence import bounds_in, why_not_disjoint
from dlc.schedule.edit import (
    aliases,
    insert_at_read,
    loops_around,
    map_sequence,
    own_reads,
    read,
    redirect,
    sequence,
    sites,
    swap_alloc,
    swap_loop,
    told_apart,
    touched_by_invoke,
    written,
)
from dlc.schedule.loop import (
    Alloc,
    Block,
    For,
    Func,
    Stmt,
    Store,
    allocs,
    block,
    exprs,
    loops,
    rewrite,
    touches,
)
from dlc.schedule.primitive import (
    check_outside_vectors,
    find_intermediate,
    find_loop,
    primitive,
    refuse,
)
from dlc.schedule.region import Span, rebase, spans
from dlc.schedule.restrict import Anchor, Plan, plan_restriction, restrict, within
from dlc.schedule.simplify import guarded, simplify_stmt
from dlc.te.expr import Expr, ceil_div
from dlc.te.simplify import Bounds, canonical, surely_at_most, surely_divides
from dlc.te.transform import loads
from dlc.te.types import TensorType


@primitive
def compute_at(func: Func, buffer: str, loop: str, multiples: tuple[int, ...] = ()) -> Func:
    """Compute what one iteration of a loop reads of an intermediate inside that iteration.

    The buffer shrinks to the box that is read. Where the box sticks out of the buffer, a guard
    keeps the computation to the elements there are. `multiples`, one for each dimension, round
    the extents of the box up: the elements behind it are computed and read by nobody. A nest may
    have memory of its own; loops that fill it for others to read still run over all elements.

    Before:
        def blur(n: size, A: f32[n + 2], *, B: f32[n]):
            t = alloc(f32[n + 1], "local")
            for i in range(n + 1):
                t[i] = A[i] + A[i + 1]
            for j in range(n):
                B[j] = t[j] + t[j + 1]

    Call:
        compute_at("t", "j")

    After:
        def blur(n: size, A: f32[n + 2], *, B: f32[n]):
            for j in range(n):
                t = alloc(f32[2], "local")
                for i in range(2):
                    t[i] = A[i + j] + A[i + j + 1]
                B[j] = t[0] + t[1]

    Raises:
        ScheduleError: no such intermediate or loop; the loop does not follow the nests that
            compute the buffer, or is inside a vector loop; the buffer is read elsewhere, or
            written together with others or in the loop; an element depends on other elements;
            what it is computed from is overwritten in between; an instruction uses it; a
            rounded box is not surely inside of the buffer.
    """
    alloc = find_intermediate("compute_at", func, buffer)
    target = find_loop("compute_at", func, loop)
    home, producers = _check_place(func, alloc, target)
    bounds = bounds_in(func.body)
    indices = [x.index for e in exprs(target.body) for x in loads(e) if x.buffer == buffer]
    inner = bounds_in(target.body)
    box = spans(indices, alloc.buffer.type.shape, inner, bounds)
    if multiples:
        box = _rounded(func, alloc, box, multiples, bounds)
    moved = [_restricted(func, p, buffer, box, bounds) for p in producers]
    type_ = TensorType(tuple(s.extent for s in box), alloc.buffer.type.dtype)
    shrunk = replace(alloc.buffer, type=type_)

    def place(rest: Stmt) -> Stmt:
        return Alloc(shrunk, alloc.scope, block(*moved, rest))

    body = redirect(target.body, buffer, buffer, lambda index: rebase(index, box, bounds))
    result = swap_alloc(func, buffer, lambda a: map_sequence(a.body, _without(producers)))
    result = swap_loop(result, loop, lambda f: replace(f, body=insert_at_read(body, buffer, place)))
    _check_sources(func, result, alloc, producers, home, target)
    return result


def _rounded(
    func: Func, alloc: Alloc, box: tuple[Span, ...], multiples: tuple[int, ...], bounds: Bounds
) -> tuple[Span, ...]:
    """The box with its extents rounded up."""
    name, shape = alloc.buffer.name, alloc.buffer.type.shape
    if len(multiples) != len(box) or any(m < 1 for m in multiples):
        refuse("compute_at", func, f"{multiples} are no multiples of '{name}'s dimensions")
    found: list[Span] = []
    for span, multiple, size in zip(box, multiples, shape, strict=True):
        if surely_divides(multiple, span.extent):
            found.append(span)
            continue
        extent = canonical(ceil_div(span.extent, multiple) * multiple)
        if not surely_at_most(span.start + extent, size, bounds):
            refuse("compute_at", func, f"multiples of {multiple} may stick out of '{name}'")
        found.append(Span(span.start, extent, whole=extent == size))
    return tuple(found)


def _without(producers: list[Stmt]) -> Callable[[Stmt], Stmt]:
    return lambda stmt: Block(()) if any(stmt is p for p in producers) else stmt


def _check_place(func: Func, alloc: Alloc, target: For) -> tuple[Stmt, list[Stmt]]:
    """The statement that holds the loop, and those that compute the buffer."""
    buffer, loop = alloc.buffer.name, target.var
    parts = sequence(alloc.body)
    home = next((s for s in parts if loop in loops(s)), None)
    producers = [s for s in parts if buffer in written(s)]
    if home is None:
        refuse("compute_at", func, f"loop '{loop}' is outside of the life of '{buffer}'")
    place = next(i for i, s in enumerate(parts) if s is home)
    if not producers or any(s is p for s in parts[place:] for p in producers):
        refuse("compute_at", func, f"loop '{loop}' does not follow the nests of '{buffer}'")
    check_outside_vectors("compute_at", func, loop)
    if any(touched_by_invoke(s, buffer) for s in parts):
        refuse("compute_at", func, f"an instruction uses '{buffer}'")
    others = sum(_reads(s, buffer) for s in parts if not any(s is p for p in producers))
    if others > _reads(target.body, buffer):
        refuse("compute_at", func, f"'{buffer}' is read outside of loop '{loop}'")
    if not others:
        refuse("compute_at", func, f"'{buffer}' is not read in loop '{loop}'")
    _check_producers(func, buffer, producers)
    return home, producers


def _check_producers(func: Func, buffer: str, producers: list[Stmt]) -> None:
    for p in producers:
        if written(p) - allocs(p).keys() != {buffer}:
            refuse("compute_at", func, f"a nest writes '{buffer}' together with other buffers")
        own = sum(own_reads(site.store) for site in sites(p))
        if _reads(p, buffer) > own:
            refuse("compute_at", func, f"an element of '{buffer}' depends on other elements")


def _reads(stmt: Stmt, buffer: str) -> int:
    if buffer not in touches(stmt):
        return 0
    return sum(x.buffer == buffer for e in exprs(stmt) for x in loads(e))


def _restricted(func: Func, nest: Stmt, buffer: str, box: tuple[Span, ...], bounds: Bounds) -> Stmt:
    """The nest that computes only the box, into a buffer of the size of the box."""
    nest = told_apart(nest)
    places = [s for s in sites(nest) if s.store.buffer == buffer]
    anchors = {id(s.store): Anchor(s.store.index, s.around) for s in places}
    plan = plan_restriction(nest, list(anchors.values()), box)
    plan = Plan({v: walked for v, walked in plan.loops.items() if _is_own(nest, v, buffer)})

    def guard(stmt: Stmt) -> Stmt:
        if not isinstance(stmt, Store) or stmt.buffer != buffer:
            return stmt
        covered = plan.dims(anchors[id(stmt)])
        tests: list[Expr] = []
        for d, (part, span) in enumerate(zip(stmt.index, box, strict=True)):
            if d not in covered and not span.whole:
                tests += within(part, span.start, span.extent, bounds)
        return guarded(tests, stmt)

    nest, now = restrict(
        rewrite(nest, guard), plan, box, bounds, lambda why: refuse("compute_at", func, why)
    )
    nest = redirect(nest, buffer, buffer, lambda index: rebase(index, box, now))
    return simplify_stmt(nest, now)


def _is_own(nest: Stmt, loop: str, buffer: str) -> bool:
    """Whether a loop writes nothing else that is read outside of it, and so may run over less."""
    body = loops(nest)[loop].body
    return written(body) - allocs(body).keys() <= {buffer}


def _check_sources(
    func: Func, result: Func, alloc: Alloc, producers: list[Stmt], home: Stmt, target: For
) -> None:
    """Refuse when something the nests read may be overwritten before they run now.

    A buffer written in the loop itself (the output of an in-place pair) is fine where different
    iterations use different elements of it, and the iteration writes after the computation.
    """
    same = aliases(func)

    def memory(names: set[str]) -> set[str]:
        return {same.get(name, name) for name in names}

    parts = sequence(alloc.body)
    at = {id(s): i for i, s in enumerate(parts)}
    for p in producers:
        sources = memory(read(p) - {alloc.buffer.name})
        between = [s for s in parts[at[id(p)] + 1 : at[id(home)]] if s not in producers]
        spoiled = sources & memory({b for s in between for b in written(s)})
        if spoiled:
            name = min(spoiled)
            refuse("compute_at", func, f"'{name}', which '{alloc.buffer.name}' needs, is written")
        for name in sorted(sources & memory(written(home))):
            _check_disjoint(func, result, alloc.buffer.name, target.var, name, same)


def _check_disjoint(
    func: Func, result: Func, buffer: str, loop: str, name: str, same: dict[str, str]
) -> None:
    around = loops_around(result, loop)
    now = around[-1]
    names = tuple(f.var for f in around if f.var in _inside(func, buffer))
    top = next(f for f in around if f.var == names[0])
    before = sequence(now.body)
    before = before[: next(i for i, s in enumerate(before) if buffer in written(s))]
    early = any(same.get(b, b) == name for s in before for b in written(s))
    if early or why_not_disjoint(result, top, names, name):
        refuse("compute_at", func, f"'{name}', which '{buffer}' needs, is written in the loop")


def _inside(func: Func, buffer: str) -> set[str]:
    """The loops inside the old place of the buffer: only their iterations are new to it."""
    return set(loops(find_intermediate("compute_at", func, buffer).body))
