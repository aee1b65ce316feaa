"""Give the sizes that a kernel computes with names of their own.

Deep in a model a height is `(((h + 1) // 2 + 1) // 2 + 1) // 2`. A kernel does not care: inside of
it the height is `s0`, and its caller passes the value. Schedules, proofs and code get simpler, and
layers that differ only in how their sizes came about become one kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dlc.schedule.loop import Alloc, Buffer, For, Func, Stmt, map_exprs, rewrite
from dlc.schedule.lower import used_names
from dlc.schedule.verify import verify_func
from dlc.te.expr import Binary, BinOp, Expr, Var, children
from dlc.te.simplify import surely_at_most
from dlc.te.transform import rewrite as rewrite_expr
from dlc.te.transform import walk
from dlc.te.types import TensorType


def abstract_sizes(func: Func) -> tuple[Func, tuple[Expr, ...]]:
    """Replace quotients of sizes by size variables; also the value to pass for each size.

    Quotients of the deepest nesting stay where others, that they are computed from, are sizes of
    the kernel too: a strided convolution knows that its result has `(s0 + 1) // 2` rows.

    A size is never negative, and proofs rely on it: a quotient that may be negative gets no name.

    Before:
        def f(h: size, A: f32[(h + 1) // 2], *, B: f32[(h + 1) // 2]):
            for i in range((h + 1) // 2):
                B[i] = A[i]

    After:
        def f(s0: size, A: f32[s0], *, B: f32[s0]):
            for i in range(s0):
                B[i] = A[i]
    """
    sizes = [size for buffer in func.params for size in buffer.type.shape]
    levels = [_depth(size) for size in sizes if _reads_sizes(size)]
    if not levels or not max(levels):
        return func, tuple(Var(s) for s in func.sizes)
    top = max(levels)
    named = top if min(levels) == top else top - 1
    quotients = {
        e: None
        for s in sizes
        for e in walk(s)
        if _is_quotient(e) and _depth(e) == named and surely_at_most(0, e)
    }
    if not quotients:
        return func, tuple(Var(s) for s in func.sizes)
    names = _fresh(func, len(quotients))
    env = dict(zip(quotients, map(Var, names), strict=True))
    result = replace_sizes(func, env)
    used = used_names(result.body, result.params)
    kept = tuple(s for s in func.sizes if s in used)
    result = replace(result, sizes=(*kept, *names))
    verify_func(result, when="after abstract_sizes")
    return result, (*map(Var, kept), *quotients)


def _is_quotient(expr: Expr) -> bool:
    return isinstance(expr, Binary) and expr.op is BinOp.FLOORDIV


def _depth(expr: Expr) -> int:
    """How many quotients are nested inside each other."""
    return max(map(_depth, children(expr)), default=0) + _is_quotient(expr)


def _reads_sizes(expr: Expr) -> bool:
    return any(isinstance(e, Var) for e in walk(expr))


def _fresh(func: Func, count: int) -> list[str]:
    taken = set(func.sizes) | {b.name for b in func.params}
    names: list[str] = []
    number = 0
    while len(names) < count:
        if f"s{number}" not in taken:
            names.append(f"s{number}")
        number += 1
    return names


def replace_sizes(func: Func, env: Mapping[Expr, Expr]) -> Func:
    """Replace parts of all expressions of a function; `sizes` stays as it is."""

    def expr(whole: Expr) -> Expr:
        return rewrite_expr(whole, lambda e: env.get(e, e))

    def buffer(old: Buffer) -> Buffer:
        return Buffer(old.name, TensorType(tuple(map(expr, old.type.shape)), old.type.dtype))

    def visit(stmt: Stmt) -> Stmt:
        match stmt:
            case For():
                return replace(stmt, extent=expr(stmt.extent))
            case Alloc():
                return replace(stmt, buffer=buffer(stmt.buffer))
            case _:
                return stmt

    return replace(
        func,
        inputs=tuple(map(buffer, func.inputs)),
        outputs=tuple(map(buffer, func.outputs)),
        body=rewrite(map_exprs(func.body, expr), visit),
    )
