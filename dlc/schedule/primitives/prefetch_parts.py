"""prefetch_parts: ask for what the next iteration reads in parts that lie apart."""

from __future__ import annotations

from dlc.schedule.asking import (
    LEVELS,
    LINE_BYTES,
    ask_for_lines,
    asked_type,
    one_piece,
    only_place,
    runs_of,
)
from dlc.schedule.loop import Func, loops
from dlc.schedule.primitive import check_fresh, primitive, refuse
from dlc.te.expr import Var
from dlc.te.transform import free_vars, substitute


@primitive
def prefetch_parts(func: Func, loop: str, inside: str, buffer: str, level: int) -> Func:
    """Ask for what the next iteration of `loop` reads, each iteration of `inside` for its own part.

    What one iteration of `inside`, a loop in `loop`, reads has to be one piece of memory, of a line
    or more; those of different iterations may lie anywhere. It is asked for the cache of a `level`.
    What lies behind the end of the buffer is asked for too, which does no harm.

    Before:
        def f(A: f32[4, 8, 16], *, B: f32[8]):
            for i in range(8):
                B[i] = 0.0
                for j in range(4):
                    for k in range(16):
                        B[i] += A[j, i, k]

    Call:
        prefetch_parts("i", "j", "A", 1)

    After:
        def f(A: f32[4, 8, 16], *, B: f32[8]):
            for i in range(8):
                B[i] = 0.0
                for j in range(4):
                    for j_r1 in unroll(1):
                        invoke("prefetch_f32_l1", A[j, i + 1, j_r1 * 16])
                    for k in range(16):
                        B[i] += A[j, i, k]

    Raises:
        ScheduleError: no such loops or level; `inside` is not in `loop`; the buffer is no input of
            known sizes, and of a type that is asked for, that `inside` reads at one place, in one
            piece; another iteration of `loop` reads the same; how often `inside` runs is not known,
            or it never does; a name is taken.
    """
    if level not in LEVELS:
        refuse("prefetch_parts", func, f"there is no level {level}")
    target = runs_of("prefetch_parts", func, loop, inside)[-1]
    type_ = asked_type("prefetch_parts", func, buffer)
    line = f"{inside}_r{level}"
    check_fresh("prefetch_parts", func, (line,))

    place = only_place("prefetch_parts", func, target, buffer)
    if all(loop not in free_vars(i) for i in place):
        refuse("prefetch_parts", func, f"all iterations of '{loop}' read the same of '{buffer}'")
    inner = {f.var: f.extent for f in loops(target.body).values()}
    region, count = one_piece(place, type_, inner)
    if count * type_.dtype.size_bytes < LINE_BYTES:
        reason = f"'{inside}' does not read lines of '{buffer}' in one piece"
        refuse("prefetch_parts", func, reason)
    in_line = LINE_BYTES // type_.dtype.size_bytes
    region = [substitute(i, {loop: Var(loop) + 1}) for i in region]
    region[-1] = region[-1] + Var(line) * in_line
    return ask_for_lines(func, inside, line, -(-count // in_line), (buffer, type_, region), level)
