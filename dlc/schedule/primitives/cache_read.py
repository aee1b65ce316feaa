"""cache_read: copy what a loop reads into a small buffer."""

from __future__ import annotations

from dataclasses import replace

from dlc.schedule.dependence import bounds_in
from dlc.schedule.edit import (
    aliases,
    insert_at_read,
    redirect,
    swap_loop,
    touched_by_invoke,
    written,
)
from dlc.schedule.loop import (
    Alloc,
    Buffer,
    For,
    Func,
    LoopKind,
    Scope,
    Stmt,
    Store,
    allocs,
    block,
    dtypes,
    exprs,
)
from dlc.schedule.primitive import (
    check_fresh,
    check_outside_vectors,
    check_scope,
    find_loop,
    primitive,
    refuse,
)
from dlc.schedule.region import Span, rebase, spans
from dlc.schedule.restrict import within
from dlc.schedule.simplify import guarded
from dlc.te.affine import loop_bounds
from dlc.te.expr import ONE, ZERO, Expr, Load, Var
from dlc.te.simplify import Bounds, canonical
from dlc.te.transform import loads
from dlc.te.types import TensorType


@primitive
def cache_read(func: Func, buffer: str, loop: str, name: str, scope: str) -> Func:
    """Copy the box of a buffer that one iteration of a loop reads, and read the copy instead.

    The loops of the copy are called after the new buffer and the dimension.

    Before:
        def f(A: f32[4, 10], *, B: f32[4, 8]):
            for i in range(4):
                for j in range(8):
                    B[i, j] = A[i, j] + A[i, j + 2]

    Call:
        cache_read("A", "i", "row", "local")

    After:
        def f(A: f32[4, 10], *, B: f32[4, 8]):
            for i in range(4):
                row = alloc(f32[1, 10], "local")
                for row_1 in range(10):
                    row[0, row_1] = A[i, row_1]
                for j in range(8):
                    B[i, j] = row[0, j] + row[0, j + 2]

    Raises:
        ScheduleError: no such loop or scope; the loop does not read the buffer, or writes it, or
            is inside a vector loop; an instruction uses it; a name is taken; a register buffer
            would have no constant shape.
    """
    target = find_loop("cache_read", func, loop)
    indices = [x.index for e in exprs(target.body) for x in loads(e) if x.buffer == buffer]
    _check(func, buffer, target, indices, scope)
    bounds = bounds_in(func.body)
    whole = shape_of(func, buffer)
    box = spans(indices, whole, bounds_in(target.body), bounds)
    shape = tuple(s.extent for s in box)
    cache = Buffer(name, TensorType(shape, dtypes(func)[buffer]))
    if Scope(scope).is_fixed and not cache.type.is_static:
        refuse("cache_read", func, f"'{name}' would have the shape {cache.type}, not a constant")
    axes = [d for d, s in enumerate(box) if s.extent != ONE]
    check_fresh("cache_read", func, (name, *(f"{name}_{d}" for d in axes)))

    copy = copy_nest(cache, buffer, box, whole, bounds)
    body = redirect(target.body, buffer, name, lambda index: rebase(index, box, bounds))

    def place(rest: Stmt) -> Stmt:
        return Alloc(cache, Scope(scope), block(copy, rest))

    return swap_loop(func, loop, lambda f: replace(f, body=insert_at_read(body, name, place)))


def _check(
    func: Func, buffer: str, target: For, indices: list[tuple[Expr, ...]], scope: str
) -> None:
    check_scope("cache_read", func, scope)
    if touched_by_invoke(target, buffer):
        refuse("cache_read", func, f"an instruction uses '{buffer}'")
    if buffer in allocs(target.body):
        refuse("cache_read", func, f"'{buffer}' is allocated inside of loop '{target.var}'")
    if not indices:
        refuse("cache_read", func, f"loop '{target.var}' does not read '{buffer}'")
    same = aliases(func)
    if same.get(buffer, buffer) in {same.get(b, b) for b in written(target.body)}:
        refuse("cache_read", func, f"loop '{target.var}' writes '{buffer}'")
    check_outside_vectors("cache_read", func, target.var)


def copy_nest(
    cache: Buffer, buffer: str, box: tuple[Span, ...], shape: tuple[Expr, ...], bounds: Bounds
) -> Stmt:
    """Fill `cache` with the box of `buffer`, as far as the buffer reaches."""
    index = tuple(ZERO if s.extent == ONE else Var(f"{cache.name}_{d}") for d, s in enumerate(box))
    axes = {v.name: s.extent for v, s in zip(index, box, strict=True) if isinstance(v, Var)}
    now = {**bounds, **loop_bounds(axes)}
    source = tuple(canonical(s.start + i) for s, i in zip(box, index, strict=True))
    tests = [
        test
        for s, at, size in zip(box, source, shape, strict=True)
        if not s.whole
        for test in within(at, ZERO, size, now)
    ]
    stmt = guarded(tests, Store(cache.name, index, Load(buffer, source, cache.type.dtype)))
    for var, extent in reversed(axes.items()):
        stmt = For(var, extent, LoopKind.SERIAL, stmt)
    return stmt


def shape_of(func: Func, buffer: str) -> tuple[Expr, ...]:
    """The sizes of a parameter or an intermediate."""
    found = {b.name: b.type for b in func.params}
    found |= {n: a.buffer.type for n, a in allocs(func.body).items()}
    return found[buffer].shape
