"""Bring a loop function into the form the emitter takes.

Before:
    for k in range(12, unroll=4):
        for a in vectorize(2):
            for b in vectorize(8):
                C[k, a, b] = 0.0

After:
    for k_by4 in range(3):
        for k_of4 in unroll(4):
            for a in unroll(2):
                for b in vectorize(8):
                    C[k_by4 * 4 + k_of4, a, b] = 0.0
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

from dlc.codegen.llvm.instructions import expand
from dlc.codegen.llvm.tiles import EMITTERS
from dlc.core.target import Target
from dlc.core.types import INDEX
from dlc.schedule.loop import (
    Alloc,
    Block,
    For,
    If,
    Invoke,
    LoopKind,
    Scope,
    Stmt,
    Store,
    accumulation,
    block,
    rewrite,
    substitute,
    walk,
)
from dlc.schedule.simplify import hoist_stmt
from dlc.te.expr import Binary, BinOp, Const, Expr, Select, Var
from dlc.te.simplify import canonical, surely_divides
from dlc.te.transform import loads


def legalize(stmt: Stmt, target: Target) -> Stmt:
    """Guard accumulations, write out `unroll` notes and the instructions that the target lacks.

    Of nested vector loops the innermost stays one; the others are written out. Without the
    instructions that work on them, tiles lie in memory.
    """
    known = frozenset(name for name, e in EMITTERS.items() if e.is_of(target))
    stmt = hoist_stmt(rewrite(stmt, _guard_accumulation))
    if not any(isinstance(s, Invoke) and s.instruction in known for s in walk(stmt)):
        stmt = rewrite(stmt, _tile_into_memory)
    return _write_out(stmt, itertools.count(), known)


def _tile_into_memory(stmt: Stmt) -> Stmt:
    if isinstance(stmt, Alloc) and stmt.scope is Scope.TILE:
        return replace(stmt, scope=Scope.LOCAL)
    return stmt


def _guard_accumulation(stmt: Stmt) -> Stmt:
    """`c = c + (x if cond else 0)` becomes `if cond: c = c + x`: one branch may then guard many.

    Adding 0 to a sum changes at most the sign of a zero.
    """
    op = accumulation(stmt)
    match stmt:
        case Store(buffer, index, Binary(_, old, Select(cond, value, Const(other)))) if op:
            if float(other) == _NEUTRAL[op] and value.dtype.is_float and not loads(cond):
                return If(cond, Store(buffer, index, Binary(op, old, value)))
    return stmt


_NEUTRAL = {BinOp.ADD: 0.0, BinOp.MUL: 1.0, BinOp.MIN: math.inf, BinOp.MAX: -math.inf}


def _write_out(stmt: Stmt, numbers: Iterator[int], known: frozenset[str]) -> Stmt:
    """`numbers` tells the instructions of one function apart."""
    match stmt:
        case Store():
            return stmt
        case Invoke(name, _):
            return stmt if name in known else expand(stmt, next(numbers))
        case If() | Alloc():
            return replace(stmt, body=_write_out(stmt.body, numbers, known))
        case Block(stmts):
            return Block(tuple(_write_out(s, numbers, known) for s in stmts))
        case For():
            return _legalize_loop(replace(stmt, body=_write_out(stmt.body, numbers, known)))


def _legalize_loop(loop: For) -> Stmt:
    if loop.kind is LoopKind.VECTOR and any(
        isinstance(s, For) and s.kind is LoopKind.VECTOR for s in walk(loop.body)
    ):
        loop = replace(loop, kind=LoopKind.UNROLL)
    count = dict(loop.notes).get("unroll", 1)
    if loop.kind is not LoopKind.SERIAL or count <= 1:
        return loop
    return _unroll_by(loop, count)


def _unroll_by(loop: For, count: int) -> Stmt:
    """Run `count` iterations at a time, then the rest one by one."""
    notes = tuple((key, value) for key, value in loop.notes if key != "unroll")
    if isinstance(loop.extent, Const) and int(loop.extent.value) <= count:
        return replace(loop, kind=LoopKind.UNROLL, notes=notes)
    outer, inner = f"{loop.var}_by{count}", f"{loop.var}_of{count}"
    groups = canonical(loop.extent // count)
    whole: Expr = Var(outer) * count + Var(inner)
    copies = For(
        inner, Const(count, INDEX), LoopKind.UNROLL, substitute(loop.body, {loop.var: whole})
    )
    main = For(outer, groups, LoopKind.SERIAL, copies, notes)
    if surely_divides(count, loop.extent):
        return main
    last = f"{loop.var}_rest"
    at: Expr = groups * count + Var(last)
    # Register buffers inside the body keep their names in both copies: their lives do not overlap.
    body = substitute(loop.body, {loop.var: at})
    rest = For(last, canonical(loop.extent - groups * count), LoopKind.SERIAL, body)
    return block(main, rest)
