"""Which index expressions may be computed anywhere: at the start of the loops that know them."""

from __future__ import annotations

from dlc.core.types import INDEX
from dlc.te.expr import (
    COMPARISONS,
    LOGICAL,
    Binary,
    BinOp,
    Const,
    Expr,
    Select,
    Unary,
    UnOp,
    Var,
)

_MOVABLE = frozenset({
    BinOp.ADD, BinOp.SUB, BinOp.MUL, BinOp.FLOORDIV, BinOp.MOD, BinOp.MIN, BinOp.MAX,
})  # fmt: skip


def is_movable(expr: Expr) -> bool:
    """Whether an index expression is arithmetic on variables, and so may be computed anywhere."""
    match expr:
        case Var() | Const():
            return expr.dtype is INDEX
        case Binary(op, a, b):
            return expr.dtype is INDEX and op in _MOVABLE and is_movable(a) and is_movable(b)
        case Unary(op, a):
            return op is UnOp.NEG and is_movable(a)
        case Select(cond, then, other):
            return _is_movable_cond(cond) and is_movable(then) and is_movable(other)
        case _:
            return False


def _is_movable_cond(cond: Expr) -> bool:
    match cond:
        case Const():
            return True
        case Binary(op, a, b) if op in LOGICAL:
            return _is_movable_cond(a) and _is_movable_cond(b)
        case Binary(op, a, b) if op in COMPARISONS:
            return is_movable(a) and is_movable(b)
        case Unary(UnOp.NOT, a):
            return _is_movable_cond(a)
        case _:
            return False
