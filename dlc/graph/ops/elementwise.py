"""Operators on each element by itself. The two base classes hold everything but the formula."""

from __future__ import annotations

import math
from typing import ClassVar

import ml_dtypes
import numpy as np

from dlc.core.types import FLOATS, NARROW, UNSIGNED, DType
from dlc.graph.arrays import NUMPY_DTYPES, round_to
from dlc.graph.assume import differs
from dlc.graph.op import Array, Fuse, Op, as_f64, op
from dlc.graph.ops.precision import widen
from dlc.te import tensor as te
from dlc.te.expr import Expr, UnOp, cast, const, either, equal, select, unary
from dlc.te.types import Shape, TensorType, is_const

ANY = frozenset(DType) - {DType.INDEX}
NUMBERS = ANY - NARROW - {DType.BOOL, DType.STR}
SIGNED = NUMBERS - UNSIGNED
INTEGERS = NUMBERS - FLOATS
BOOLS = frozenset({DType.BOOL})


def broadcast(op: Op, *operands: TensorType) -> Shape:
    """The common shape of operands; refuses sizes that surely do not fit."""
    shape = te.broadcast_shape([t.shape for t in operands])
    for operand in operands:
        for have, want in zip(reversed(operand.shape), reversed(shape), strict=False):
            if have != want and not is_const(have, 1) and differs(have, want):
                raise op.reject(f"sizes {have} and {want} do not broadcast", *operands)
    return shape


def check_dtype(op: Op, accepted: frozenset[DType], *operands: TensorType) -> None:
    """Refuse operands of a type that is not accepted, or of different types."""
    for operand in operands:
        if operand.dtype not in accepted:
            raise op.reject(f"elements of type {operand.dtype} are not accepted", *operands)
        if operand.dtype is not operands[0].dtype:
            raise op.reject("the operands differ in their element type", *operands)


class Unary(Op):
    """`formula` of each element; `exact` is the same in NumPy."""

    accepts: ClassVar[frozenset[DType]] = FLOATS
    result: ClassVar[DType | None] = None
    """The element type of the result, where it is not the operand's."""

    def formula(self, v: Expr) -> Expr:
        """One element of the result."""
        raise NotImplementedError

    def exact(self, x: Array) -> Array:
        """All elements of the result, floats in float64."""
        raise NotImplementedError

    def infer(self, x: TensorType) -> TensorType:
        check_dtype(self, self.accepts, x)
        return TensorType(x.shape, self.result or x.dtype)

    def compute(self, x: te.Tensor) -> te.Tensor:
        dtype = self.result or x.dtype
        return te.elementwise(self.name, lambda v: cast(dtype, self.formula(widen(v))), x)

    def reference(self, x: Array) -> Array:
        with np.errstate(all="ignore"):
            return self.exact(*as_f64(x))


@op("identity", fuse=Fuse.ELEMENTWISE, onnx="Identity")
class Identity(Op):
    """The operand itself."""

    def infer(self, x: TensorType) -> TensorType:
        return x

    def compute(self, x: te.Tensor) -> te.Tensor:
        return te.elementwise(self.name, lambda v: v, x)

    def reference(self, x: Array) -> Array:
        return x


@op("cast", fuse=Fuse.ELEMENTWISE)
class Cast(Op):
    """Elements in another type.

    Floats become integers by truncation toward zero; NaN becomes 0 and what is out of range the
    nearest value in range. Integers wrap around. Anything but zero (NaN too) becomes True.
    """

    to: DType

    def infer(self, x: TensorType) -> TensorType:
        if (x.dtype is DType.STR) is not (self.to is DType.STR):
            raise self.reject(f"{self.to} is not made of {x.dtype}", x)
        return TensorType(x.shape, self.to)

    def compute(self, x: te.Tensor) -> te.Tensor:
        return te.elementwise(self.name, self._convert, x)

    def _convert(self, v: Expr) -> Expr:
        if v.dtype is self.to:
            return v
        if self.to is DType.BOOL:
            return unary(UnOp.NOT, equal(widen(v), 0))
        if v.dtype is DType.BOOL:
            return select(v, const(1, self.to), const(0, self.to))
        return cast(self.to, v)

    def reference(self, x: Array) -> Array:
        (x,) = as_f64(x)
        with np.errstate(all="ignore"):
            if self.to.is_float:
                return round_to(x, self.to).astype(np.float64)
            if self.to is DType.BOOL or x.dtype.kind != "f":
                return as_f64(x.astype(NUMPY_DTYPES[self.to]))[0]
            return as_f64(_saturated(x, self.to))[0]


