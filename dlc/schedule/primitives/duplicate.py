"""duplicate: give one consumer a copy of an intermediate of its own."""

from __future__ import annotations

from dataclasses import replace

from dlc.schedule.edit import (
    aliases,
    insert_before,
    read,
    redirect,
    renamed,
    sequence,
    swap_alloc,
    touched_by_invoke,
    written,
)
from dlc.schedule.loop import Alloc, Block, For, Func, Stmt, allocs, block, loops, rewrite
from dlc.schedule.primitive import check_fresh, find_intermediate, find_loop, primitive, refuse


@primitive
def duplicate(func: Func, buffer: str, loop: str, suffix: str) -> Func:
    """Compute an intermediate a second time for the reads inside one loop.

    Parts of a result that are tiled differently (see `partition`) can then each have their own
    accumulator. The copy's buffer and loops get `suffix` behind their names.

    Before:
        def f(A: f32[9], *, B: f32[9]):
            t = alloc(f32[9], "local")
            for i in range(9):
                t[i] = A[i] * 2.0
            for j in range(8):
                B[j] = t[j]
            for j_t in range(1):
                B[j_t + 8] = t[j_t + 8]

    Call:
        duplicate("t", "j_t", "_t")

    After:
        def f(A: f32[9], *, B: f32[9]):
            t = alloc(f32[9], "local")
            for i in range(9):
                t[i] = A[i] * 2.0
            for j in range(8):
                B[j] = t[j]
            t_t = alloc(f32[9], "local")
            for i_t in range(9):
                t_t[i_t] = A[i_t] * 2.0
            for j_t in range(1):
                B[j_t + 8] = t_t[j_t + 8]

    Raises:
        ScheduleError: no such intermediate or loop; the loop does not follow the nests that
            compute the buffer; they write other buffers too; an instruction uses the buffer; what
            it is computed from is overwritten in between; a name with the suffix is taken.
    """
    alloc = find_intermediate("duplicate", func, buffer)
    find_loop("duplicate", func, loop)
    parts = sequence(alloc.body)
    home = next((i for i, s in enumerate(parts) if loop in loops(s)), None)
    producers = [i for i, s in enumerate(parts) if buffer in written(s)]
    if home is None or not producers or producers[-1] >= home:
        refuse("duplicate", func, f"loop '{loop}' does not follow the nests of '{buffer}'")
    if any(touched_by_invoke(s, buffer) for s in parts):
        refuse("duplicate", func, f"an instruction uses '{buffer}'")
    if any(written(parts[i]) != {buffer} for i in producers):
        refuse("duplicate", func, f"a nest writes '{buffer}' together with other buffers")
    _check_sources(func, parts, producers, home)
    nests = block(*(parts[i] for i in producers))
    copies = {v: v + suffix for v in loops(nests)}
    buffers = {b: b + suffix for b in (buffer, *allocs(nests))}
    check_fresh("duplicate", func, (*copies.values(), *buffers.values()))

    name = buffers[buffer]
    copy = renamed(nests, copies, buffers)
    twin = replace(alloc.buffer, name=name)

    def place(rest: Stmt) -> Stmt:
        first, following = _head(rest)
        first = _redirect_loop(first, loop, buffer, name)
        return Alloc(twin, alloc.scope, block(copy, first, *following))

    return swap_alloc(
        func, buffer, lambda a: replace(a, body=insert_before(a.body, parts[home], place))
    )


def _head(rest: Stmt) -> tuple[Stmt, tuple[Stmt, ...]]:
    return (rest.stmts[0], rest.stmts[1:]) if isinstance(rest, Block) else (rest, ())


def _redirect_loop(stmt: Stmt, loop: str, buffer: str, name: str) -> Stmt:
    def visit(node: Stmt) -> Stmt:
        if isinstance(node, For) and node.var == loop:
            return redirect(node, buffer, name, lambda index: index)
        return node

    return rewrite(stmt, visit)


def _check_sources(func: Func, parts: list[Stmt], producers: list[int], home: int) -> None:
    same = aliases(func)
    sources = {same.get(b, b) for i in producers for b in read(parts[i])}
    for i in range(producers[0], home):
        changed = {same.get(b, b) for b in written(parts[i])} if i not in producers else set()
        if spoiled := sources & changed:
            refuse("duplicate", func, f"'{min(spoiled)}', which it needs, is written in between")
