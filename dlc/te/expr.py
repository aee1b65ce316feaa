"""Scalar expressions: the one language of sizes, tensor expressions, loop IR and codegen.

Every node is an immutable value: `==` is structural, nodes hash and pickle, and a node with
operands of the wrong type cannot be built. `Expr` is a closed union, so `match` ending in
`assert_never` lets mypy find every place a new node must go.

Meaning, which every backend must keep:

- `//` and `%` round toward minus infinity, `/` of integers toward zero. Index arithmetic
  (`DType.INDEX`) never overflows.
- Integer arithmetic of other types wraps around at the width of the type.
- Float arithmetic is rounded at each operation; it is never reassociated, but `a * b + c` may be
  contracted into one rounding.
- `max` and `min` give NaN when either operand is NaN. Comparisons with NaN are False, `!=` True.
- `Select` evaluates only the chosen arm, so it may guard a load that would be out of bounds.
- A cast from float to integer truncates toward zero; out of range it saturates, NaN gives 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from dlc.core.errors import InternalError
from dlc.core.types import INDEX, DType
from dlc.te.operators import COMPARISONS as COMPARISONS
from dlc.te.operators import LOGICAL as LOGICAL
from dlc.te.operators import BinOp as BinOp
from dlc.te.operators import UnOp as UnOp
from dlc.te.operators import fold_ints as fold_ints


class _Sugar:
    """Python operators build nodes; plain numbers take the other side's type."""

    __slots__ = ("_hash", "_loads", "_names")  # once asked for; not part of the value
    _hash: int
    _loads: tuple[Load, ...]
    _names: frozenset[str]
    __match_args__: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        raise InternalError(detail=f"an expression has no truth value: {self}")

    def __add__(self, other: ExprLike) -> Expr:
        return _join(BinOp.ADD, self, other)

    def __radd__(self, other: int | float) -> Expr:
        return _join_right(BinOp.ADD, other, self)

    def __sub__(self, other: ExprLike) -> Expr:
        return _join(BinOp.SUB, self, other)

    def __rsub__(self, other: int | float) -> Expr:
        return _join_right(BinOp.SUB, other, self)

    def __mul__(self, other: ExprLike) -> Expr:
        return _join(BinOp.MUL, self, other)

    def __rmul__(self, other: int | float) -> Expr:
        return _join_right(BinOp.MUL, other, self)

    def __truediv__(self, other: ExprLike) -> Expr:
        return _join(BinOp.DIV, self, other)

    def __rtruediv__(self, other: int | float) -> Expr:
        return _join_right(BinOp.DIV, other, self)

    def __floordiv__(self, other: ExprLike) -> Expr:
        return _join(BinOp.FLOORDIV, self, other)

    def __mod__(self, other: ExprLike) -> Expr:
        return _join(BinOp.MOD, self, other)

    def __lt__(self, other: ExprLike) -> Expr:
        return _join(BinOp.LT, self, other)

    def __le__(self, other: ExprLike) -> Expr:
        return _join(BinOp.LE, self, other)

    def __gt__(self, other: ExprLike) -> Expr:
        return _join(BinOp.LT, wrap(other, like=_expr(self)), self)

    def __ge__(self, other: ExprLike) -> Expr:
        return _join(BinOp.LE, wrap(other, like=_expr(self)), self)

    def __neg__(self) -> Expr:
        return unary(UnOp.NEG, _expr(self))

    def __str__(self) -> str:
        from dlc.te.text import print_expr  # the printer imports this module

        return print_expr(_expr(self))


_BOOL = DType.BOOL


def _hash_once(*fields: str) -> Callable[[_Sugar], int]:
    """The hash of a node, kept: a deep tree would be walked at each look-up otherwise."""
    values = attrgetter(*fields)

    def hash_(node: _Sugar) -> int:
        try:
            return node._hash
        except AttributeError:
            object.__setattr__(node, "_hash", hash(values(node)))
            return node._hash

    return hash_


@dataclass(frozen=True, slots=True)
class Const(_Sugar):
    """A literal."""

    value: int | float | bool
    dtype: DType

    def __post_init__(self) -> None:
        kind = float if self.dtype.is_float else bool if self.dtype is DType.BOOL else int
        if type(self.value) is not kind:
            raise InternalError(detail=f"{self.value!r} is no constant of type {self.dtype}")

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Const) or self.dtype is not other.dtype:
            return False
        # -0.0 differs from 0.0, and NaN equals NaN: constants are compared as spelled.
        if self.dtype.is_float:
            return repr(self.value) == repr(other.value)
        return self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value) if self.value == self.value else 0  # each NaN has a hash of its own