def _saturated(x: Array, dtype: DType) -> Array:
    limits = ml_dtypes.iinfo(NUMPY_DTYPES[dtype])  # type: ignore[no-untyped-call]
    inside = np.where(np.isnan(x) | (x >= limits.max) | (x <= limits.min), 0, x)
    result = np.trunc(inside).astype(NUMPY_DTYPES[dtype])
    result = np.where(x >= limits.max, limits.max, result)
    return np.asarray(np.where(x <= limits.min, limits.min, result), NUMPY_DTYPES[dtype])


@op("logical_not", fuse=Fuse.ELEMENTWISE, onnx="Not")
class Not(Unary):
    """True where x is False."""

    accepts = BOOLS

    def formula(self, v: Expr) -> Expr:
        return unary(UnOp.NOT, v)

    def exact(self, x: Array) -> Array:
        return np.logical_not(x)


@op("bitwise_not", fuse=Fuse.ELEMENTWISE, onnx="BitwiseNot")
class BitwiseNot(Unary):
    """Every bit inverted."""

    accepts = INTEGERS

    def formula(self, v: Expr) -> Expr:
        return unary(UnOp.INVERT, v)

    def exact(self, x: Array) -> Array:
        return np.invert(x)


@op("isnan", fuse=Fuse.ELEMENTWISE)
class IsNaN(Unary):
    """True where x is not a number."""

    result = DType.BOOL

    def formula(self, v: Expr) -> Expr:
        return unary(UnOp.ISNAN, v)

    def exact(self, x: Array) -> Array:
        return np.isnan(x)


@op("nan_to_zero", fuse=Fuse.ELEMENTWISE)
class NanToZero(Unary):
    """0 where x is not a number, else x."""

    def formula(self, v: Expr) -> Expr:
        return select(unary(UnOp.ISNAN, v), const(0, v.dtype), v)

    def exact(self, x: Array) -> Array:
        return np.where(np.isnan(x), 0, x)


@op("isinf", fuse=Fuse.ELEMENTWISE)
class IsInf(Unary):
    """True where x is an infinity of a sign that is looked for."""

    result = DType.BOOL
    detect_negative: int = 1
    detect_positive: int = 1

    def formula(self, v: Expr) -> Expr:
        found: Expr = const(False, DType.BOOL)
        if self.detect_negative:
            found = either(found, equal(v, -math.inf))
        if self.detect_positive:
            found = either(found, equal(v, math.inf))
        return found

    def exact(self, x: Array) -> Array:
        negative, positive = self.detect_negative != 0, self.detect_positive != 0
        return (np.isneginf(x) & negative) | (np.isposinf(x) & positive)


class Intrinsic(Unary):
    """A scalar function that te has."""

    function: ClassVar[UnOp]

    def formula(self, v: Expr) -> Expr:
        return unary(self.function, v)


@op("exp", fuse=Fuse.ELEMENTWISE, onnx="Exp")
class Exp(Intrinsic):
    """e to the power of x."""

    function = UnOp.EXP

    def exact(self, x: Array) -> Array:
        return np.exp(x)


@op("log", fuse=Fuse.ELEMENTWISE, onnx="Log")
class Log(Intrinsic):
    """The natural logarithm; NaN below 0, -inf at 0."""

    function = UnOp.LOG

    def exact(self, x: Array) -> Array:
        return np.log(x)


@op("sqrt", fuse=Fuse.ELEMENTWISE, onnx="Sqrt")
class Sqrt(Intrinsic):
    """The square root; NaN below 0."""

    function = UnOp.SQRT

    def exact(self, x: Array) -> Array:
        return np.sqrt(x)


@op("erf", fuse=Fuse.ELEMENTWISE, onnx="Erf")
class Erf(Intrinsic):
    """The error function."""

    function = UnOp.ERF

    def exact(self, x: Array) -> Array:
        return exact_erf(x)


def exact_erf(x: Array) -> Array:
    """The error function in float64."""
    return np.asarray(np.vectorize(math.erf, otypes=[np.float64])(x))


