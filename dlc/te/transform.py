"""Walks and rewrites over expressions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import assert_never

from dlc.te.expr import (
    Binary,
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


def walk(expr: Expr) -> Iterator[Expr]:
    """Yield every node, parents first."""
    pending = [expr]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(reversed(children(node)))


def rewrite(expr: Expr, visit: Callable[[Expr], Expr]) -> Expr:
    """Rebuild an expression bottom-up; unchanged subtrees are returned as they are."""
    match expr:
        case Const() | Var():
            return visit(expr)
        case Binary(op, a, b):
            x, y = rewrite(a, visit), rewrite(b, visit)
            return visit(expr if x is a and y is b else binary(op, x, y))
        case Unary(op, a):
            x = rewrite(a, visit)
            return visit(expr if x is a else unary(op, x))
        case Cast(dtype, a):
            x = rewrite(a, visit)
            return visit(expr if x is a else cast(dtype, x))
        case Select(cond, then, other):
            parts = [rewrite(part, visit) for part in (cond, then, other)]
            same = parts[0] is cond and parts[1] is then and parts[2] is other
            return visit(expr if same else select(*parts))
        case Load(buffer, index, dtype):
            new = tuple(rewrite(i, visit) for i in index)
            same = all(x is y for x, y in zip(new, index, strict=True))
            return visit(expr if same else Load(buffer, new, dtype))
        case _:
            assert_never(expr)


def substitute(expr: Expr, env: Mapping[str, Expr]) -> Expr:
    """Replace variables by name."""
    if not env:
        return expr
    return rewrite(expr, lambda e: env.get(e.name, e) if isinstance(e, Var) else e)


def rename_buffers(expr: Expr, names: Mapping[str, str]) -> Expr:
    """Replace the names of loaded buffers."""

    def visit(node: Expr) -> Expr:
        if isinstance(node, Load) and node.buffer in names:
            return Load(names[node.buffer], node.index, node.dtype)
        return node

    return rewrite(expr, visit)


def free_vars(expr: Expr) -> frozenset[str]:
    """The names of the variables an expression reads."""
    return _reads(expr)[0]


def loads(expr: Expr) -> tuple[Load, ...]:
    """Every element an expression reads, in order, with repetitions."""
    return _reads(expr)[1]


@functools.lru_cache(maxsize=1 << 16)  # asked of the same expressions at every step of a schedule
def _reads(expr: Expr) -> tuple[frozenset[str], tuple[Load, ...]]:
    names, found = set(), []
    for node in walk(expr):
        if isinstance(node, Var):
            names.add(node.name)
        elif isinstance(node, Load):
            found.append(node)
    return frozenset(names), tuple(found)
