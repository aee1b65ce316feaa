"""prefetch_parts: ask for what a later iteration reads in parts that lie apart."""

from __future__ import annotations

from math import prod

from dlc.schedule.asking import (
    LEVELS,
    LINE_BYTES,
    ask_for_lines,
    asked_type,
    one_piece,
    only_place,
    runs_of,
    shares,
)
from dlc.schedule.edit import loops_around
from dlc.schedule.loop import Func, loops
from dlc.schedule.primitive import check_fresh, find_loop, primitive, refuse
from dlc.te.expr import Const, Var
from dlc.te.transform import free_vars, substitute
from dlc.te.types import const_size

MOST_ASKS = 2  # times the lines of a part, rounding aside


@primitive
def prefetch_parts(
    func: Func, loop: str, part: str, inside: str, buffer: str, ahead: int, level: int
) -> Func:
    """Ask for what a later iteration of `loop` reads, each iteration of `part` for its own.

    It is the iteration that is `ahead` of the one that asks. `part` is `loop` or a loop in it: what
    one iteration of it reads has to be one piece of memory, of a line or more; those of different
    iterations may lie anywhere. Each iteration of `inside`, which is `part` or a loop in it, asks
    for an equal part of the piece, for the cache of a `level`; where there are more iterations than
    lines, neighbours ask for the same one. What lies behind the end of the buffer is asked for too,
    which does no harm.

    Before:
        def f(A: f32[4, 8, 16], *, B: f32[8]):
            for i in range(8):
                B[i] = 0.0
                for j in range(4):
                    for k in range(16):
                        B[i] += A[j, i, k]

    Call:
        prefetch_parts("j", "j", "j", "A", 2, 1)

    After:
        def f(A: f32[4, 8, 16], *, B: f32[8]):
            for i in range(8):
                B[i] = 0.0
                for j in range(4):
                    for j_r1 in unroll(1):
                        invoke("prefetch_f32_l1", A[j + 2, i, j_r1 * 16])
                    for k in range(16):
                        B[i] += A[j, i, k]

    Raises:
        ScheduleError: no such loops or level; `part` is not in `loop`, or `inside` not in `part`;
            the buffer is no input of a type that is asked for, that `part` reads at one place, in
            one piece; another iteration of `loop` reads the same; `ahead` is no later one; how
            often `part` runs `inside` is not known, or it never does, or more than twice as often
            as there are lines; a name is taken.
    """
    if level not in LEVELS:
        refuse("prefetch_parts", func, f"there is no level {level}")
    if ahead < 1:
        refuse("prefetch_parts", func, f"{ahead} iterations ahead are not later")
    target = find_loop("prefetch_parts", func, part)
    find_loop("prefetch_parts", func, loop)
    if loop not in [f.var for f in loops_around(func, part)]:
        refuse("prefetch_parts", func, f"loop '{part}' is not in '{loop}'")
    runs = runs_of("prefetch_parts", func, part, inside) if inside != part else ()
    type_ = asked_type("prefetch_parts", func, buffer, of_known_sizes=False)
    line = f"{inside}_r{level}"
    check_fresh("prefetch_parts", func, (line,))

    place = only_place("prefetch_parts", func, target, buffer)
    if all(loop not in free_vars(i) for i in place):
        refuse("prefetch_parts", func, f"all iterations of '{loop}' read the same of '{buffer}'")
    inner = {f.var: f.extent for f in loops(target.body).values()}
    region, count = one_piece(place, type_, inner)
    if count * type_.dtype.size_bytes < LINE_BYTES:
        reason = f"'{part}' does not read lines of '{buffer}' in one piece"
        refuse("prefetch_parts", func, reason)
    in_line = LINE_BYTES // type_.dtype.size_bytes
    lines = -(-count // in_line)
    if any(not isinstance(f.extent, Const) for f in runs):
        refuse("prefetch_parts", func, f"how often '{part}' runs '{inside}' is not known")
    asks = prod(const_size(f.extent) for f in runs)
    if runs and asks > MOST_ASKS * lines:
        refuse("prefetch_parts", func, f"'{inside}' runs {asks} times, for {lines} lines")
    first, share = shares(runs, lines)
    region = [substitute(i, {loop: Var(loop) + ahead}) for i in region]
    region[-1] = region[-1] + (first + Var(line)) * in_line
    return ask_for_lines(func, inside, line, share, (buffer, type_, region), level)
