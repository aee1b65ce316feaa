"""cache_write: compute into a small buffer, and copy it out at the end of an iteration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dlc.schedule.dependence import bounds_in, why_not_disjoint
from dlc.schedule.edit import (
    Site,
    aliases,
    life,
    loops_around,
    own_reads,
    redirect,
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
    LoopKind,
    Scope,
    Stmt,
    Store,
    allocs,
    block,
    dtypes,
    exprs,
    loops,
)
from dlc.schedule.primitive import (
    check_fresh,
    check_outside_vectors,
    check_scope,
    find_loop,
    primitive,
    refuse,
)
from dlc.schedule.primitives.cache_read import shape_of
from dlc.schedule.region import Span, rebase, spans
from dlc.schedule.text import print_stmt
from dlc.te.expr import Expr, Load, Var
from dlc.te.simplify import Bounds, surely_less
from dlc.te.transform import free_vars, loads, substitute
from dlc.te.types import TensorType


@primitive
def cache_write(func: Func, buffer: str, loop: str, name: str, scope: str) -> Func:
    """Let one iteration of a loop write a box of a buffer into a new one, copied out at its end.

    Where the iteration goes on with elements that were stored before it, the box is copied in at
    its start. The loops of the copies are called after those that write, with the name of the
    new buffer (and `_in`) behind.

    Before:
        def f(A: f32[4, 8, 9], *, B: f32[4, 8]):
            for i in range(4):
                for j in range(8):
                    B[i, j] = 0.0
                    for k in range(9):
                        B[i, j] += A[i, j, k]

    Call:
        cache_write("B", "i", "acc", "register")

    After:
        def f(A: f32[4, 8, 9], *, B: f32[4, 8]):
            for i in range(4):
                acc = alloc(f32[1, 8], "register")
                for j in range(8):
                    acc[0, j] = 0.0
                    for k in range(9):
                        acc[0, j] += A[i, j, k]
                for j_acc in range(8):
                    B[i, j_acc] = acc[0, j_acc]

    Raises:
        ScheduleError: no such loop or scope; the loop does not write the buffer, reads an element
            otherwise than to update it, or reads the input that shares its memory; the loop is
            inside a vector loop; a guard of a store depends on data; an instruction uses the
            buffer; a name is taken; a register buffer would have no constant shape.
    """
    target = find_loop("cache_write", func, loop)
    _check(func, buffer, target, scope)
    found = [s for s in sites(target.body) if s.store.buffer == buffer]
    bounds = bounds_in(func.body)
    indices = [s.store.index for s in found]
    box = spans(indices, shape_of(func, buffer), bounds_in(target.body), bounds)
    cache = Buffer(name, TensorType(tuple(s.extent for s in box), dtypes(func)[buffer]))
    if Scope(scope).is_fixed and not cache.type.is_static:
        refuse("cache_write", func, f"'{name}' would have the shape {cache.type}, not a constant")

    first = [s for s in found if not own_reads(s.store)]
    copy_in = len(first) < len(found) and not _starts_here(func, target, buffer, first)
    kept = found if copy_in else first
    skeletons = _distinct([_Skeleton(s, all_guards=not copy_in) for s in kept])
    outs = [s.copy(cache, buffer, box, bounds, f"_{name}", out=True) for s in skeletons]
    ins = [s.copy(cache, buffer, box, bounds, f"_{name}_in", out=False) for s in skeletons]
    ins = ins if copy_in else []
    check_fresh("cache_write", func, (name, *loops(block(*outs, *ins))))

    def wrap(body: Stmt) -> Stmt:
        if isinstance(body, If) and not loads(body.cond):
            return replace(body, body=wrap(body.body))
        inner = redirect(body, buffer, name, lambda index: rebase(index, box, bounds))
        return Alloc(cache, Scope(scope), block(*ins, inner, *outs))

    return swap_loop(func, loop, lambda f: replace(f, body=wrap(f.body)))


def _check(func: Func, buffer: str, target: For, scope: str) -> None:
    loop, body = target.var, target.body
    check_scope("cache_write", func, scope)
    if touched_by_invoke(body, buffer):
        refuse("cache_write", func, f"an instruction uses '{buffer}'")
    stores = [s for s in sites(body) if s.store.buffer == buffer]
    if not stores or buffer in allocs(body):
        refuse("cache_write", func, f"loop '{loop}' does not write '{buffer}'")
    own = sum(own_reads(s.store) for s in stores)
    reads = [x.buffer for e in exprs(body) for x in loads(e)]
    if reads.count(buffer) > own:
        refuse("cache_write", func, f"loop '{loop}' reads '{buffer}' other than to update it")
    partner = {out: source for source, out in aliases(func).items()}.get(buffer)
    if partner is not None and partner in reads:
        refuse("cache_write", func, f"loop '{loop}' reads '{partner}', the memory of '{buffer}'")
    if any(isinstance(g, If) and loads(g.cond) for s in stores for g in s.around):
        refuse("cache_write", func, f"a guard of '{buffer}' depends on data")
    check_outside_vectors("cache_write", func, loop)


def _starts_here(func: Func, target: For, buffer: str, first: list[Site]) -> bool:
    """Whether every element that an iteration updates was first stored in the same iteration."""
    inside = [s for s in sites(target.body) if s.store.buffer == buffer]
    everywhere = [s for s in sites(func.body) if s.store.buffer == buffer]
    shared = buffer in aliases(func).values()
    if not first or shared or len(everywhere) > len(inside) or touched_by_invoke(func.body, buffer):
        return False
    around = [f for f in loops_around(func, target.var) if f.var in loops(life(func, buffer))]
    names = tuple(f.var for f in around)
    return not why_not_disjoint(func, around[0], names, buffer)


class _Skeleton:
    """The loops and guards that a store needs to reach the elements it writes."""

    def __init__(self, site: Site, *, all_guards: bool) -> None:
        self.index = site.store.index
        needed = {v for part in self.index for v in free_vars(part)}
        guards = [s for s in site.around if isinstance(s, If)]
        inner = {f.var for f in site.loops}
        for guard in guards:
            reads = free_vars(guard.cond)
            if all_guards or reads & needed or not reads & inner:
                needed |= reads
        self.around = [
            s
            for s in site.around
            if (free_vars(s.cond) <= needed | _outer(s, inner) if isinstance(s, If) else False)
            or (isinstance(s, For) and (s.var in needed or not _may_drop(s, all_guards)))
        ]

    def key(self) -> str:
        """Equal for skeletons that differ only in the names of loops."""
        names = {s.var: f"_{i}" for i, s in enumerate(self.around) if isinstance(s, For)}
        return print_stmt(self.build(names, lambda index: Store("_", index, Var("_"))))

    def build(self, names: dict[str, str], store: Callable[[tuple[Expr, ...]], Stmt]) -> Stmt:
        """The nest with other names for its loops around another store."""
        env: dict[str, Expr] = {old: Var(new) for old, new in names.items()}
        stmt = store(tuple(substitute(part, env) for part in self.index))
        for outer in reversed(self.around):
            match outer:
                case If(cond, _):
                    stmt = If(substitute(cond, env), stmt)
                case For(var, extent, _, _):
                    stmt = For(names[var], extent, LoopKind.SERIAL, stmt)
        return stmt

    def copy(
        self,
        cache: Buffer,
        buffer: str,
        box: tuple[Span, ...],
        bounds: Bounds,
        suffix: str,
        *,
        out: bool,
    ) -> Stmt:
        """Copy the elements from the cache to the buffer, or the other way round."""
        names = {s.var: s.var + suffix for s in self.around if isinstance(s, For)}
        back: dict[str, Expr] = {new: Var(old) for old, new in names.items()}
        again: dict[str, Expr] = {old: Var(new) for old, new in names.items()}

        def store(index: tuple[Expr, ...]) -> Stmt:
            old = tuple(substitute(part, back) for part in index)
            small = tuple(substitute(part, again) for part in rebase(old, box, bounds))
            if out:
                return Store(buffer, index, Load(cache.name, small, cache.type.dtype))
            return Store(cache.name, small, Load(buffer, index, cache.type.dtype))

        return self.build(names, store)


def _outer(guard: If, inner: set[str]) -> set[str]:
    """What a guard reads that no loop of the nest binds."""
    return set(free_vars(guard.cond)) - inner


def _may_drop(loop: For, all_guards: bool) -> bool:
    """Without a copy in, a loop that may not run must not be dropped: it would copy nothing."""
    return not all_guards or surely_less(0, loop.extent)


def _distinct(skeletons: list[_Skeleton]) -> list[_Skeleton]:
    return list({s.key(): s for s in reversed(skeletons)}.values())[::-1]
