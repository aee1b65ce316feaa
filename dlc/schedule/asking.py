"""What primitives that ask for memory ahead have in common: whose memory, where, before what.

`who` is the primitive that refuses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from dlc.schedule.dependence import accesses
from dlc.schedule.edit import loops_around, swap_loop
from dlc.schedule.instruction import PREFETCH
from dlc.schedule.loop import For, Func, If, Invoke, LoopKind, Stmt, block
from dlc.schedule.primitive import find_loop, refuse
from dlc.schedule.simplify import hoist_stmt
from dlc.te.affine import coefficients
from dlc.te.expr import ZERO, Const, Expr, Var, index
from dlc.te.simplify import canonical
from dlc.te.transform import free_vars, substitute
from dlc.te.types import TensorType, const_size

LINE_BYTES = 64
LEVELS = (1, 2)  # of caches
OPEN = 1 << 40  # stands for a size that is only known at run time: more than loops of a tile read
ROUNDING = 1.1  # how many times the lines that are read may be asked for


def runs_of(who: str, func: Func, loop: str, inside: str) -> tuple[For, ...]:
    """The loops inside of `loop` that run `inside`, itself last."""
    find_loop(who, func, loop)
    target = find_loop(who, func, inside)
    around = loops_around(func, inside)
    names = [f.var for f in around]
    if loop not in names[:-1]:
        refuse(who, func, f"loop '{inside}' is not in '{loop}'")
    runs = around[names.index(loop) + 1 :]
    if not isinstance(target.extent, Const):
        refuse(who, func, f"how often '{inside}' runs is not known")
    if any(f.extent == ZERO for f in runs):
        refuse(who, func, f"'{inside}' never runs")
    return runs


def _before(lines: Stmt, body: Stmt) -> Stmt:
    """A body that asks first, under the guard around all of it: that may then leave the loops."""
    guarded = hoist_stmt(body)
    if isinstance(guarded, If):
        return replace(guarded, body=block(lines, guarded.body))
    return block(lines, body)


def ask_for_lines(
    func: Func,
    inside: str,
    line: str,
    count: int,
    memory: tuple[str, TensorType, list[Expr]],
    level: int,
) -> Func:
    """Let a loop ask first, for so many lines of memory from a place on: (buffer, type, place).

    `line` numbers them; the place may depend on it.
    """
    buffer, type_, place = memory
    name = PREFETCH[type_.dtype, level].name
    ask = Invoke(name, ((buffer, tuple(canonical(i) for i in place)),))
    lines = For(line, index(count), LoopKind.UNROLL, ask)
    return swap_loop(func, inside, lambda f: replace(f, body=_before(lines, f.body)))


def asked_type(who: str, func: Func, buffer: str, *, of_known_sizes: bool = True) -> TensorType:
    """The type of an input that can be asked for."""
    for param in func.inputs:
        is_known = param.type.is_static or not of_known_sizes
        if param.name == buffer and is_known and (param.type.dtype, 1) in PREFETCH:
            return param.type
    sizes = " of known sizes, and" if of_known_sizes else ""
    refuse(who, func, f"there is no input '{buffer}'{sizes} of a type that is asked for")


def places(loop: For, buffer: str) -> set[tuple[Expr, ...]]:
    """The places where a loop reads a buffer."""
    return {a.index for a in accesses(loop.body) if a.buffer == buffer}


def only_place(who: str, func: Func, loop: For, buffer: str) -> tuple[Expr, ...]:
    """The one place where a loop reads a buffer."""
    found = places(loop, buffer)
    if len(found) != 1:
        refuse(who, func, f"'{loop.var}' reads '{buffer}' at {len(found)} places")
    return found.pop()


def one_piece(
    at: tuple[Expr, ...], type_: TensorType, inner: Mapping[str, Expr]
) -> tuple[list[Expr], int]:
    """Where what loops read begins, and its elements; 0 of them where it is in parts.

    So it is where it may be all of an open dimension.
    """
    shape = [const_size(n) if isinstance(n, Const) else OPEN for n in type_.shape]
    begin, count = list(at), 1
    for d in reversed(range(len(shape))):
        extent = _extent(at[d], shape[d], inner)
        begin[d] = substitute(at[d], dict.fromkeys(inner, ZERO)) if extent < shape[d] else ZERO
        if extent > 1:
            whole = prod(shape[d + 1 :]) == count and extent < OPEN
            count = count * extent if whole else 0
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


def shares(runs: Sequence[For], count: int) -> tuple[Expr, int]:
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