@dataclass(frozen=True, slots=True)
class Var(_Sugar):
    """A loop variable or a size variable, identified by its name."""

    name: str
    dtype: DType = INDEX

    def __hash__(self) -> int:
        return hash(self.name)


@dataclass(frozen=True, slots=True)
class Binary(_Sugar):
    """`a op b`, both operands of one type; bool for comparisons, else of that type."""

    op: BinOp
    a: Expr
    b: Expr
    dtype: DType = field(init=False, repr=False, compare=False)
    __hash__ = _hash_once("op", "a", "b")

    def __post_init__(self) -> None:
        dtype = self.a.dtype
        if dtype is not self.b.dtype:
            raise InternalError(detail=f"'{self.op}' joins {dtype} and {self.b.dtype}")
        if self.op in LOGICAL and dtype is not _BOOL:
            raise InternalError(detail=f"'{self.op}' joins {dtype}, not bool")
        object.__setattr__(self, "dtype", _BOOL if self.op in COMPARISONS else dtype)


_RESULTS = {UnOp.ISNAN: DType.BOOL, UnOp.LRINT: DType.I32}


@dataclass(frozen=True, slots=True)
class Unary(_Sugar):
    """`op a`; bool for `isnan`, i32 for `lrint`, else of the type of the operand."""

    op: UnOp
    a: Expr
    dtype: DType = field(init=False, repr=False, compare=False)
    __hash__ = _hash_once("op", "a")

    def __post_init__(self) -> None:
        if self.op is UnOp.LRINT and self.a.dtype is not DType.F32:
            raise InternalError(detail=f"'{self.op}' of {self.a.dtype}, not f32")
        object.__setattr__(self, "dtype", _RESULTS.get(self.op, self.a.dtype))


@dataclass(frozen=True, slots=True)
class Cast(_Sugar):
    """`a` converted to `dtype`; its operand is never a constant (see `cast`)."""

    dtype: DType
    a: Expr
    __hash__ = _hash_once("dtype", "a")

    def __post_init__(self) -> None:
        if isinstance(self.a, Const):
            raise InternalError(detail="a cast of a constant is a constant; use cast()")


@dataclass(frozen=True, slots=True)
class Select(_Sugar):
    """`then if cond else other`, of the type of both arms.

    Only the chosen arm is evaluated, so it may guard a load.
    """

    cond: Expr
    then: Expr
    other: Expr
    dtype: DType = field(init=False, repr=False, compare=False)
    __hash__ = _hash_once("cond", "then", "other")

    def __post_init__(self) -> None:
        if self.cond.dtype is not DType.BOOL:
            raise InternalError(detail=f"a choice by {self.cond.dtype}, not bool")
        if self.then.dtype is not self.other.dtype:
            raise InternalError(detail=f"a choice of {self.then.dtype} or {self.other.dtype}")
        object.__setattr__(self, "dtype", self.then.dtype)


@dataclass(frozen=True, slots=True)
class Load(_Sugar):
    """One element of a buffer."""

    buffer: str
    index: tuple[Expr, ...]
    dtype: DType
    __hash__ = _hash_once("buffer", "index", "dtype")

    def __post_init__(self) -> None:
        if any(i.dtype is not INDEX for i in self.index):
            raise InternalError(detail=f"'{self.buffer}' is indexed by something not an index")


Expr = Const | Var | Binary | Unary | Cast | Select | Load
ExprLike = Expr | int | float | bool

_EXTREMES = frozenset({BinOp.MIN, BinOp.MAX})
TRUE = Const(True, DType.BOOL)
FALSE = Const(False, DType.BOOL)
ZERO = Const(0, INDEX)
ONE = Const(1, INDEX)


def const(value: int | float | bool, dtype: DType) -> Const:
    """A constant of `dtype` from any Python number; floats become ints by truncation."""
    if dtype.is_float:
        return Const(float(value), dtype)
    return Const(bool(value) if dtype is DType.BOOL else int(value), dtype)


def index(value: ExprLike) -> Expr:
    """An index expression from an expression or an int."""
    return Const(value, INDEX) if isinstance(value, int) else _expr(value)


def wrap(value: ExprLike, *, like: Expr) -> Expr:
    """Turn a Python number into a constant of the type of `like`."""
    return const(value, like.dtype) if isinstance(value, int | float) else value


def cast(dtype: DType, a: Expr) -> Expr:
    """Convert to another type; constants are converted here."""
    if a.dtype is dtype:
        return a
    if isinstance(a, Cast) and a.a.dtype is dtype and _holds(a.dtype, dtype):
        return a.a
    if isinstance(a, Const) and not (isinstance(a.value, float) and not math.isfinite(a.value)):
        return const(a.value, dtype)
    if isinstance(a, Const):
        return const(a.value if dtype.is_float else 0, dtype)
    return Cast(dtype, a)


