"""tabulate: compute what depends on one loop alone once for each of its iterations."""

from __future__ import annotations

from dataclasses import replace

from dlc.core.types import INDEX, DType
from dlc.schedule.edit import swap_loop
from dlc.schedule.loop import Alloc, Buffer, For, Func, LoopKind, Scope, Store, block, map_exprs
from dlc.schedule.primitive import check_fresh, find_loop, primitive, refuse
from dlc.te.expr import Binary, BinOp, Expr, Load, Var, binary, cast, maximum
from dlc.te.simplify import surely_at_most
from dlc.te.text import parse_expr
from dlc.te.transform import free_vars, map_children, rewrite, substitute
from dlc.te.types import TensorType


@primitive
def tabulate(func: Func, loop: str, expr: str, name: str) -> Func:
    """Read an expression of a loop's counter from a table, which is filled before all else.

    What is computed for each iteration of the loops around is then computed once, even where these
    have none: a divisor of 0, by which nothing is divided then, counts as 1. The loop that fills
    the table is called after it.

    Before:
        def f(n: size, A: f32[5, n + 1], *, B: f32[5, 8]):
            for i in range(5):
                for j in range(8):
                    B[i, j] = A[i, j % (n + 1)]

    Call:
        tabulate("j", "j % (n + 1)", "place")

    After:
        def f(n: size, A: f32[5, n + 1], *, B: f32[5, 8]):
            place = alloc(i64[8], "local")
            for place_0 in range(8):
                place[place_0] = i64(place_0 % (n + 1))
            for i in range(5):
                for j in range(8):
                    B[i, j] = A[i, index(place[j])]

    Raises:
        ScheduleError: no such loop; the expression is not found in it, or reads other loops, or
            divides by what may be negative; a name is taken.
        UserError: the text is no expression of numbers, or reads elements.
    """
    target, wanted = find_loop("tabulate", func, loop), parse_expr(expr)
    if free_vars(wanted) - {loop, *func.sizes}:
        refuse("tabulate", func, f"'{expr}' reads more than loop '{loop}' and sizes")
    fill = f"{name}_0"
    check_fresh("tabulate", func, (name, fill))
    dtype = DType.I64 if wanted.dtype is INDEX else wanted.dtype
    entry = cast(wanted.dtype, Load(name, (Var(loop),), dtype))

    def look_up(node: Expr) -> Expr:
        return entry if node == wanted else map_children(node, look_up)

    def defined(node: Expr) -> Expr:
        match node:
            case Binary(BinOp.FLOORDIV | BinOp.MOD as op, a, b) if not surely_at_most(1, b):
                if node.dtype is not INDEX or not surely_at_most(0, b):
                    refuse("tabulate", func, f"'{b}' may be no divisor")
                return binary(op, a, maximum(b, 1))
            case _:
                return node

    body = map_exprs(target.body, look_up)
    if body is target.body:
        refuse("tabulate", func, f"'{expr}' is not found in loop '{loop}'")
    value = cast(dtype, rewrite(substitute(wanted, {loop: Var(fill)}), defined))
    filled = For(fill, target.extent, LoopKind.SERIAL, Store(name, (Var(fill),), value))
    changed = swap_loop(func, loop, lambda f: replace(f, body=body))
    table = Buffer(name, TensorType((target.extent,), dtype))
    return replace(func, body=Alloc(table, Scope.LOCAL, block(filled, changed.body)))
