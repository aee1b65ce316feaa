"""The operators of scalar expressions, and what they give for whole numbers."""

from __future__ import annotations

import enum
from collections.abc import Callable


class BinOp(enum.StrEnum):
    """Binary operators; the value is the spelling in IR text."""

    ADD = "+"
    SUB = "-"
    MUL = "*"
    DIV = "/"
    FLOORDIV = "//"
    MOD = "%"
    POW = "**"
    MIN = "min"
    MAX = "max"
    LT = "<"
    LE = "<="
    EQ = "=="
    NE = "!="
    AND = "and"
    OR = "or"
    BITAND = "&"
    BITOR = "|"
    BITXOR = "^"
    SHL = "<<"
    SHR = ">>"

    __hash__ = str.__hash__  # that of `Enum` is a function of Python's; nodes are hashed often


class UnOp(enum.StrEnum):
    """Unary operators; the value is the spelling in IR text."""

    NEG = "-"
    NOT = "not"
    INVERT = "~"
    ABS = "abs"
    EXP = "exp"
    LOG = "log"
    LOG1P = "log1p"  # log(1 + x), with the digits that 1 + x loses
    SQRT = "sqrt"
    TANH = "tanh"
    ERF = "erf"
    NORMCDF = "normcdf"  # the share of a normal distribution below
    NORMCDF_SHORT = "normcdf_short"  # the same to 19 bits behind the point
    SIGMOID = "sigmoid"
    SIN = "sin"
    COS = "cos"
    FLOOR = "floor"
    CEIL = "ceil"
    ROUND = "round"  # half to even
    LRINT = "lrint"  # the same of an f32, as an i32 that surely holds it
    ISNAN = "isnan"
    FLUSH = "flush"  # denormals become zeros of their sign
    TF32 = "tf32"  # the nearest float with 11 significant bits, ties away from 0

    __hash__ = str.__hash__


COMPARISONS = frozenset({BinOp.LT, BinOp.LE, BinOp.EQ, BinOp.NE})
LOGICAL = frozenset({BinOp.AND, BinOp.OR})


def fold_ints(op: BinOp, a: int, b: int) -> int | bool | None:
    """The value of `a op b` on Python integers, or None where it has none."""
    if op in (BinOp.FLOORDIV, BinOp.MOD) and b == 0:
        return None
    fn = _INT_OPS.get(op)
    return None if fn is None else fn(a, b)


_INT_OPS: dict[BinOp, Callable[[int, int], int | bool]] = {
    BinOp.ADD: lambda a, b: a + b,
    BinOp.SUB: lambda a, b: a - b,
    BinOp.MUL: lambda a, b: a * b,
    BinOp.FLOORDIV: lambda a, b: a // b,
    BinOp.MOD: lambda a, b: a % b,
    BinOp.MIN: min,
    BinOp.MAX: max,
    BinOp.LT: lambda a, b: a < b,
    BinOp.LE: lambda a, b: a <= b,
    BinOp.EQ: lambda a, b: a == b,
    BinOp.NE: lambda a, b: a != b,
}