def _holds(wide: DType, dtype: DType) -> bool:
    """Whether a floating type has every value of a smaller one of 16 bits."""
    return wide in (DType.F32, DType.F64) and dtype in (DType.F16, DType.BF16)


def select(cond: Expr, then: ExprLike, other: ExprLike) -> Expr:
    """`then if cond else other`; at least one arm must be an expression."""
    if isinstance(then, int | float):
        assert not isinstance(other, int | float), "a choice of two numbers has no type"
        then = wrap(then, like=other)
    other = wrap(other, like=then)
    if isinstance(cond, Const):
        return then if cond.value else other
    return Select(cond, then, other)


def unary(op: UnOp, a: Expr) -> Expr:
    """`op a`."""
    if op is UnOp.NEG and isinstance(a, Const) and a.dtype is not DType.BOOL:
        return const(-a.value, a.dtype)
    if op is UnOp.NOT and isinstance(a, Const):
        return Const(not a.value, DType.BOOL)
    if op is UnOp.FLUSH and isinstance(a, Unary) and a.op is op:
        return a
    return Unary(op, a)


def binary(op: BinOp, a: ExprLike, b: ExprLike) -> Expr:
    """`a op b`; at least one operand must be an expression. Trivial index sums are folded."""
    if isinstance(a, int | float):
        assert not isinstance(b, int | float), "an operation on two numbers has no type"
        return _join(op, wrap(a, like=b), b)
    return _join(op, a, b)


def minimum(a: ExprLike, b: ExprLike) -> Expr:
    """min(a, b), NaN if either is."""
    return binary(BinOp.MIN, a, b)


def maximum(a: ExprLike, b: ExprLike) -> Expr:
    """max(a, b), NaN if either is."""
    return binary(BinOp.MAX, a, b)


def ceil_div(size: Expr, step: ExprLike) -> Expr:
    """A size divided by a step, rounded up."""
    return (size + (step - 1)) // step


def both(a: Expr, b: Expr) -> Expr:
    """`a and b`, without the part that is surely true."""
    if a == TRUE or b == FALSE:
        return b
    return a if b == TRUE or a == FALSE else Binary(BinOp.AND, a, b)


def either(a: Expr, b: Expr) -> Expr:
    """`a or b`, without the part that is surely false."""
    if a == FALSE or b == TRUE:
        return b
    return a if b == FALSE or a == TRUE else Binary(BinOp.OR, a, b)


def equal(a: Expr, b: ExprLike) -> Expr:
    """`a == b` as an expression (Python's `==` compares structure)."""
    return _join(BinOp.EQ, a, b)


# A table, which takes a fraction of the time of a `match`: every walk asks at every node.
_OPERANDS: dict[type[_Sugar], Callable[[Any], tuple[Expr, ...]]] = {
    Const: lambda _: (),
    Var: lambda _: (),
    Binary: attrgetter("a", "b"),
    Unary: lambda node: (node.a,),
    Cast: lambda node: (node.a,),
    Select: attrgetter("cond", "then", "other"),
    Load: attrgetter("index"),
}


def children(expr: Expr) -> tuple[Expr, ...]:
    """The direct operands of a node, left to right."""
    return _OPERANDS[type(expr)](expr)


def _expr(value: object) -> Expr:
    assert isinstance(value, Expr)
    return value


def _join_right(op: BinOp, a: int | float, b: _Sugar) -> Expr:
    return _join(op, wrap(a, like=_expr(b)), b)


def _join(op: BinOp, left: object, right: object) -> Expr:
    a = _expr(left)
    b = wrap(right, like=a) if isinstance(right, int | float) else _expr(right)
    if a.dtype is INDEX and b.dtype is INDEX:
        return _fold_index(op, a, b)
    return Binary(op, a, b)


def _fold_index(op: BinOp, a: Expr, b: Expr) -> Expr:
    """Fold what is trivial, so that IR text stays readable; `te.simplify` does the rest."""
    left = a.value if isinstance(a, Const) else None
    right = b.value if isinstance(b, Const) else None
    if left is not None and right is not None:
        folded = fold_ints(op, int(left), int(right))
        if folded is not None:
            return const(folded, DType.BOOL if isinstance(folded, bool) else INDEX)
    if left is None and right is None:
        return a if op in _EXTREMES and a == b else Binary(op, a, b)
    match op:
        case BinOp.ADD if left == 0:
            return b
        case BinOp.ADD | BinOp.SUB if right == 0:
            return a
        case BinOp.MUL if left == 0 or right == 1:
            return a
        case BinOp.MUL if right == 0 or left == 1:
            return b
        case BinOp.FLOORDIV if right == 1:
            return a
        case BinOp.MOD if right == 1:
            return ZERO
    return Binary(op, a, b)
