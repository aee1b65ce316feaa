"""defer: run a loop after the statement that follows it."""

from __future__ import annotations

from dlc.schedule.apart import why_not_unordered
from dlc.schedule.edit import neighbours, read, written
from dlc.schedule.loop import Block, Func, Stmt, rewrite
from dlc.schedule.primitive import find_loop, primitive, refuse


@primitive
def defer(func: Func, loop: str) -> Func:
    """Let a loop and the statement right behind it take each other's places.

    Before:
        def f(A: f32[4], *, B: f32[4], C: f32[4]):
            for i in range(4):
                B[i] = 0.0
            for j in range(4):
                C[j] = A[j]

    Call:
        defer("i")

    After:
        def f(A: f32[4], *, B: f32[4], C: f32[4]):
            for j in range(4):
                C[j] = A[j]
            for i in range(4):
                B[i] = 0.0

    Raises:
        ScheduleError: no such loop; nothing follows it; both may use one element of a buffer, which
            one of them writes.
    """
    target = find_loop("defer", func, loop)
    home = neighbours(func.body, target)
    at = next((n for n, s in enumerate(home) if s is target), len(home))
    if at + 1 >= len(home):
        refuse("defer", func, f"nothing follows loop '{loop}'")
    other = home[at + 1]
    shared = (read(target) | written(target)) & (read(other) | written(other))
    reason = why_not_unordered(func, target, other) if shared else ""
    if reason:
        refuse("defer", func, reason)
    swapped = (*home[:at], other, target, *home[at + 2 :])

    def visit(stmt: Stmt) -> Stmt:
        return Block(swapped) if isinstance(stmt, Block) and stmt.stmts == home else stmt

    return Func(
        func.name, func.sizes, func.inputs, func.outputs, rewrite(func.body, visit), func.in_place
    )
