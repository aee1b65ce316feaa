"""Converters of operators that work element by element.

Source: https://onnx.ai/onnx/operators/
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np

from dlc.core.types import DType
from dlc.frontend.onnx.context import Context, Elements
from dlc.frontend.onnx.registry import converter
from dlc.graph.graph import Value
from dlc.graph.op import Op
from dlc.graph.ops import activation, binary
from dlc.graph.ops import elementwise as ops
from dlc.graph.ops.shape import Reshape
from dlc.te import expr as te
from dlc.te.expr import Expr
from dlc.te.simplify import surely_at_most, surely_less

Rule = Callable[[Expr, Expr], Expr | None]
"""The meaning of an operator on sizes; None where it is not sure."""


def _floordiv(a: Expr, b: Expr) -> Expr | None:
    """ONNX truncates; that is flooring where nothing is negative."""
    known = surely_at_most(0, a) and surely_less(0, b)
    return a // b if known else None


def _mod(a: Expr, b: Expr) -> Expr | None:
    return a % b if surely_less(0, b) else None


_BINARY: dict[str, tuple[type[Op], Rule | None]] = {
    "Add": (binary.Add, lambda a, b: a + b),
    "Sub": (binary.Sub, lambda a, b: a - b),
    "Mul": (binary.Mul, lambda a, b: a * b),
    "Div": (binary.Div, _floordiv),
    "Pow": (binary.Pow, None),
    "Equal": (binary.Equal, te.equal),
    "Less": (binary.Less, lambda a, b: a < b),
    "Greater": (binary.Greater, lambda a, b: a > b),
    "LessOrEqual": (binary.LessEqual, lambda a, b: a <= b),
    "GreaterOrEqual": (binary.GreaterEqual, lambda a, b: a >= b),
    "And": (binary.And, te.both),
    "Or": (binary.Or, te.either),
    "Xor": (binary.Xor, None),
}
_COMPARISONS = frozenset({"Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"})


def _on_sizes(ctx: Context, rule: Rule | None, a: Value, b: Value, dtype: DType) -> Value | None:
    """The result as size expressions, if both operands are and the rule is sure."""
    if rule is None:
        return None
    unsure = False

    def apply(x: Expr, y: Expr) -> Expr:
        nonlocal unsure
        found = rule(x, y) if x.dtype is y.dtype else None  # a truth may be a size or a load
        unsure = unsure or found is None
        return te.ZERO if found is None else found

    def all_of(x: Elements, y: Elements) -> Elements:
        nonlocal unsure
        unsure = unsure or any(
            1 != a != b != 1 for a, b in zip(x.shape[::-1], y.shape[::-1], strict=False)
        )
        if unsure:  # shapes that do not fit are the operator's to refuse
            return x
        return np.asarray(np.frompyfunc(apply, 2, 1)(x, y), np.object_)

    result = ctx.on_elements(all_of, a, b, dtype=dtype)
    return None if unsure else result


def _declare_binary(op_type: str, op: type[Op], rule: Rule | None) -> None:
    @converter(op_type, since=7)
    def convert(ctx: Context, a: Value, b: Value) -> Value:
        if a.type.dtype is not b.type.dtype:
            wanted = a.type.dtype
            y = ctx.call(op(), *_same_type(ctx, op_type, a, b))
            return y if y.type.dtype is wanted else ctx.call(ops.Cast(to=wanted), y)
        dtype = DType.BOOL if op_type in _COMPARISONS else a.type.dtype
        known = _on_sizes(ctx, rule, a, b, dtype)
        return known if known is not None else ctx.call(op(), a, b)

    @converter(op_type, since=1)
    def convert_legacy(
        ctx: Context, a: Value, b: Value, *, axis: int | None = None, broadcast: int = 0
    ) -> Value:
        return ctx.call(op(), a, _legacy_broadcast(ctx, a, b, axis) if broadcast else b)


def _same_type(ctx: Context, op_type: str, a: Value, b: Value) -> tuple[Value, Value]:
    """Pow alone lets its operands differ: the exponent takes the type of the base.

    An integer to the power of what may be a fraction is computed in f64, and back behind it.
    """
    if op_type != "Pow":
        ctx.refuse(f"its operands are {a.type.dtype} and {b.type.dtype}")
    exponent = ctx.array(b)
    whole = exponent is not None and np.array_equal(exponent, np.trunc(exponent))
    if b.type.dtype.is_float and not a.type.dtype.is_float and not whole:
        a = ctx.call(ops.Cast(to=DType.F64), a)
    return a, ctx.call(ops.Cast(to=a.type.dtype), b)


def _legacy_broadcast(ctx: Context, a: Value, b: Value, axis: int | None) -> Value:
    """Before opset 7 the second operand was aligned at `axis` of the first one."""
    if axis is None:
        return b
    start = axis + a.type.rank if axis < 0 else axis
    after = a.type.rank - start - b.type.rank
    if start < 0 or after < 0:
        ctx.refuse(f"axis {axis} leaves no room for the second operand")
    return ctx.call(Reshape(shape=(*b.type.shape, *[te.ONE] * after)), b)


for _op_type, (_op, _rule) in _BINARY.items():
    _declare_binary(_op_type, _op, _rule)


def _declare_variadic(op_type: str, op: type[Op], rule: Rule | None) -> None:
    @converter(op_type, since=1)
    def convert(ctx: Context, first: Value, *others: Value) -> Value:
        def join(a: Value, b: Value) -> Value:
            known = _on_sizes(ctx, rule, a, b, a.type.dtype)
            return known if known is not None else ctx.call(op(), a, b)

        return reduce(join, others, first) if others else ctx.call(ops.Identity(), first)


_declare_variadic("Sum", binary.Add, lambda a, b: a + b)
_declare_variadic("Max", binary.Maximum, te.maximum)
_declare_variadic("Min", binary.Minimum, te.minimum)


@converter("Mean", since=1)
def convert_mean(ctx: Context, first: Value, *others: Value) -> Value:
    """The mean of tensors, element by element."""
    total = reduce(lambda a, b: ctx.call(binary.Add(), a, b), others, first)
    return ctx.call(binary.Div(), total, ctx.scalar(1 + len(others), first.type.dtype))


@converter("Mod", since=10)
def convert_mod(ctx: Context, a: Value, b: Value, *, fmod: int = 0) -> Value:
    """The remainder; its sign is the divisor's, or the dividend's where `fmod` is set."""
    known = None if fmod else _on_sizes(ctx, _mod, a, b, a.type.dtype)
    if known is not None:
        return known
    return ctx.call(binary.Mod(fmod=fmod), a, b)


@converter("Where", since=9)
def convert_where(ctx: Context, cond: Value, a: Value, b: Value) -> Value:
    """`a` where `cond` holds, else `b`."""
    known = ctx.on_elements(
        lambda c, x, y: np.asarray(np.frompyfunc(te.select, 3, 1)(c, x, y), np.object_),
        cond, a, b, dtype=a.type.dtype,
    )  # fmt: skip
    return known if known is not None else ctx.call(binary.Where(), cond, a, b)


@converter("Not", since=1)
def convert_not(ctx: Context, x: Value) -> Value:
    """Logical not."""
    known = ctx.on_elements(
        lambda e: np.asarray(
            np.frompyfunc(lambda a: te.unary(te.UnOp.NOT, a), 1, 1)(e), np.object_
        ),
        x,
    )
    return known if known is not None else ctx.call(ops.Not(), x)


@converter("Neg", since=1)
def convert_neg(ctx: Context, x: Value) -> Value:
    """The negative."""
    known = ctx.on_elements(lambda e: -e, x)
    return known if known is not None else ctx.call(ops.Neg(), x)


def _declare_rounding(op_type: str, op: type[Op]) -> None:
    @converter(op_type, since=1)
    def convert(ctx: Context, x: Value) -> Value:
        return x if ctx.is_symbolic(x) else ctx.call(op(), x)  # sizes are whole already


_declare_rounding("Floor", ops.Floor)
_declare_rounding("Ceil", ops.Ceil)
_declare_rounding("Round", ops.Round)


@converter("Identity", since=1)
def convert_identity(ctx: Context, x: Value) -> Value:
    """The value itself."""
    return x


@converter("Clip", since=1)
def convert_clip_attributes(
    ctx: Context, x: Value, *, min: float | None = None, max: float | None = None
) -> Value:
    """Bounds as attributes, until opset 11; they are floats, and so is the operand."""
    if not x.type.dtype.is_float:
        ctx.refuse(f"bounds of elements of type {x.type.dtype}")
    return ctx.call(activation.Clip(min=min, max=max), x)


@converter("Clip", since=11)
def convert_clip(
    ctx: Context, x: Value, low: Value | None = None, high: Value | None = None
) -> Value:
    """Bounds as operands."""
    bounds = [None if v is None else ctx.array(v) for v in (low, high)]
    constant = all((v is None) == (b is None) for v, b in zip((low, high), bounds, strict=True))
    if constant and x.type.dtype.is_float:
        if any(b is not None and b.size != 1 for b in bounds):
            ctx.refuse("its bounds must be scalars")
        numbers = [None if b is None else float(b.reshape(())) for b in bounds]
        return ctx.call(activation.Clip(min=numbers[0], max=numbers[1]), x)
    if low is not None:
        x = ctx.call(binary.Maximum(), x, low)
    return ctx.call(binary.Minimum(), x, high) if high is not None else x


@converter("Gelu", since=20)
def convert_gelu(ctx: Context, x: Value, *, approximate: str = "none") -> Value:
    """Gaussian error linear unit."""
    if approximate not in ("none", "tanh"):
        ctx.refuse(f"approximate = '{approximate}' is not known")
    return ctx.call(activation.Gelu(approximate=approximate), x)


@converter("Swish", since=24)
def convert_swish(ctx: Context, x: Value, *, alpha: float = 1.0) -> Value:
    """X * sigmoid(alpha * x)."""
    return ctx.call(activation.Silu(alpha=alpha), x)


@converter("PRelu", since=7)
def convert_prelu(ctx: Context, x: Value, slope: Value) -> Value:
    """The operand, or slope * x where x is negative."""
    return ctx.call(binary.PRelu(), x, slope)


@converter("PRelu", since=1)
def convert_prelu_legacy(ctx: Context, x: Value, slope: Value) -> Value:
    """Before opset 7 a vector of slopes belonged to the channels."""
    if slope.type.rank == 1 and x.type.rank > 2:
        shape = (*slope.type.shape, *[te.ONE] * (x.type.rank - 2))
        slope = ctx.call(Reshape(shape=shape), slope)
    return ctx.call(binary.PRelu(), x, slope)


def axes_of(ctx: Context, axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Axes counted from the front."""
    for axis in axes:
        if not -rank <= axis < rank:
            ctx.refuse(f"axis {axis} does not exist in rank {rank}")
    return tuple(axis % rank for axis in axes)
