"""compute_inline: compute an intermediate where it is read."""

from __future__ import annotations

from dlc.schedule.dependence import bounds_in
from dlc.schedule.edit import (
    Site,
    aliases,
    map_sequence,
    sequence,
    sites,
    swap_alloc,
    touched_by_invoke,
    written,
)
from dlc.schedule.loop import Alloc, Block, For, Func, If, Stmt, Store, block, exprs, map_exprs
from dlc.schedule.primitive import find_intermediate, primitive, refuse
from dlc.te.expr import Const, Expr, Load, Var
from dlc.te.simplify import simplify, surely_equal
from dlc.te.transform import free_vars, loads, rewrite, substitute


@primitive
def compute_inline(func: Func, buffer: str) -> Func:
    """Replace every read of an intermediate by the formula of the element.

    Before:
        def f(n: size, A: f32[n], *, B: f32[n]):
            t = alloc(f32[n], "local")
            for i in range(n):
                t[i] = A[i] * 2.0
            for j in range(n):
                B[j] = t[j] + 1.0

    Call:
        compute_inline("t")

    After:
        def f(n: size, A: f32[n], *, B: f32[n]):
            for j in range(n):
                B[j] = A[j] * 2.0 + 1.0

    Raises:
        ScheduleError: no such intermediate; it is not written by one nest that stores each element
            once; an instruction reads it; what it is computed from is written later.
    """
    target = find_intermediate("compute_inline", func, buffer)
    nest, site = _producer(func, target)
    env = _axes(func, target, site)
    parts = sequence(target.body)
    later = parts[next(i for i, s in enumerate(parts) if s is nest) + 1 :]
    if any(touched_by_invoke(s, buffer) for s in later):
        refuse("compute_inline", func, f"an instruction reads '{buffer}'")

    def formula(node: Expr) -> Expr:
        if isinstance(node, Load) and node.buffer == buffer:
            return substitute(site.store.value, {v: node.index[d] for v, d in env.items()})
        return node

    def change(stmt: Stmt) -> Stmt:
        if stmt is nest:
            return Block(())
        return map_exprs(stmt, lambda e: rewrite(e, formula))

    result = swap_alloc(func, buffer, lambda a: map_sequence(a.body, change))
    _check_sources(func, site.store, later, [change(s) for s in later])
    return result


def _producer(func: Func, target: Alloc) -> tuple[Stmt, Site]:
    """The nest that is all that writes the buffer."""
    buffer = target.buffer.name
    nests = [s for s in sequence(target.body) if buffer in written(s)]
    found = [s for s in sites(target.body) if s.store.buffer == buffer]
    if len(nests) != 1 or len(found) != 1 or written(nests[0]) != {buffer}:
        refuse(
            "compute_inline", func, f"'{buffer}' is not written by one store of a nest of its own"
        )
    if any(load.buffer == buffer for load in loads(found[0].store.value)):
        refuse("compute_inline", func, f"'{buffer}' is computed from itself, as a reduction is")
    if any(isinstance(s, If) for s in found[0].around):
        refuse("compute_inline", func, f"a guard may leave elements of '{buffer}' undefined")
    return nests[0], found[0]


def _axes(func: Func, target: Alloc, site: Site) -> dict[str, int]:
    """Which dimension each loop of the nest walks along."""
    env: dict[str, int] = {}
    buffer = target.buffer.name
    extents = {f.var: f.extent for f in site.loops}
    bounds = bounds_in(func.body)
    for d, (part, size) in enumerate(zip(site.store.index, target.buffer.type.shape, strict=True)):
        match simplify(part, bounds):
            case Var(name, _) if name in extents and name not in env:
                if surely_equal(extents[name], size):
                    env[name] = d
                    continue
            case Const(0, _) if surely_equal(size, 1):
                continue
        refuse("compute_inline", func, f"the nest does not walk along dimension {d} of '{buffer}'")
    if (free_vars(site.store.value) & set(extents)) - set(env):
        refuse("compute_inline", func, f"an element of '{buffer}' is stored several times")
    return env


def _check_sources(func: Func, store: Store, before: list[Stmt], after: list[Stmt]) -> None:
    """Refuse when something may be overwritten between the old place of a read and the new one.

    The one case where that is fine: an element is read in the statement that overwrites it.
    """
    same = aliases(func)
    sources = {same.get(load.buffer, load.buffer) for load in loads(store.value)}
    spoiled = sources & {same.get(b, b) for s in before for b in written(s)}
    everything = block(*after)
    for name in sorted(spoiled):
        stores = [s for s in sites(everything) if same.get(s.store.buffer, s.store.buffer) == name]
        mine = stores[0].store if len(stores) == 1 and _once(stores[0]) else None

        def reads(expr: Expr, name: str = name) -> list[Load]:
            return [x for x in loads(expr) if same.get(x.buffer, x.buffer) == name]

        touched = [x for e in exprs(everything) for x in reads(e)]
        own = [] if mine is None else [x for x in reads(mine.value) if x.index == mine.index]
        if mine is None or len(own) < len(touched):
            refuse("compute_inline", func, f"'{name}', which it reads, is written later")


def _once(site: Site) -> bool:
    """Whether a store runs once for each element: every loop is an index of its own."""
    names = [i.name for i in site.store.index if isinstance(i, Var)]
    return all(f.var in names for f in site.around if isinstance(f, For))
