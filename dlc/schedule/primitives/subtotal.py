"""subtotal: accumulate what one iteration adds in a buffer of its own first."""

from __future__ import annotations

from dataclasses import replace

from dlc.schedule.dependence import why_not_disjoint
from dlc.schedule.edit import (
    Site,
    aliases,
    redirect,
    renamed,
    sites,
    swap_loop,
    touched_by_invoke,
)
from dlc.schedule.loop import (
    Alloc,
    Buffer,
    For,
    Func,
    If,
    Scope,
    Store,
    accumulation,
    block,
    dtypes,
    exprs,
    put_inside,
)
from dlc.schedule.primitive import check_fresh, find_serial, primitive, refuse
from dlc.schedule.primitives.cache_read import shape_of
from dlc.te.expr import Binary, Load
from dlc.te.tensor import identity
from dlc.te.transform import free_vars, loads
from dlc.te.types import TensorType


@primitive
def subtotal(func: Func, buffer: str, loop: str, name: str) -> Func:
    """Accumulate what one iteration of a loop adds to a buffer in a new one, then add that.

    Sums of sums round less than one long sum does. The new buffer has the shape of the old one;
    the loops that fill and add it are called after those that choose the element, with its name
    (and `_init`) behind. This reorders the reduction, which changes the rounding of a float result.

    Before:
        def sum(A: f32[6, 4, 8], *, s: f32[8]):
            for i in range(8):
                s[i] = 0.0
            for ko in range(6):
                for ki in range(4):
                    for j in range(8):
                        s[j] += A[ko, ki, j]

    Call:
        subtotal("s", "ko", "part")

    After:
        def sum(A: f32[6, 4, 8], *, s: f32[8]):
            for i in range(8):
                s[i] = 0.0
            for ko in range(6):
                part = alloc(f32[8], "local")
                for j_part_init in range(8):
                    part[j_part_init] = 0.0
                for ki in range(4):
                    for j in range(8):
                        part[j] += A[ko, ki, j]
                for j_part in range(8):
                    s[j_part] += part[j_part]

    Raises:
        ScheduleError: no such loop; it is no longer serial; it holds something else than one
            accumulation of the buffer; the number of its elements depends on data or on a summand;
            iterations share elements; a name is taken.
    """
    target = find_serial("subtotal", func, loop)
    site = _accumulation(func, buffer, target)
    chosen = {v for part in site.store.index for v in free_vars(part)}
    around = _elements(func, site, chosen)
    element = put_inside(around, site.store)
    names = tuple(s.var for s in around if isinstance(s, For))
    if reason := why_not_disjoint(func, element, names, buffer):
        refuse("subtotal", func, reason)
    ends = {v: f"{v}_{name}" for v in names}
    starts = {v: f"{v}_{name}_init" for v in names}
    check_fresh("subtotal", func, (name, *ends.values(), *starts.values()))

    op, dtype = accumulation(site.store), dtypes(func)[buffer]
    assert op is not None
    part = Buffer(name, TensorType(shape_of(func, buffer), dtype))
    index = site.store.index
    start = put_inside(around, Store(name, index, identity(op, dtype)))
    total = Binary(op, Load(buffer, index, dtype), Load(name, index, dtype))
    end = put_inside(around, Store(buffer, index, total))
    inner = redirect(target.body, buffer, name, lambda index: index)
    body = block(renamed(start, starts, {}), inner, renamed(end, ends, {}))
    return swap_loop(func, loop, lambda f: replace(f, body=Alloc(part, Scope.LOCAL, body)))


def _accumulation(func: Func, buffer: str, target: For) -> Site:
    """The one store inside of the loop."""
    found = list(sites(target.body))
    single = len(found) == 1 and not touched_by_invoke(target, buffer)
    if not single or found[0].store.buffer != buffer or accumulation(found[0].store) is None:
        reason = f"loop '{target.var}' holds something else than one accumulation of '{buffer}'"
        refuse("subtotal", func, reason)
    same = aliases(func)
    reads = [x for e in exprs(target) for x in loads(e) if same.get(x.buffer, x.buffer) == buffer]
    if len(reads) > 1:
        refuse("subtotal", func, f"'{buffer}' is read inside of its own accumulation")
    return found[0]


def _elements(func: Func, site: Site, chosen: set[str]) -> list[For | If]:
    """The loops that choose the element, and guards around it; not those that choose a summand."""
    summands = {f.var for f in site.loops} - chosen
    kept: list[For | If] = []
    for outer in site.around:
        if isinstance(outer, For):
            mine, decides = outer.var in chosen, outer.extent
        else:
            decides = outer.cond
            mine = bool(free_vars(decides) & chosen) or not free_vars(decides) & summands
        if mine and (free_vars(decides) & summands or loads(decides)):
            refuse("subtotal", func, "which elements there are depends on a summand or on data")
        if mine:
            kept.append(outer)
    return kept
