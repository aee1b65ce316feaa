"""store_in: keep an intermediate where the result that is computed from it will be."""

from __future__ import annotations

from dlc.schedule.edit import (
    Site,
    read,
    redirect,
    sequence,
    sites,
    swap_alloc,
    touched_by_invoke,
    written,
)
from dlc.schedule.loop import Alloc, Func, If, accumulation
from dlc.schedule.primitive import find_intermediate, primitive, refuse
from dlc.te.expr import ZERO, Const, Expr, Var
from dlc.te.simplify import surely_equal
from dlc.te.transform import free_vars, loads, substitute


@primitive
def store_in(func: Func, buffer: str, result: str) -> Func:
    """Store the elements of an intermediate as those of the result that each of them becomes.

    Before:
        def f(A: f32[4, 8], *, B: f32[4, 8]):
            for i in range(4):
                t = alloc(f32[1, 8], "local")
                for j in range(8):
                    t[0, j] = A[i, j] * 2.0
                for k in range(8):
                    B[i, k] = 1.0 / t[0, k]

    Call:
        store_in("t", "B")

    After:
        def f(A: f32[4, 8], *, B: f32[4, 8]):
            for i in range(4):
                for j in range(8):
                    B[i, j] = A[i, j] * 2.0
                for k in range(8):
                    B[i, k] = 1.0 / B[i, k]

    Raises:
        ScheduleError: no such intermediate, or it is no memory; no such output, or one of another
            type, that shares the memory of an input, or that is read; the last statement that uses
            the intermediate does not make just one element of the result of each of its elements,
            without a guard, or would look like one that adds to the result; another statement
            writes the result; an instruction uses one of both.
    """
    made = find_intermediate("store_in", func, buffer)
    output = next((b for b in func.outputs if b.name == result), None)
    if output is None:
        refuse("store_in", func, f"there is no output '{result}'")
    if made.scope.is_fixed:
        refuse("store_in", func, f"'{buffer}' is no memory")
    if output.type.dtype is not made.buffer.type.dtype:
        refuse("store_in", func, f"'{buffer}' and '{result}' differ in type")
    if any(result == out for out, _ in func.in_place):
        refuse("store_in", func, f"'{result}' shares the memory of an input")
    if any(touched_by_invoke(func.body, name) for name in (buffer, result)):
        refuse("store_in", func, f"an instruction uses '{buffer}' or '{result}'")
    places = _places(func, made, result)

    def at(place: tuple[Expr, ...]) -> tuple[Expr, ...]:
        env = {v: i for v, i in zip(places[0], place, strict=True) if v}
        return tuple(substitute(i, env) for i in places[1])

    moved = swap_alloc(func, buffer, lambda a: redirect(a.body, buffer, result, at))
    if any(s.store.buffer == result and accumulation(s.store) for s in sites(moved.body)):
        refuse("store_in", func, f"'{result}' would be accumulated")
    return moved


def _places(func: Func, made: Alloc, result: str) -> tuple[tuple[str, ...], tuple[Expr, ...]]:
    """Where an element of the result is, by variables that stand for the index of its source."""
    buffer = made.buffer.name
    if result in read(func.body):
        refuse("store_in", func, f"'{result}' is read")
    writing = [s for s in sites(func.body) if s.store.buffer == result]
    users = [s for s in sequence(made.body) if buffer in read(s) | written(s)]
    last = list(sites(users[-1])) if users else []
    if len(writing) != 1 or len(last) != 1 or last[0].store.buffer != result:
        refuse("store_in", func, f"the last use of '{buffer}' is not all that writes '{result}'")
    if reason := _why_not_one_to_one(made, last[0]):
        refuse("store_in", func, reason)
    (index,) = {x.index for x in loads(last[0].store.value) if x.buffer == buffer}
    names = tuple(i.name if isinstance(i, Var) else "" for i in index)
    return names, last[0].store.index


def _why_not_one_to_one(made: Alloc, site: Site) -> str:
    """Why a store does not make one element of each element of a buffer, or ""."""
    buffer = made.buffer.name
    places = {x.index for x in loads(site.store.value) if x.buffer == buffer}
    if len(places) != 1:
        return f"an element is made of several of '{buffer}'"
    (index,) = places
    if any(isinstance(s, If) for s in site.around):
        return f"not all elements of '{buffer}' are used"
    extents = {f.var: f.extent for f in site.loops}
    for place, size in zip(index, made.buffer.type.shape, strict=True):
        whole = isinstance(place, Var) and surely_equal(extents.pop(place.name, ZERO), size)
        if not whole and not (place == ZERO and surely_equal(size, Const(1, size.dtype))):
            return f"'{place}' does not walk along '{buffer}'"
    if extents:
        return f"an element of '{buffer}' becomes several"
    inner = {f.var for f in site.loops}
    own = [i for i in site.store.index if free_vars(i) & inner]
    if sorted(str(i) for i in own) != sorted(inner):
        return f"elements of the result do not lie as those of '{buffer}' do"
    return ""
