"""bind: run the iterations of a loop on the blocks of a GPU, or on the threads of a block."""

from __future__ import annotations

from dataclasses import replace

from dlc.schedule.dependence import why_not_independent
from dlc.schedule.edit import loops_around, swap_loop, written
from dlc.schedule.loop import For, Func, LoopKind, Scope, allocs
from dlc.schedule.primitive import find_serial, primitive, refuse
from dlc.te.expr import Const

_KINDS = (LoopKind.BLOCK, LoopKind.THREAD, LoopKind.WARP)
_OWN = (Scope.REGISTER, Scope.SHARED)  # of one block


@primitive
def bind(func: Func, loop: str, kind: str) -> Func:
    """Let the iterations of a loop run on blocks ("block") or on threads or warps of one.

    Block loops stand around everything of a kernel. Thread loops that follow each other in a block
    are phases: all threads end one before any begins the next. Nested thread loops are digits of
    the number of the thread, outermost first. An iteration of a warp loop runs on 32 threads, which
    share its instructions (`tensorize`) or the thread loops inside of it.

    Before:
        def add(A: f32[4, 64], *, B: f32[4, 64]):
            for i in range(4):
                for j in range(64):
                    B[i, j] = A[i, j] + 1.0

    Call:
        bind("j", "thread")

    After:
        def add(A: f32[4, 64], *, B: f32[4, 64]):
            for i in range(4):
                for j in thread(64):
                    B[i, j] = A[i, j] + 1.0

    Raises:
        ScheduleError: no such kind or loop; it is no longer serial; a block loop would be inside a
            loop of another kind, or a thread loop inside a vector loop or of no constant extent;
            a register or shared buffer would belong to several blocks; an iteration may read what
            another one writes.
    """
    if kind not in _KINDS:
        refuse("bind", func, f"there is no kind '{kind}'", f"known: {', '.join(_KINDS)}")
    target = find_serial("bind", func, loop)
    around = loops_around(func, loop)[:-1]
    if kind == LoopKind.BLOCK:
        _check_block(func, target, around)
    else:
        _check_thread(func, target, around)
    if reason := why_not_independent(func, loop):
        refuse("bind", func, reason)
    return swap_loop(func, loop, lambda f: replace(f, kind=LoopKind(kind)))


def _check_block(func: Func, target: For, around: tuple[For, ...]) -> None:
    for outer in around:
        if outer.kind is not LoopKind.BLOCK:
            refuse("bind", func, f"loop '{target.var}' is inside the {outer.kind} '{outer.var}'")
    inside = allocs(target.body)
    for name, alloc in allocs(func.body).items():
        if alloc.scope in _OWN and name in written(target.body) and name not in inside:
            refuse("bind", func, f"the {alloc.scope} buffer '{name}' would belong to many blocks")


def _check_thread(func: Func, target: For, around: tuple[For, ...]) -> None:
    if not isinstance(target.extent, Const):
        reason = f"loop '{target.var}' runs {target.extent} times, which is not a constant"
        refuse("bind", func, reason, "split it by the number of threads")
    for outer in around:
        if outer.kind in (LoopKind.VECTOR, LoopKind.PARALLEL):
            reason = f"loop '{target.var}' is inside the {outer.kind} loop '{outer.var}'"
            refuse("bind", func, reason)
