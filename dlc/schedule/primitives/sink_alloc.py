"""sink_alloc: let the life of a buffer begin where it is first used."""

from __future__ import annotations

from dataclasses import replace

from dlc.schedule.edit import read, swap_alloc, written
from dlc.schedule.loop import Alloc, Block, Func, Stmt, block
from dlc.schedule.primitive import find_intermediate, primitive, refuse


@primitive
def sink_alloc(func: Func, buffer: str) -> Func:
    """Move the statements before the first use of a buffer out of its allocation.

    Before:
        def f(A: f32[4], *, B: f32[4], C: f32[4]):
            t = alloc(f32[4], "local")
            for i in range(4):
                B[i] = A[i]
            for j in range(4):
                t[j] = A[j]
            for k in range(4):
                C[k] = t[3 - k]

    Call:
        sink_alloc("t")

    After:
        def f(A: f32[4], *, B: f32[4], C: f32[4]):
            for i in range(4):
                B[i] = A[i]
            t = alloc(f32[4], "local")
            for j in range(4):
                t[j] = A[j]
            for k in range(4):
                C[k] = t[3 - k]

    Raises:
        ScheduleError: no such intermediate; its first statement uses it, or nothing does.
    """
    body = find_intermediate("sink_alloc", func, buffer).body
    stmts = body.stmts if isinstance(body, Block) else (body,)
    first = next((n for n, s in enumerate(stmts) if buffer in read(s) | written(s)), None)
    if first is None:
        refuse("sink_alloc", func, f"nothing uses '{buffer}'")
    if first == 0:
        refuse("sink_alloc", func, f"the first statement uses '{buffer}'")

    def change(alloc: Alloc) -> Stmt:
        return block(*stmts[:first], replace(alloc, body=block(*stmts[first:])))

    return swap_alloc(func, buffer, change)
