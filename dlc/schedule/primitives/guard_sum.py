"""guard_sum: skip a whole sum whose summands are all left out."""

from __future__ import annotations

from dataclasses import replace

from dlc.schedule.edit import sites
from dlc.schedule.loop import For, Func, If, Stmt, Store, accumulation, rewrite
from dlc.schedule.primitive import primitive, refuse
from dlc.te.expr import Binary, BinOp, Const, Expr, Select
from dlc.te.transform import free_vars, loads


@primitive
def guard_sum(func: Func, buffer: str) -> Func:
    """Test the condition of a sum's summands before the sum, not at each summand.

    A summand that is left out adds 0, which changes at most the sign of a zero.

    Before:
        def f(m: f32[4], A: f32[4, 8], *, s: f32[4]):
            for i in range(4):
                s[i] = 0.0
                for j in range(8):
                    s[i] += (A[i, j] if m[i] < 1.0 else 0.0)

    Call:
        guard_sum("s")

    After:
        def f(m: f32[4], A: f32[4, 8], *, s: f32[4]):
            for i in range(4):
                s[i] = 0.0
                if m[i] < 1.0:
                    for j in range(8):
                        s[i] += A[i, j]

    Raises:
        ScheduleError: the buffer is not one sum of summands that are 0 unless a condition holds;
            the condition reads the sum.
    """
    sums = [s.store for s in sites(func.body) if s.store.buffer == buffer and accumulation(s.store)]
    if len(sums) != 1:
        refuse("guard_sum", func, f"'{buffer}' is accumulated in {len(sums)} places, not in one")
    target = sums[0]
    cond, summand = _parts(func, target)
    if any(x.buffer == buffer for x in loads(cond)):
        refuse("guard_sum", func, f"the condition of '{buffer}' reads the sum")
    assert isinstance(target.value, Binary)
    plain = replace(target, value=Binary(BinOp.ADD, target.value.a, summand))

    def visit(stmt: Stmt) -> Stmt:
        match stmt:
            case Store() if stmt is target:
                return If(cond, plain)
            case For(var, _, _, If(test, body)) if test is cond and var not in free_vars(cond):
                return If(cond, replace(stmt, body=body))
            case _:
                return stmt

    return replace(func, body=rewrite(func.body, visit))


def _parts(func: Func, store: Store) -> tuple[Expr, Expr]:
    """The condition and the summand of `s += summand if cond else 0`."""
    match store.value:
        case Binary(BinOp.ADD, _, Select(cond, summand, Const(0))):
            return cond, summand
        case _:
            refuse("guard_sum", func, f"the summands of '{store.buffer}' have no condition")