@op("sin", fuse=Fuse.ELEMENTWISE, onnx="Sin")
class Sin(Intrinsic):
    """The sine."""

    function = UnOp.SIN

    def exact(self, x: Array) -> Array:
        return np.sin(x)


@op("cos", fuse=Fuse.ELEMENTWISE, onnx="Cos")
class Cos(Intrinsic):
    """The cosine."""

    function = UnOp.COS

    def exact(self, x: Array) -> Array:
        return np.cos(x)


@op("tanh", fuse=Fuse.ELEMENTWISE, onnx="Tanh")
class Tanh(Intrinsic):
    """The hyperbolic tangent."""

    function = UnOp.TANH

    def exact(self, x: Array) -> Array:
        return np.tanh(x)


@op("floor", fuse=Fuse.ELEMENTWISE, onnx="Floor")
class Floor(Intrinsic):
    """The largest whole number not above x."""

    function = UnOp.FLOOR

    def exact(self, x: Array) -> Array:
        return np.floor(x)


@op("ceil", fuse=Fuse.ELEMENTWISE, onnx="Ceil")
class Ceil(Intrinsic):
    """The smallest whole number not below x."""

    function = UnOp.CEIL

    def exact(self, x: Array) -> Array:
        return np.ceil(x)


@op("round", fuse=Fuse.ELEMENTWISE, onnx="Round")
class Round(Intrinsic):
    """The nearest whole number; halves go to the even one."""

    function = UnOp.ROUND

    def exact(self, x: Array) -> Array:
        return np.round(x)


@op("abs", fuse=Fuse.ELEMENTWISE, onnx="Abs")
class Abs(Intrinsic):
    """The magnitude."""

    function = UnOp.ABS
    accepts = NUMBERS

    def formula(self, v: Expr) -> Expr:
        return v if v.dtype in UNSIGNED else unary(self.function, v)

    def exact(self, x: Array) -> Array:
        return np.abs(x)


@op("neg", fuse=Fuse.ELEMENTWISE, onnx="Neg")
class Neg(Intrinsic):
    """-x."""

    function = UnOp.NEG
    accepts = SIGNED

    def exact(self, x: Array) -> Array:
        return np.negative(x)


@op("sign", fuse=Fuse.ELEMENTWISE, onnx="Sign")
class Sign(Unary):
    """-1, 0 or 1; NaN for NaN."""

    accepts = NUMBERS

    def formula(self, v: Expr) -> Expr:
        positive = select(v > 0, 1, v)
        return positive if v.dtype in UNSIGNED else select(v < 0, -1, positive)

    def exact(self, x: Array) -> Array:
        return np.sign(x)


@op("reciprocal", fuse=Fuse.ELEMENTWISE, onnx="Reciprocal")
class Reciprocal(Unary):
    """1 / x."""

    def formula(self, v: Expr) -> Expr:
        return 1.0 / v

    def exact(self, x: Array) -> Array:
        return 1.0 / x


@op("sinh", fuse=Fuse.ELEMENTWISE, onnx="Sinh")
class Sinh(Unary):
    """The hyperbolic sine: (e - 1 / e) / 2 with e = exp(x); from tanh where that cancels."""

    def formula(self, v: Expr) -> Expr:
        # exp(x / 2) twice, because exp(x) overflows before sinh(x) does.
        half = unary(UnOp.EXP, unary(UnOp.ABS, v) * 0.5)
        tanh = unary(UnOp.TANH, v * 0.5)
        small = tanh * 2.0 / (1.0 - tanh * tanh)
        large = select(v < 0, -0.5 * half, 0.5 * half) * half
        return select(unary(UnOp.ABS, v) < 1.0, small, large - 0.25 / large)

    def exact(self, x: Array) -> Array:
        return np.sinh(x)


@op("cosh", fuse=Fuse.ELEMENTWISE, onnx="Cosh")
class Cosh(Unary):
    """The hyperbolic cosine: (e + 1 / e) / 2 with e = exp(x)."""

    def formula(self, v: Expr) -> Expr:
        half = unary(UnOp.EXP, unary(UnOp.ABS, v) * 0.5)  # exp(x) overflows before cosh(x)
        return 0.5 * half * half + 0.5 / half / half

    def exact(self, x: Array) -> Array:
        return np.cosh(x)
