"""Scalar expressions as C++ text. What C++ lacks is a function of the seam (`seam.cuh`)."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import assert_never

from dlc.core.types import DType
from dlc.te.expr import Binary, BinOp, Cast, Const, Expr, Load, Select, Unary, UnOp, Var
from dlc.te.simplify import Bounds, surely_at_most

# The type of an element in memory. 16-bit floats are computed with as `float`.
MEMORY_TYPES = {
    DType.BOOL: "bool", DType.I8: "i8", DType.I16: "i16", DType.I32: "i32", DType.I64: "i64",
    DType.U8: "u8", DType.U16: "u16", DType.U32: "u32", DType.U64: "u64", DType.F16: "f16",
    DType.BF16: "bf16", DType.F32: "float", DType.F64: "double", DType.INDEX: "i64",
}  # fmt: skip
_SYMBOLS = {
    BinOp.ADD: "+", BinOp.SUB: "-", BinOp.MUL: "*", BinOp.DIV: "/", BinOp.LT: "<", BinOp.LE: "<=",
    BinOp.EQ: "==", BinOp.NE: "!=", BinOp.AND: "&&", BinOp.OR: "||", BinOp.BITAND: "&",
    BinOp.BITOR: "|", BinOp.BITXOR: "^",
}  # fmt: skip
_INTEGER_CALLS = {
    BinOp.ADD: "wrap_add", BinOp.SUB: "wrap_sub", BinOp.MUL: "wrap_mul", BinOp.DIV: "int_div",
    BinOp.FLOORDIV: "floor_div", BinOp.MOD: "floor_mod", BinOp.SHL: "shift_left",
    BinOp.SHR: "shift_right", BinOp.POW: "int_pow", BinOp.MIN: "min_of", BinOp.MAX: "max_of",
}  # fmt: skip
_FLOAT_CALLS = {
    BinOp.FLOORDIV: "float_floor_div", BinOp.MOD: "float_floor_mod", BinOp.POW: "math_pow",
    BinOp.MIN: "min_of", BinOp.MAX: "max_of",
}  # fmt: skip
_COMPARE = 6  # strength of binding, as in C++: a larger number binds tighter
_STRENGTH = {
    BinOp.OR: 1, BinOp.AND: 2, BinOp.BITOR: 3, BinOp.BITXOR: 4, BinOp.BITAND: 5,
    BinOp.LT: _COMPARE, BinOp.LE: _COMPARE, BinOp.EQ: _COMPARE, BinOp.NE: _COMPARE,
    BinOp.ADD: 8, BinOp.SUB: 8, BinOp.MUL: 9, BinOp.DIV: 9,
}  # fmt: skip
_UNARY, _CALL = 10, 11
_HALVES = (DType.F16, DType.BF16)


def value_type(dtype: DType) -> str:
    """The type that elements of a type are computed with."""
    return "float" if dtype in _HALVES else MEMORY_TYPES[dtype]


def literal(node: Const) -> str:
    """A constant, to the last bit."""
    value, dtype = node.value, node.dtype
    if dtype is DType.BOOL:
        return "true" if value else "false"
    if dtype.is_float:
        return _float_literal(float(value), dtype)
    if dtype is DType.INDEX:
        return str(value) if value >= 0 else f"({value})"
    if value == -(2**63):
        return "i64(-9223372036854775807LL - 1)"
    suffix = "" if dtype.bits < 32 else "LL" if dtype.is_signed else "ULL"
    return f"{MEMORY_TYPES[dtype]}({value}{suffix})"


def _float_literal(value: float, dtype: DType) -> str:
    name = value_type(dtype)
    if math.isnan(value):
        return f"nan_of<{name}>()"
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}inf_of<{name}>()"
    if dtype is not DType.F64:
        value = _shortest(value)
    text = repr(value)
    text = text if dtype is DType.F64 else f"{text}f"
    return f"({text})" if text.startswith("-") else text


def _shortest(value: float) -> float:
    """The double of the fewest digits that is nearest to the same float32."""
    (exact,) = struct.unpack("f", struct.pack("f", value))
    for digits in range(1, 10):
        near = float(f"{exact:.{digits}g}")
        if struct.pack("f", near) == struct.pack("f", exact):
            return near
    return float(exact)


class ExprPrinter:
    """Prints expressions of one kernel.

    Args:
        load: the text of an element of a buffer, as the kernel names it.
        bounds: the ranges of the variables in scope; the caller keeps them up to date.
    """

    def __init__(self, load: Callable[[str, tuple[Expr, ...]], str], bounds: Bounds) -> None:
        self.load = load
        self.bounds = bounds

    def text(self, expr: Expr, outer: int = 0) -> str:
        """The text of an expression, in parentheses if it binds less tightly than `outer`."""
        text, own = self._parts(expr)
        return f"({text})" if own < outer else text

    def _parts(self, expr: Expr) -> tuple[str, int]:
        match expr:
            case Const():
                return literal(expr), _CALL
            case Var(name, _):
                return name, _CALL
            case Load(buffer, index, dtype):
                text = self.load(buffer, index)
                return f"float({text})" if dtype in _HALVES else text, _CALL
            case Cast(dtype, a):
                return self._cast(dtype, a), _CALL
            case Select(cond, then, other):
                return f"{self.text(cond, 1)} ? {self.text(then, 1)} : {self.text(other)}", 0
            case Unary(op, a):
                return self._unary(op, a)
            case Binary(op, a, b):
                return self._binary(op, a, b)
            case _:
                assert_never(expr)

    def _call(self, name: str, *operands: Expr) -> tuple[str, int]:
        return f"{name}({', '.join(map(self._operand, operands))})", _CALL

    def _operand(self, expr: Expr) -> str:
        """An operand of a template, which must not be a reference to memory."""
        text = self.text(expr)
        if isinstance(expr, Load) and expr.dtype not in _HALVES:
            return f"{MEMORY_TYPES[expr.dtype]}({text})"
        return text

    def _cast(self, dtype: DType, a: Expr) -> str:
        inner = self._operand(a)
        if dtype is DType.BOOL:
            return f"({self.text(a, _COMPARE + 1)} != 0)"
        if dtype in _HALVES:
            return f"float({dtype}({inner}))"
        if a.dtype.is_float and not dtype.is_float:
            return f"saturate<{MEMORY_TYPES[dtype]}>({inner})"
        return f"{MEMORY_TYPES[dtype]}({inner})"

    def _unary(self, op: UnOp, a: Expr) -> tuple[str, int]:
        if op is UnOp.NEG:
            if a.dtype.is_float or a.dtype is DType.INDEX:
                return f"-{self.text(a, _UNARY + 1)}", _UNARY
            return f"wrap_sub({MEMORY_TYPES[a.dtype]}(0), {self._operand(a)})", _CALL
        if op is UnOp.NOT:
            return f"!{self.text(a, _UNARY)}", _UNARY
        if op is UnOp.INVERT:
            return f"{MEMORY_TYPES[a.dtype]}(~{self.text(a, _UNARY)})", _CALL
        return self._call(f"math_{op.value}", a)

    def _binary(self, op: BinOp, a: Expr, b: Expr) -> tuple[str, int]:
        dtype = a.dtype
        if dtype is DType.INDEX and op in (BinOp.FLOORDIV, BinOp.MOD):
            return self._index_division(op, a, b)
        plain = dtype.is_float or dtype is DType.BOOL or dtype is DType.INDEX
        if dtype is DType.INDEX and op is BinOp.DIV:
            return self._call("int_div", a, b)
        if dtype.is_float and op in _FLOAT_CALLS:
            return self._call(_FLOAT_CALLS[op], a, b)
        if op in (BinOp.MIN, BinOp.MAX) or (not plain and op in _INTEGER_CALLS):
            return self._call(_INTEGER_CALLS[op], a, b)
        if op not in _SYMBOLS:
            return self._call(_INTEGER_CALLS[op], a, b)
        own = _STRENGTH[op]
        text = f"{self.text(a, own)} {_SYMBOLS[op]} {self.text(b, own + 1)}"
        if op in (BinOp.BITAND, BinOp.BITOR, BinOp.BITXOR):
            return f"{MEMORY_TYPES[dtype]}({text})", _CALL
        return text, own

    def _index_division(self, op: BinOp, a: Expr, b: Expr) -> tuple[str, int]:
        """C++ rounds toward zero, which is the same where nothing is negative."""
        if surely_at_most(0, a, self.bounds) and surely_at_most(1, b, self.bounds):
            sign = "/" if op is BinOp.FLOORDIV else "%"
            return f"{self.text(a, 9)} {sign} {self.text(b, 10)}", 9
        return self._call(_INTEGER_CALLS[op], a, b)
