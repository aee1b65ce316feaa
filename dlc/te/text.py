"""Expression text: a subset of Python's syntax, so `ast` is the tokenizer and parser.

Literals: `3` is an index, `3.0` (and `inf`, `nan`) an f32, `True` a bool; any other type is
spelled out, as in `i64(3)` or `f64(0.5)`. The same spelling around an expression is a cast.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import NoReturn, assert_never

from dlc.core.errors import InternalError, UserError
from dlc.core.types import INDEX, DType
from dlc.te.expr import (
    Binary,
    BinOp,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Unary,
    UnOp,
    Var,
    binary,
    cast,
    const,
    select,
    unary,
)
from dlc.te.types import TensorType

# Python's precedence, from loose to tight.
_LEVELS = (
    ("or",), ("and",), ("not",), ("<", "<=", "==", "!="), ("|",), ("^",), ("&",), ("<<", ">>"),
    ("+", "-"), ("*", "/", "//", "%"), ("neg", "~"), ("**",),
)  # fmt: skip
_PRECEDENCE = {op: level for level, ops in enumerate(_LEVELS, start=1) for op in ops}
_CALLS = {op.value for op in UnOp} - {"-", "not", "~"}


def print_expr(expr: Expr, outer: int = 0) -> str:
    """Write an expression, with parentheses only where Python needs them."""
    match expr:
        case Const():
            return _print_const(expr, outer)
        case Var(name, _):
            return name
        case Load(buffer, index, _):
            return print_ref(buffer, index)
        case Cast(dtype, a):
            return f"{dtype}({print_expr(a)})"
        case Select(cond, then, other):
            return f"({print_expr(then, 1)} if {print_expr(cond, 1)} else {print_expr(other, 1)})"
        case Unary(UnOp.NEG | UnOp.NOT | UnOp.INVERT as op, a):
            own = _PRECEDENCE["neg" if op is UnOp.NEG else op.value]
            space = " " if op is UnOp.NOT else ""
            return _paren(f"{op}{space}{print_expr(a, own)}", own, outer)
        case Unary(op, a):
            return f"{op}({print_expr(a)})"
        case Binary(BinOp.MIN | BinOp.MAX as op, a, b):
            return f"{op}({print_expr(a)}, {print_expr(b)})"
        case Binary(op, a, b):
            own = _PRECEDENCE[op.value]
            # Comparisons chain and ** groups to the right in Python: parenthesise both sides.
            left = own + 1 if own == 4 or op is BinOp.POW else own
            return _paren(f"{print_expr(a, left)} {op} {print_expr(b, own + 1)}", own, outer)
        case _:
            assert_never(expr)


def print_ref(buffer: str, index: tuple[Expr, ...]) -> str:
    """`buffer[index]`; a scalar is `buffer[()]`."""
    return f"{buffer}[{', '.join(map(print_expr, index)) if index else '()'}]"


def _paren(text: str, own: int, outer: int) -> str:
    return f"({text})" if own < outer else text


def _print_const(node: Const, outer: int) -> str:
    text = repr(node.value)
    if node.dtype in (INDEX, DType.F32, DType.BOOL):
        return _paren(text, _PRECEDENCE["neg"], outer) if text.startswith("-") else text
    return f"{node.dtype}({text})"


def parse_type(node: ast.expr, sizes: Callable[[str], Expr] | None = None) -> TensorType:
    """Read `f32[n, 3]`; `sizes` may check the names of size variables."""
    match node:
        case ast.Subscript(value=ast.Name(dtype), slice=inner) if dtype in list(DType):
            parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            parser = ExprParser({}, sizes)
            return TensorType(tuple(parser.index(p) for p in parts), DType(dtype))
    _fail(node, "not a tensor type")


def parse_expr(text: str, types: Mapping[str, DType] | None = None) -> Expr:
    """Read an expression; `types` gives the element types of the buffers it loads."""
    try:
        node = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise UserError(detail=f"not IR text, line {error.lineno}: {error.msg}") from error
    return ExprParser(types or {}).expr(node)


class ExprParser:
    """Turns Python's syntax tree into expressions."""

    def __init__(
        self, types: Mapping[str, DType], sizes: Callable[[str], Expr] | None = None
    ) -> None:
        self.types = types
        self.sizes = sizes

    def index(self, node: ast.expr) -> Expr:
        """An expression that must be an index."""
        found = self.expr(node)
        if found.dtype is not INDEX:
            _fail(node, "not an index")
        return found

    def expr(self, node: ast.expr) -> Expr:
        """Any expression."""
        try:
            return self._expr(node)
        except InternalError as error:  # operands of the wrong type
            _fail(node, str(error))

    def _expr(self, node: ast.expr) -> Expr:  # noqa: C901 - a case per syntax
        match node:
            case ast.Constant(value=bool(value)):
                return Const(value, DType.BOOL)
            case ast.Constant(value=int(value)):
                return Const(value, INDEX)
            case ast.Constant(value=float(value)):
                return Const(value, DType.F32)
            case ast.Name(id="inf" | "nan" as word):
                return Const(float(word), DType.F32)
            case ast.Name(id=name):
                return self.sizes(name) if self.sizes else Var(name)
            case ast.Subscript(value=ast.Name()):
                return self.load(node)
            case ast.Call(func=ast.Name(name), args=[arg], keywords=[]):
                return self._call(node, name, arg)
            case ast.Call(func=ast.Name("min" | "max" as name), args=[a, b], keywords=[]):
                return binary(BinOp(name), self.expr(a), self.expr(b))
            case ast.UnaryOp(op=op, operand=operand):
                return unary(_UNARY[type(op)], self.expr(operand))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return binary(_BINARY[type(op)], self.expr(left), self.expr(right))
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _BINARY:
                return binary(_BINARY[type(op)], self.expr(left), self.expr(right))
            case ast.BoolOp(op=op, values=[first, *rest]):
                total = self.expr(first)
                for operand in rest:
                    total = binary(_BINARY[type(op)], total, self.expr(operand))
                return total
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return select(self.expr(test), self.expr(body), self.expr(orelse))
        _fail(node, "not an expression")

    def load(self, node: ast.Subscript) -> Load:
        """`buffer[index]`."""
        assert isinstance(node.value, ast.Name)
        buffer = node.value.id
        if buffer not in self.types:
            _fail(node, f"there is no buffer '{buffer}'")
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return Load(buffer, tuple(self.index(p) for p in parts), self.types[buffer])

    def _call(self, node: ast.expr, name: str, arg: ast.expr) -> Expr:
        if name in _CALLS:
            return unary(UnOp(name), self.expr(arg))
        if name not in list(DType):
            _fail(node, f"there is no function '{name}'")
        dtype = DType(name)
        literal = _literal(arg)
        return cast(dtype, self.expr(arg)) if literal is None else const(literal, dtype)


