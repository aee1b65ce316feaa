"""split: one loop becomes an outer and an inner loop."""

from __future__ import annotations

from dlc.core.types import INDEX
from dlc.schedule.edit import swap_loop
from dlc.schedule.loop import For, Func, If, LoopKind, map_exprs, reads, substitute
from dlc.schedule.primitive import check_fresh, find_serial, primitive, refuse
from dlc.te.expr import Binary, BinOp, Const, Expr, Var, ceil_div
from dlc.te.simplify import canonical, surely_divides
from dlc.te.transform import free_vars, rewrite


@primitive
def split(func: Func, loop: str, factor: int, names: tuple[str, str]) -> Func:
    """Split a loop so that the inner one runs `factor` iterations.

    Unless `factor` surely divides the extent, a guard skips the extra iterations. A quotient or a
    remainder of the loop by `factor` is one of the two then.

    Before:
        def copy(n: size, A: f32[n], *, B: f32[n]):
            for i in range(n):
                B[i] = A[i]

    Call:
        split("i", 32, ("io", "ii"))

    After:
        def copy(n: size, A: f32[n], *, B: f32[n]):
            for io in range((n + 31) // 32):
                for ii in range(32):
                    if io * 32 + ii < n:
                        B[io * 32 + ii] = A[io * 32 + ii]

    Raises:
        ScheduleError: no such loop; it is no longer serial; factor below 1; a name is taken.
    """
    target = find_serial("split", func, loop)
    if factor < 1:
        refuse("split", func, f"factor {factor} is below 1")
    check_fresh("split", func, names, freed=(loop,))

    outer, inner = names
    whole = Var(outer) * factor + Var(inner)
    body = map_exprs(
        substitute(target.body, {loop: whole}),
        lambda e: _digits(e, whole, factor, names),
        where=lambda s: outer in reads(s),
    )
    if not surely_divides(factor, target.extent):
        body = If(whole < target.extent, body)
    rounds = canonical(ceil_div(target.extent, factor))
    nest = For(inner, Const(factor, INDEX), LoopKind.SERIAL, body)
    return swap_loop(func, loop, lambda f: For(outer, rounds, LoopKind.SERIAL, nest, f.notes))


def _digits(expr: Expr, whole: Expr, factor: int, names: tuple[str, str]) -> Expr:
    """An expression whose quotients and remainders of `whole` by `factor` are its digits."""
    if names[0] not in free_vars(expr):
        return expr

    def digit(part: Expr) -> Expr:
        match part:
            case Binary(BinOp.FLOORDIV | BinOp.MOD as op, a, Const(number)):
                if number == factor and a == whole:
                    return Var(names[0] if op is BinOp.FLOORDIV else names[1])
        return part

    return rewrite(expr, digit)
