"""prefetch: ask for memory that a later iteration reads, while this one computes."""

from __future__ import annotations

from dlc.schedule.asking import (
    LEVELS,
    LINE_BYTES,
    ask_for_lines,
    asked_type,
    one_piece,
    only_place,
    places,
    runs_of,
    shares,
)
from dlc.schedule.loop import Func, loops
from dlc.schedule.primitive import check_fresh, find_loop, primitive, refuse
from dlc.te.expr import Const, Var


@primitive
def prefetch(
    func: Func, loop: str, inside: str, buffer: str, dim: int, distance: int, level: int
) -> Func:
    """Ask for what an iteration of `loop` reads, moved on by `distance` in one dimension.

    What is read has to be one piece of memory, of a line or more. Each iteration of `inside`, a
    loop in it that reads the buffer or leaves that to others of `loop`, asks for an equal part, for
    the cache of a `level`, in the order in which it lies there. Where there are more iterations
    than lines of memory, neighbours ask for the same one; those of loops in between that run nobody
    knows how often ask for all of it each time. What lies behind the end of the buffer is asked for
    too, which does no harm.

    Before:
        def f(A: bf16[9, 4, 16, 32], *, B: f32[9]):
            for i in range(9):
                B[i] = 0.0
                for j in range(4):
                    for k in range(16):
                        for l in range(32):
                            B[i] += f32(A[i, j, k, l])

    Call:
        prefetch("i", "j", "A", 0, 2, 1)

    After:
        def f(A: bf16[9, 4, 16, 32], *, B: f32[9]):
            for i in range(9):
                B[i] = 0.0
                for j in range(4):
                    for j_l1 in unroll(16):
                        invoke("prefetch_bf16_l1", A[i + 2, 0, 0, j * 512 + j_l1 * 32])
                    for k in range(16):
                        for l in range(32):
                            B[i] += f32(A[i, j, k, l])

    Raises:
        ScheduleError: no such loops or level; `inside` is not in `loop`; the buffer is no input of
            known sizes, and of a type that is asked for, that `inside`, or else `loop`, reads at
            one place, in one piece; how often `inside` runs is not known, or it never does; a name
            is taken.
    """
    if level not in LEVELS:
        refuse("prefetch", func, f"there is no level {level}")
    runs = runs_of("prefetch", func, loop, inside)
    target = runs[-1]
    type_ = asked_type("prefetch", func, buffer)
    if not 0 <= dim < type_.rank:
        refuse("prefetch", func, f"'{buffer}' has no dimension {dim}")
    line = f"{inside}_l{level}"
    check_fresh("prefetch", func, (line,))

    reader = target if places(target, buffer) else find_loop("prefetch", func, loop)
    inner = {f.var: f.extent for f in (*runs, *loops(reader.body).values())}
    known = [f for f in runs if isinstance(f.extent, Const)]
    region, count = one_piece(only_place("prefetch", func, reader, buffer), type_, inner)
    if count * type_.dtype.size_bytes < LINE_BYTES:
        refuse("prefetch", func, f"'{loop}' does not read lines of '{buffer}' in one piece")
    in_line = LINE_BYTES // type_.dtype.size_bytes
    first, share = shares(known, -(-count // in_line))
    region[-1] = region[-1] + (first + Var(line)) * in_line
    region[dim] = region[dim] + distance
    return ask_for_lines(func, inside, line, share, (buffer, type_, region), level)