def _literal(node: ast.expr) -> int | float | None:
    match node:
        case ast.Constant(value=int(number) | float(number)):
            return number
        case ast.Name(id="inf" | "nan" as word):
            return float(word)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value = _literal(operand)
            return None if value is None else -value
    return None


def _fail(node: ast.expr, reason: str) -> NoReturn:
    raise UserError(detail=f"IR text, line {node.lineno}: {reason}: {ast.unparse(node)}")


_UNARY: dict[type[ast.AST], UnOp] = {
    ast.USub: UnOp.NEG,
    ast.Not: UnOp.NOT,
    ast.Invert: UnOp.INVERT,
}
_BINARY: dict[type[ast.AST], BinOp] = {
    ast.Add: BinOp.ADD,
    ast.Sub: BinOp.SUB,
    ast.Mult: BinOp.MUL,
    ast.Div: BinOp.DIV,
    ast.FloorDiv: BinOp.FLOORDIV,
    ast.Mod: BinOp.MOD,
    ast.Pow: BinOp.POW,
    ast.Lt: BinOp.LT,
    ast.LtE: BinOp.LE,
    ast.Eq: BinOp.EQ,
    ast.NotEq: BinOp.NE,
    ast.And: BinOp.AND,
    ast.Or: BinOp.OR,
    ast.BitAnd: BinOp.BITAND,
    ast.BitOr: BinOp.BITOR,
    ast.BitXor: BinOp.BITXOR,
    ast.LShift: BinOp.SHL,
    ast.RShift: BinOp.SHR,
}
