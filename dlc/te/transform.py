"""Walks and rewrites over expressions."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import assert_never

from dlc.te.expr import (
    Binary,
    BinOp,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Unary,
    Var,
    binary,
    cast,
    children,
    select,
    unary,
)

_NONE: frozenset[str] = frozenset()


def walk(expr: Expr) -> Iterator[Expr]:
    """Yield every node, parents first."""
    pending = [expr]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(reversed(children(node)))


def rewrite(expr: Expr, visit: Callable[[Expr], Expr]) -> Expr:
    """Rebuild an expression bottom-up; unchanged subtrees are returned as they are."""
    return visit(map_children(expr, lambda child: rewrite(child, visit)))


def map_children(expr: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """The node over changed operands; the node itself where none changed."""
    match expr:
        case Const() | Var():
            return expr
        case Binary(op, a, b):
            x, y = change(a), change(b)
            return expr if x is a and y is b else binary(op, x, y)
        case Unary(op, a):
            x = change(a)
            return expr if x is a else unary(op, x)
        case Cast(dtype, a):
            x = change(a)
            return expr if x is a else cast(dtype, x)
        case Select(cond, then, other):
            parts = [change(part) for part in (cond, then, other)]
            same = parts[0] is cond and parts[1] is then and parts[2] is other
            return expr if same else select(*parts)
        case Load(buffer, index, dtype):
            new = map_same(index, change)
            return expr if new is index else Load(buffer, new, dtype)
        case _:
            assert_never(expr)


def map_same(exprs: tuple[Expr, ...], change: Callable[[Expr], Expr]) -> tuple[Expr, ...]:
    """Changed expressions; the very same tuple where none changed."""
    new = tuple([change(e) for e in exprs])
    return exprs if all(map(operator.is_, new, exprs)) else new


def substitute(expr: Expr, env: Mapping[str, Expr]) -> Expr:
    """Replace variables by name."""
    if isinstance(expr, Var):
        return env.get(expr.name, expr)
    if free_vars(expr).isdisjoint(env):
        return expr
    return map_children(expr, lambda child: substitute(child, env))


def rename_buffers(expr: Expr, names: Mapping[str, str]) -> Expr:
    """Replace the names of loaded buffers."""
    if not any(load.buffer in names for load in loads(expr)):
        return expr

    def visit(node: Expr) -> Expr:
        if isinstance(node, Load) and node.buffer in names:
            return Load(names[node.buffer], node.index, node.dtype)
        return node

    return rewrite(expr, visit)


def free_vars(expr: Expr) -> frozenset[str]:
    """The names of the variables an expression reads."""
    try:
        return expr._names
    except AttributeError:
        names = frozenset([expr.name]) if isinstance(expr, Var) else _NONE
        for child in children(expr):
            more = free_vars(child)
            names = names | more if names else more
        object.__setattr__(expr, "_names", names)  # as long as the node: most are asked often
        return names


def loads(expr: Expr) -> tuple[Load, ...]:
    """Every element an expression reads, in order, with repetitions."""
    try:
        return expr._loads
    except AttributeError:
        found: tuple[Load, ...] = (expr,) if isinstance(expr, Load) else ()
        for child in children(expr):
            more = loads(child)
            found = found + more if found else more
        object.__setattr__(expr, "_loads", found)
        return found


def certain_loads(expr: Expr) -> frozenset[Load]:
    """The elements an expression reads whatever its conditions say."""
    match expr:
        case Select(cond, _, _):
            return certain_loads(cond)
        case Binary(BinOp.AND | BinOp.OR, a, _):
            return certain_loads(a)
        case _:
            below = frozenset[Load]().union(*map(certain_loads, children(expr)))
            return below | {expr} if isinstance(expr, Load) else below
