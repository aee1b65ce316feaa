"""How much a nest does: the estimate that decides whether threads pay."""

from __future__ import annotations

from typing import assert_never

from dlc.core.remember import per_object
from dlc.core.types import INDEX
from dlc.schedule.loop import (
    Alloc,
    Block,
    For,
    Func,
    If,
    Invoke,
    LoopKind,
    Stmt,
    Store,
    accumulation,
)
from dlc.schedule.primitive import refuse
from dlc.te.expr import Binary, Cast, Const, Expr, Select, Unary, UnOp
from dlc.te.simplify import surely_at_most
from dlc.te.transform import walk

POLYNOMIAL = 16
"""Operations of a function that is a polynomial: 6 to 12 multiply-adds, and the range reduction."""
MOST_WRITTEN_OUT = 16384
"""Operations of a kernel's text, which LLVM takes seconds for; rules choose fewer than 10,000."""
_CHEAP = frozenset(
    {
        UnOp.NEG,
        UnOp.NOT,
        UnOp.INVERT,
        UnOp.ABS,
        UnOp.FLOOR,
        UnOp.CEIL,
        UnOp.ROUND,
        UnOp.FLUSH,
        UnOp.TF32,
    }
)


@per_object
def operations(stmt: Stmt) -> int | None:
    """About how many instructions a nest runs, a vector counting as one; None where sizes are open.

    A multiply-add is one. Addresses are free: they belong to loads, which run beside arithmetic.
    """
    match stmt:
        case Store(_, _, value):
            return max(1, _cost(value) - (accumulation(stmt) is not None))
        case Invoke():
            return 1
        case If(_, body) | Alloc(_, _, body):
            return operations(body)
        case For(_, extent, kind, body, _):
            inner = operations(body)
            if inner is None or kind is LoopKind.VECTOR or surely_at_most(extent, 1):
                return inner
            return inner * int(extent.value) if isinstance(extent, Const) else None
        case Block(stmts):
            counts = [operations(s) for s in stmts]
            return None if None in counts else sum(c or 0 for c in counts)
        case _:
            assert_never(stmt)


@per_object
def written_out(stmt: Stmt) -> int:
    """About how many operations the text of a nest has, a vector counting as one."""
    match stmt:
        case Store(_, _, value):
            return max(1, _cost(value))
        case Invoke():
            return 1
        case If(_, body) | Alloc(_, _, body):
            return written_out(body)
        case For(_, extent, kind, body, _):
            copies = extent.value if kind is LoopKind.UNROLL and isinstance(extent, Const) else 1
            return int(copies) * written_out(body)
        case Block(stmts):
            return sum(written_out(s) for s in stmts)
        case _:
            assert_never(stmt)


@per_object
def is_polynomial(value: Expr) -> bool:
    """Whether a value is a polynomial, or made of one: a chain of operations that wait in turn."""
    return any(
        isinstance(e, Unary) and e.dtype.is_float and e.op not in _CHEAP and e.op is not UnOp.SQRT
        for e in walk(value)
    )


def refuse_giant(func: Func) -> None:
    """Refuse a schedule that writes out more than can be compiled in good time.

    Raises:
        ScheduleError: it does.
    """
    count = written_out(func.body)
    if count > MOST_WRITTEN_OUT:
        refuse("schedule", func, f"{count:,} operations would be written out one by one")


@per_object
def _cost(value: Expr) -> int:
    total = 0
    for node in walk(value):
        match node:
            case Unary(op, _) if node.dtype.is_float:
                total += 1 if op in _CHEAP else POLYNOMIAL
            case Binary() | Unary() | Select() | Cast() if node.dtype is not INDEX:
                total += 1
            case _:
                pass
    return total
