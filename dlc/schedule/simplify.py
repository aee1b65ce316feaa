"""Simplifying statements: what loop bounds and guards prove about indices, guards and extents."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import replace
from typing import assert_never

from dlc.core.types import INDEX
from dlc.schedule.loop import (
    Alloc,
    Block,
    For,
    If,
    Invoke,
    LoopKind,
    Stmt,
    Store,
    block,
    map_exprs,
    rewrite,
    substitute,
)
from dlc.te.affine import loop_bounds, split_terms
from dlc.te.expr import FALSE, ONE, TRUE, ZERO, Binary, BinOp, Const, Expr, Var, both
from dlc.te.simplify import Bounds, canonical, simplify, surely_at_most, to_poly
from dlc.te.transform import free_vars, loads

NOTHING = Block(())
# They say who runs their body, even if once.
_ON_GPU = (LoopKind.BLOCK, LoopKind.THREAD, LoopKind.WARP)


def conjuncts(cond: Expr) -> list[Expr]:
    """The parts of `a and b and c`."""
    match cond:
        case Binary(BinOp.AND, a, b):
            return conjuncts(a) + conjuncts(b)
        case _:
            return [] if cond == TRUE else [cond]


def all_of(conds: Iterable[Expr]) -> Expr:
    """`a and b and c`, each part once."""
    total: Expr = TRUE
    for cond in dict.fromkeys(conds):
        total = both(total, cond)
    return total


def guarded(conds: Iterable[Expr], body: Stmt) -> Stmt:
    """`body` where all conditions hold; no `If` where there is nothing to test."""
    cond = all_of(conds)
    if cond == FALSE:
        return NOTHING
    return body if cond == TRUE else If(cond, body)


def simplify_stmt(
    stmt: Stmt, bounds: Bounds, facts: frozenset[Expr] = frozenset(), *, drop: bool = False
) -> Stmt:
    """Simplify all indices; drop guards that are surely true and code that surely never runs.

    The variable of a loop of one iteration becomes 0; with `drop`, its loop goes as well, unless
    it runs on blocks or threads.
    `facts` are conditions that hold here. What is simple already comes back as the same object.
    """

    def expr(e: Expr) -> Expr:
        return simplify(e, bounds)

    match stmt:
        case Store() | Invoke():
            return map_exprs(stmt, expr)
        case If(cond, body):
            conds = [c for c in conjuncts(expr(cond)) if c not in facts]
            known = facts.union(c for c in conds if not loads(c))  # what it loads may change
            inner = simplify_stmt(body, bounds, known, drop=drop)
            found = NOTHING if inner == NOTHING else guarded(conds, inner)
            same = isinstance(found, If) and found.body is body and found.cond == cond
            return stmt if same else found
        case For():
            return _simplify_loop(stmt, bounds, facts, drop=drop)
        case Alloc(_, _, body):
            inner = simplify_stmt(body, bounds, facts, drop=drop)
            if inner is body and inner != NOTHING:
                return stmt
            return NOTHING if inner == NOTHING else replace(stmt, body=inner)
        case Block(stmts):
            parts = [simplify_stmt(s, bounds, facts, drop=drop) for s in stmts]
            left = [p for p in parts if p != NOTHING]
            same = len(left) == len(stmts) > 1 and all(map(operator.is_, left, stmts))
            return stmt if same else block(*left)
        case _:
            assert_never(stmt)


def _simplify_loop(loop: For, bounds: Bounds, facts: frozenset[Expr], *, drop: bool) -> Stmt:
    extent = canonical(loop.extent)
    if extent == ZERO:
        return NOTHING
    body = loop.body
    if extent == ONE:
        body = substitute(body, {loop.var: ZERO})
    inner = simplify_stmt(body, {**bounds, **loop_bounds({loop.var: extent})}, facts, drop=drop)
    if inner == NOTHING or (drop and extent == ONE and loop.kind not in _ON_GPU):
        return inner
    if inner is loop.body and extent == loop.extent:
        return loop
    return replace(loop, extent=extent, body=inner)


def hoist_stmt(stmt: Stmt) -> Stmt:
    """Move guards out of loops whose variable they do not read. Guards that load stay."""
    return rewrite(stmt, _hoist_one)


def _hoist_one(stmt: Stmt) -> Stmt:
    match stmt:
        case For(var, _, _, If(cond, body)):
            inner = [c for c in conjuncts(cond) if var in free_vars(c) or loads(c)]
            outer = [c for c in conjuncts(cond) if c not in inner]
            return guarded(outer, replace(stmt, body=guarded(inner, body))) if outer else stmt
        case Alloc(_, _, If(cond, body)) if not loads(cond):
            return If(cond, replace(stmt, body=body))
        case If(cond, If(inner_cond, body)) if not loads(inner_cond):
            return guarded([*conjuncts(cond), *conjuncts(inner_cond)], body)
        case Block(stmts) if stmts and all(isinstance(s, If) for s in stmts):
            return _hoist_common(stmt)
        case _:
            return stmt


def _hoist_common(stmt: Block) -> Stmt:
    """Guards that every statement of a block has."""
    parts = [(conjuncts(s.cond), s.body) for s in stmt.stmts if isinstance(s, If)]
    common = [c for c in parts[0][0] if not loads(c) and all(c in conds for conds, _ in parts)]
    if not common:
        return stmt
    rest = (guarded([c for c in conds if c not in common], body) for conds, body in parts)
    return guarded(common, block(*rest))


def tighten_stmt(stmt: Stmt, sizes: Iterable[str]) -> Stmt:
    """Shorten loops whose whole body is guarded by a limit on their variable.

    Thread loops stay: a thread must be the same one in each phase of its block. Loops that are
    written out get only as short as a constant.
    """
    known = frozenset(sizes)

    def visit(node: Stmt) -> Stmt:
        match node:
            case For(_, _, kind, If(cond, body)) if kind not in (LoopKind.THREAD, LoopKind.WARP):
                return _tighten(node, conjuncts(cond), body, known)
            case _:
                return node

    return rewrite(stmt, visit)


def _tighten(loop: For, conds: list[Expr], body: Stmt, sizes: frozenset[str]) -> Stmt:
    extent, rest = loop.extent, []
    fixed = loop.kind in (LoopKind.VECTOR, LoopKind.UNROLL)
    for cond in conds:
        limit = _limit(cond, loop.var, sizes)
        if limit is None or (fixed and not isinstance(limit, Const)):
            rest.append(cond)
        elif surely_at_most(extent, limit):
            pass
        elif surely_at_most(limit, 0):
            return NOTHING
        elif surely_at_most(limit, extent) and surely_at_most(0, limit):
            extent = limit
        else:
            rest.append(cond)
    return replace(loop, extent=extent, body=guarded(rest, body))


def _limit(cond: Expr, var: str, sizes: frozenset[str]) -> Expr | None:
    """The extent that a condition `var * step + rest < limit` leaves, over sizes only."""
    match cond:
        case Binary(BinOp.LT | BinOp.LE as op, a, b) if a.dtype is INDEX:
            step = to_poly(a - b, {}).get((Var(var),), 0)
        case _:
            return None
    moving, rest = split_terms(a - b, {var})
    if step <= 0 or moving != canonical(Var(var) * step) or free_vars(rest) - sizes or loads(rest):
        return None
    if op is BinOp.LT:  # step * var < -rest
        return canonical((step - 1 - rest) // step)
    return canonical(-rest // step + 1)
