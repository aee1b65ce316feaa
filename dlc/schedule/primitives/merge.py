"""merge: run two loops that follow each other as one."""

from __future__ import annotations

from dataclasses import replace

from dlc.schedule.dependence import why_not_independent
from dlc.schedule.edit import neighbours, renamed, swap_loop
from dlc.schedule.loop import Block, Func, Stmt, block, rewrite
from dlc.schedule.primitive import find_serial, primitive, refuse
from dlc.te.simplify import surely_equal


@primitive
def merge(func: Func, loop: str, other: str) -> Func:
    """Let each iteration of a loop go on with that of the loop right behind it.

    Before:
        def f(A: f32[4], *, B: f32[4], C: f32[4]):
            for i in range(4):
                B[i] = A[i] * 2.0
            for j in range(4):
                C[j] = B[j] + 1.0

    Call:
        merge("i", "j")

    After:
        def f(A: f32[4], *, B: f32[4], C: f32[4]):
            for i in range(4):
                B[i] = A[i] * 2.0
                C[i] = B[i] + 1.0

    Raises:
        ScheduleError: no such loop; one is no longer serial; the other one does not stand right
            behind it, or runs another number of times; different iterations of both may use one
            element of a buffer, which one of them writes.
    """
    first = find_serial("merge", func, loop)
    second = find_serial("merge", func, other)
    home = neighbours(func.body, first)
    at = next((n for n, s in enumerate(home) if s is first), len(home))
    if at + 1 >= len(home) or home[at + 1] is not second:
        refuse("merge", func, f"loop '{other}' does not stand right behind loop '{loop}'")
    if not surely_equal(first.extent, second.extent):
        reason = f"loop '{loop}' runs {first.extent} times, loop '{other}' {second.extent}"
        refuse("merge", func, reason)
    rest = (*home[: at + 1], *home[at + 2 :])

    def visit(stmt: Stmt) -> Stmt:
        return block(*rest) if isinstance(stmt, Block) and stmt.stmts == home else stmt

    both = block(first.body, renamed(second.body, {other: loop}, {}))
    without = replace(func, body=rewrite(func.body, visit))
    merged = swap_loop(without, loop, lambda f: replace(f, body=both))
    if reason := why_not_independent(merged, loop):
        refuse("merge", func, reason)
    return merged
