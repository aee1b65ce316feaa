"""set_scope: where a buffer lives."""

from __future__ import annotations

from dataclasses import replace

from dlc.schedule.edit import swap_alloc
from dlc.schedule.loop import Func, Scope
from dlc.schedule.primitive import (
    check_scope,
    find_intermediate,
    primitive,
    refuse,
)


@primitive
def set_scope(func: Func, buffer: str, scope: str) -> Func:
    """Move an intermediate to another kind of storage.

    Whether every index of a register buffer is known after unrolling is checked when code is
    generated, because loops may still be unrolled after this step.

    Before:
        def twice(A: f32[4], *, B: f32[4]):
            t = alloc(f32[4], "local")
            for i in unroll(4):
                t[i] = A[i]
            for j in unroll(4):
                B[j] = t[j] + t[j]

    Call:
        set_scope("t", "register")

    After:
        def twice(A: f32[4], *, B: f32[4]):
            t = alloc(f32[4], "register")
            for i in unroll(4):
                t[i] = A[i]
            for j in unroll(4):
                B[j] = t[j] + t[j]

    Raises:
        ScheduleError: no such intermediate or scope; the shape is not constant.
    """
    target = find_intermediate("set_scope", func, buffer)
    check_scope("set_scope", func, scope)
    if Scope(scope).is_fixed and not target.buffer.type.is_static:
        refuse("set_scope", func, f"'{buffer}' has the shape {target.buffer.type}, not a constant")
    return swap_alloc(func, buffer, lambda a: replace(a, scope=Scope(scope)))
