"""hand_on: copy what a loop has written, for what follows in the same iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dlc.schedule.dependence import bounds_in
from dlc.schedule.edit import (
    aliases,
    read,
    redirect,
    swap_loop,
    touched_by_invoke,
    written,
)
from dlc.schedule.loop import (
    Alloc,
    Block,
    Buffer,
    For,
    Func,
    Scope,
    Stmt,
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
from dlc.schedule.primitives.cache_read import copy_nest, shape_of
from dlc.schedule.region import rebase, spans
from dlc.te.expr import ONE
from dlc.te.transform import loads
from dlc.te.types import TensorType


@primitive
def hand_on(func: Func, buffer: str, loop: str, name: str, scope: str) -> Func:
    """Copy a buffer behind the last statement of an iteration that writes it; the rest reads that.

    So other threads may read than those that wrote, and in another order. The loops of the copy
    are called after the new buffer and the dimension.

    Before:
        def f(A: f32[4, 8], *, B: f32[4, 8]):
            for i in range(4):
                t = alloc(f32[8], "local")
                for j in range(8):
                    t[j] = A[i, j] * 2.0
                for k in range(8):
                    B[i, k] = t[7 - k]

    Call:
        hand_on("t", "i", "u", "shared")

    After:
        def f(A: f32[4, 8], *, B: f32[4, 8]):
            for i in range(4):
                t = alloc(f32[8], "local")
                for j in range(8):
                    t[j] = A[i, j] * 2.0
                u = alloc(f32[8], "shared")
                for u_0 in range(8):
                    u[u_0] = t[u_0]
                for k in range(8):
                    B[i, k] = u[7 - k]

    Raises:
        ScheduleError: no such loop or scope; no statement right inside of the loop writes the
            buffer, or none behind that reads it; an instruction uses it; the loop is inside a
            vector loop; a name is taken; a register buffer would have no constant shape.
    """
    target = find_loop("hand_on", func, loop)
    made, rest = _parts(target.body, buffer, aliases(func))
    _check(func, buffer, target, scope, made, rest)
    bounds = bounds_in(func.body)
    after = block(*rest)
    indices = [x.index for e in exprs(after) for x in loads(e) if x.buffer == buffer]
    whole = shape_of(func, buffer)
    box = spans(indices, whole, bounds_in(after), bounds)
    cache = Buffer(name, TensorType(tuple(s.extent for s in box), dtypes(func)[buffer]))
    if Scope(scope).is_fixed and not cache.type.is_static:
        refuse("hand_on", func, f"'{name}' would have the shape {cache.type}, not a constant")
    axes = [d for d, s in enumerate(box) if s.extent != ONE]
    check_fresh("hand_on", func, (name, *(f"{name}_{d}" for d in axes)))
    reads = redirect(after, buffer, name, lambda index: rebase(index, box, bounds))
    copy = copy_nest(cache, buffer, box, whole, bounds)
    handed = Alloc(cache, Scope(scope), block(copy, reads))

    def visit(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Alloc):
            return replace(stmt, body=visit(stmt.body))
        return block(*made, handed)

    return swap_loop(func, loop, lambda f: replace(f, body=visit(f.body)))


def _check(
    func: Func, buffer: str, target: For, scope: str, made: Sequence[Stmt], rest: Sequence[Stmt]
) -> None:
    check_scope("hand_on", func, scope)
    if touched_by_invoke(target, buffer):
        refuse("hand_on", func, f"an instruction uses '{buffer}'")
    if not made:
        refuse(
            "hand_on", func, f"no statement right inside of loop '{target.var}' writes '{buffer}'"
        )
    if all(buffer not in read(s) for s in rest):
        refuse("hand_on", func, f"nothing behind what writes '{buffer}' reads it")
    check_outside_vectors("hand_on", func, target.var)


def _parts(
    body: Stmt, buffer: str, same: Mapping[str, str]
) -> tuple[tuple[Stmt, ...], tuple[Stmt, ...]]:
    """What runs up to the last statement that writes a buffer's memory, and what runs behind it."""
    while isinstance(body, Alloc):
        body = body.body
    stmts = body.stmts if isinstance(body, Block) else (body,)
    memory = same.get(buffer, buffer)
    writes = [n for n, s in enumerate(stmts) if memory in {same.get(b, b) for b in written(s)}]
    end = writes[-1] + 1 if writes else 0
    return stmts[:end], stmts[end:]
