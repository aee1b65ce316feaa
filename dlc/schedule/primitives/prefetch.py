"""prefetch: ask for memory that a later iteration reads, while this one computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from dlc.schedule.dependence import accesses
from dlc.schedule.edit import loops_around, swap_loop
from dlc.schedule.instruction import PREFETCH
from dlc.schedule.loop import For, Func, If, Invoke, LoopKind, Stmt, block, loops
from dlc.schedule.primitive import check_fresh, find_loop, primitive, refuse
from dlc.schedule.simplify import hoist_stmt
from dlc.te.affine import coefficients
from dlc.te.expr import ZERO, Const, Expr, Var, index
from dlc.te.simplify import canonical
from dlc.te.transform import free_vars, substitute
from dlc.te.types import TensorType, const_size

LINE_BYTES = 64
LEVELS = (1, 2)  # of caches
ROUNDING = 1.1  # how many times the lines that are read may be asked for


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
    runs = _runs(func, loop, inside)
    target = runs[-1]
    type_ = _type(func, buffer)
    if not 0 <= dim < type_.rank:
        refuse("prefetch", func, f"'{buffer}' has no dimension {dim}")
    line = f"{inside}_l{level}"
    check_fresh("prefetch", func, (line,))

    reader = target if _reads(target, buffer) else find_loop("prefetch", func, loop)
    inner = {f.var: f.extent for f in (*runs, *loops(reader.body).values())}
    known = [f for f in runs if isinstance(f.extent, Const)]
    region, count = _piece(_place(func, reader, buffer), type_, inner)
    if count * type_.dtype.size_bytes < LINE_BYTES:
        refuse("prefetch", func, f"'{loop}' does not read lines of '{buffer}' in one piece")
    in_line = LINE_BYTES // type_.dtype.size_bytes
    first, share = _shares(known, -(-count // in_line))
    region[-1] = region[-1] + (first + Var(line)) * in_line
    region[dim] = region[dim] + distance
    name = PREFETCH[type_.dtype, level].name
    ask = Invoke(name, ((buffer, tuple(canonical(e) for e in region)),))
    lines = For(line, index(share), LoopKind.UNROLL, ask)
    return swap_loop(func, inside, lambda f: replace(f, body=_before(lines, f.body)))


def _runs(func: Func, loop: str, inside: str) -> tuple[For, ...]:
    """The loops inside of `loop` that run `inside`, itself last."""
    find_loop("prefetch", func, loop)
    target = find_loop("prefetch", func, inside)
    around = loops_around(func, inside)
    names = [f.var for f in around]
    if loop not in names[:-1]:
        refuse("prefetch", func, f"loop '{inside}' is not in '{loop}'")
    runs = around[names.index(loop) + 1 :]
    if not isinstance(target.extent, Const):
        refuse("prefetch", func, f"how often '{inside}' runs is not known")
    if any(f.extent == ZERO for f in runs):
        refuse("prefetch", func, f"'{inside}' never runs")
    return runs


def _before(lines: Stmt, body: Stmt) -> Stmt:
    """A body that asks first, under the guard around all of it: that may then leave the loops."""
    guarded = hoist_stmt(body)
    if isinstance(guarded, If):
        return replace(guarded, body=block(lines, guarded.body))
    return block(lines, body)


def _shares(runs: Sequence[For], count: int) -> tuple[Expr, int]:
    """The first of the lines that one run of nested loops asks for, and how many those are.

    As many of the outer loops as rounding up allows share the lines equally; in each of their runs,
    the loops inside them spread its part.
    """
    extents = [const_size(f.extent) for f in runs]

    def part(outer: int) -> int:
        return -(-count // prod(extents[:outer]))

    outer = len(runs)
    while part(outer) * prod(extents[:outer]) > count * ROUNDING:
        outer -= 1
    each, inner = part(outer), prod(extents[outer:])
    return _number(runs[:outer]) * each + _number(runs[outer:]) * each // inner, -(-each // inner)


def _number(runs: Sequence[For]) -> Expr:
    """How many iterations of nested loops came before one."""
    number: Expr = ZERO
    for f in runs:
        number = number * f.extent + Var(f.var)
    return number


def _type(func: Func, buffer: str) -> TensorType:
    """The type of an input that can be asked for."""
    for param in func.inputs:
        if param.name == buffer and param.type.is_static and (param.type.dtype, 1) in PREFETCH:
            return param.type
    reason = f"there is no input '{buffer}' of known sizes, and of a type that is asked for"
    refuse("prefetch", func, reason)


def _reads(loop: For, buffer: str) -> set[tuple[Expr, ...]]:
    """The places where a loop reads a buffer."""
    return {a.index for a in accesses(loop.body) if a.buffer == buffer}


def _place(func: Func, loop: For, buffer: str) -> tuple[Expr, ...]:
    """The one place where a loop reads a buffer."""
    found = _reads(loop, buffer)
    if len(found) != 1:
        refuse("prefetch", func, f"'{loop.var}' reads '{buffer}' at {len(found)} places")
    return found.pop()


def _piece(
    at: tuple[Expr, ...], type_: TensorType, inner: Mapping[str, Expr]
) -> tuple[list[Expr], int]:
    """Where what loops read begins, and its elements; 0 of them where it is in parts."""
    shape = type_.static_shape
    begin, count = list(at), 1
    for d in reversed(range(len(shape))):
        extent = _extent(at[d], shape[d], inner)
        begin[d] = substitute(at[d], dict.fromkeys(inner, ZERO)) if extent < shape[d] else ZERO
        if extent > 1:
            count = count * extent if prod(shape[d + 1 :]) == count else 0
    return begin, count


def _extent(position: Expr, size: int, inner: Mapping[str, Expr]) -> int:
    """How many positions in a dimension loops read, at most."""
    if not free_vars(position) & set(inner):
        return 1
    factors = coefficients(position)
    if factors is None:
        return size
    reach = [(factors.get(v, 0), n) for v, n in inner.items()]
    if any(c < 0 or (c and not isinstance(n, Const)) for c, n in reach):
        return size
    return min(size, 1 + sum(c * (const_size(n) - 1) for c, n in reach if c))
