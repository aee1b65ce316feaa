"""prefetch: ask for memory that a later iteration reads, while this one computes."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from dlc.schedule.dependence import accesses
from dlc.schedule.edit import loops_around, swap_loop
from dlc.schedule.instruction import PREFETCH
from dlc.schedule.loop import For, Func, Invoke, LoopKind, block, loops
from dlc.schedule.primitive import check_fresh, find_loop, primitive, refuse
from dlc.te.expr import ZERO, Const, Expr, Var, index
from dlc.te.simplify import canonical
from dlc.te.transform import free_vars

LINE_BYTES = 64


@primitive
def prefetch(func: Func, loop: str, inside: str, buffer: str, dim: int, distance: int) -> Func:
    """Ask for what an iteration of `loop` reads, moved on by `distance` in one dimension.

    Each iteration of `inside`, a loop in it, asks for an equal part. What lies behind the end of
    the buffer is asked for too, which does no harm.

    Before:
        def f(A: bf16[9, 2, 4, 16, 32], *, B: f32[9, 2]):
            for i in range(9):
                for n in range(2):
                    B[i, n] = 0.0
                    for j in range(4):
                        for k in range(16):
                            for l in range(32):
                                B[i, n] += f32(A[i, n, j, k, l])

    Call:
        prefetch("n", "j", "A", 0, 2)

    After:
        def f(A: bf16[9, 2, 4, 16, 32], *, B: f32[9, 2]):
            for i in range(9):
                for n in range(2):
                    B[i, n] = 0.0
                    for j in range(4):
                        for j_line in unroll(16):
                            invoke("prefetch", A[i + 2, n, j + j_line // 16, j_line % 16, 0])
                        for k in range(16):
                            for l in range(32):
                                B[i, n] += f32(A[i, n, j, k, l])

    Raises:
        ScheduleError: no such loops; `inside` is not in `loop`; the buffer is no input of bf16 of
            known sizes that `loop` reads at one place, in whole lines of memory; how often
            `inside` runs is not known; a name is taken.
    """
    target = find_loop("prefetch", func, loop)
    find_loop("prefetch", func, inside)
    names = [f.var for f in loops_around(func, inside)]
    if loop not in names[:-1]:
        refuse("prefetch", func, f"loop '{inside}' is not in '{loop}'")
    runs = loops_around(func, inside)[names.index(loop) + 1 :]
    counts = [int(f.extent.value) for f in runs if isinstance(f.extent, Const)]
    if len(counts) < len(runs):
        refuse("prefetch", func, f"how often '{inside}' runs is not known")
    shape, size = _shape(func, buffer)
    at = _place(func, target, buffer)
    if not 0 <= dim < len(shape):
        refuse("prefetch", func, f"'{buffer}' has no dimension {dim}")
    rank = len(shape)
    lead = next((d for d in range(rank) if prod(shape[d:]) * size == LINE_BYTES), 0)
    varying = frozenset(loops(target.body))
    whole = [d for d in range(rank) if free_vars(at[d]) & varying]
    if not lead or any(d < lead and d <= dim for d in whole) or not whole:
        refuse("prefetch", func, f"'{loop}' does not read lines of '{buffer}' behind dim {dim}")
    check_fresh("prefetch", func, (f"{inside}_line",))

    walked = [d for d in whole if d < lead]
    share = -(-prod(shape[d] for d in walked) // prod(counts))
    number: Expr = ZERO
    for f in runs:
        number = number * f.extent + Var(f.var)
    number = canonical(number * share + Var(f"{inside}_line"))
    region = [ZERO if d >= lead else e for d, e in enumerate(at)]
    for position, d in enumerate(walked):
        step = prod(shape[e] for e in walked[position + 1 :])
        region[d] = number // step % shape[d] if position else number // step
    region[dim] = canonical(region[dim] + distance)
    ask = Invoke(PREFETCH.name, ((buffer, tuple(canonical(e) for e in region)),))
    lines = For(f"{inside}_line", index(share), LoopKind.UNROLL, ask)
    return swap_loop(func, inside, lambda f: replace(f, body=block(lines, f.body)))


def _shape(func: Func, buffer: str) -> tuple[tuple[int, ...], int]:
    """The sizes of an input, and the bytes of an element."""
    for param in func.inputs:
        dtype = PREFETCH.func.params[0].type.dtype
        if param.name == buffer and param.type.is_static and param.type.dtype is dtype:
            return param.type.static_shape, dtype.size_bytes
    refuse("prefetch", func, f"there is no input '{buffer}' of bf16 and known sizes")


def _place(func: Func, loop: For, buffer: str) -> tuple[Expr, ...]:
    """The one place where a loop reads a buffer."""
    found = {a.index for a in accesses(loop.body) if a.buffer == buffer}
    if len(found) != 1:
        refuse("prefetch", func, f"'{loop.var}' reads '{buffer}' at {len(found)} places")
    return found.pop()
