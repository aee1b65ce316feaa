"""Operators on elements of several operands that broadcast together, as NumPy and ONNX do."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from dlc.core.types import FLOATS, UNSIGNED, DType
from dlc.graph.assume import differs
from dlc.graph.op import Array, Fuse, Op, as_f64, op
from dlc.graph.ops.elementwise import (
    ANY,
    BOOLS,
    INTEGERS,
    NUMBERS,
    broadcast,
    check_dtype,
)
from dlc.graph.ops.precision import widen
from dlc.te import tensor as te
from dlc.te.expr import BinOp, Expr, UnOp, binary, both, cast, const, equal, select, unary
from dlc.te.types import TensorType, is_const


class Binary(Op):
    """`formula` of two elements; `exact` is the same in NumPy."""

    accepts: ClassVar[frozenset[DType]] = NUMBERS
    result: ClassVar[DType | None] = None
    """The element type of the result, where it is not the operands'."""
    function: ClassVar[BinOp]

    def formula(self, a: Expr, b: Expr) -> Expr:
        """One element of the result."""
        return binary(self.function, a, b)

    def exact(self, a: Array, b: Array) -> Array:
        """All elements of the result, floats in float64."""
        raise NotImplementedError

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        check_dtype(self, self.accepts, a, b)
        return TensorType(broadcast(self, a, b), self.result or a.dtype)

    def compute(self, a: te.Tensor, b: te.Tensor) -> te.Tensor:
        dtype = self.result or a.dtype
        return te.elementwise(
            self.name, lambda u, v: cast(dtype, self.formula(widen(u), widen(v))), a, b
        )

    def reference(self, a: Array, b: Array) -> Array:
        with np.errstate(all="ignore"):
            return self.exact(*as_f64(a, b))


@op("add", fuse=Fuse.ELEMENTWISE, onnx="Add")
class Add(Binary):
    """a + b."""

    function = BinOp.ADD

    def exact(self, a: Array, b: Array) -> Array:
        return np.add(a, b)


@op("sub", fuse=Fuse.ELEMENTWISE, onnx="Sub")
class Sub(Binary):
    """a - b."""

    function = BinOp.SUB

    def exact(self, a: Array, b: Array) -> Array:
        return np.subtract(a, b)


@op("mul", fuse=Fuse.ELEMENTWISE, onnx="Mul")
class Mul(Binary):
    """a * b."""

    function = BinOp.MUL

    def exact(self, a: Array, b: Array) -> Array:
        return np.multiply(a, b)


@op("div", fuse=Fuse.ELEMENTWISE, onnx="Div")
class Div(Binary):
    """a / b; of integers the whole part, and 0 where b is 0 (ONNX leaves that open)."""

    function = BinOp.DIV

    def formula(self, a: Expr, b: Expr) -> Expr:
        return a / b if a.dtype in FLOATS else select(equal(b, 0), 0, a / b)

    def exact(self, a: Array, b: Array) -> Array:
        if a.dtype.kind == "f":
            return np.divide(a, b)
        quotient = np.floor_divide(a, np.where(b == 0, np.asarray(1, b.dtype), b))
        inexact = (quotient * b != a) & (quotient < 0)
        rounded = quotient + inexact.astype(quotient.dtype)
        return np.where(b == 0, np.asarray(0, a.dtype), rounded)


@op("mod", fuse=Fuse.ELEMENTWISE, onnx="Mod")
class Mod(Binary):
    """The remainder of a / b: with the sign of b, or of a where `fmod` is set.

    Of integers 0 where b is 0 (ONNX leaves that open).

    Source: https://onnx.ai/onnx/operators/onnx__Mod.html
    """

    fmod: int = 0

    def formula(self, a: Expr, b: Expr) -> Expr:
        if a.dtype in FLOATS and self.fmod:
            size = binary(BinOp.MOD, unary(UnOp.ABS, a), unary(UnOp.ABS, b))
            return select(a < 0, -size, size)
        if a.dtype in FLOATS:
            return a % b
        rest = a - a / b * b if self.fmod else a % b
        return select(equal(b, 0), 0, rest)

    def exact(self, a: Array, b: Array) -> Array:
        rest = np.fmod if self.fmod else np.mod
        if a.dtype.kind == "f":
            return rest(a, b)
        divisor = np.where(b == 0, np.asarray(1, b.dtype), b)
        return np.where(b == 0, np.asarray(0, a.dtype), rest(a, divisor))


@op("pow", fuse=Fuse.ELEMENTWISE)
class Pow(Binary):
    """a to the power of b; of integers by way of float64, rounded."""

    def formula(self, a: Expr, b: Expr) -> Expr:
        if a.dtype in FLOATS:
            return binary(BinOp.POW, a, b)
        power = binary(BinOp.POW, cast(DType.F64, a), cast(DType.F64, b))
        return cast(a.dtype, unary(UnOp.ROUND, power))  # a power is right to a few digits only

    def exact(self, a: Array, b: Array) -> Array:
        power = np.power(a.astype(np.float64), b.astype(np.float64))
        return power if a.dtype.kind == "f" else np.round(power).astype(a.dtype)


@op("minimum", fuse=Fuse.ELEMENTWISE)
class Minimum(Binary):
    """The smaller of a and b; NaN if either is."""

    function = BinOp.MIN

    def exact(self, a: Array, b: Array) -> Array:
        return np.minimum(a, b)


@op("maximum", fuse=Fuse.ELEMENTWISE)
class Maximum(Binary):
    """The larger of a and b; NaN if either is."""

    function = BinOp.MAX

    def exact(self, a: Array, b: Array) -> Array:
        return np.maximum(a, b)


@op("equal", fuse=Fuse.ELEMENTWISE, onnx="Equal")
class Equal(Binary):
    """a == b."""

    accepts = ANY
    result = DType.BOOL
    function = BinOp.EQ

    def exact(self, a: Array, b: Array) -> Array:
        return np.equal(a, b)


@op("less", fuse=Fuse.ELEMENTWISE, onnx="Less")
class Less(Binary):
    """a < b."""

    result = DType.BOOL
    function = BinOp.LT

    def exact(self, a: Array, b: Array) -> Array:
        return np.less(a, b)


@op("less_equal", fuse=Fuse.ELEMENTWISE, onnx="LessOrEqual")
class LessEqual(Binary):
    """a <= b."""

    result = DType.BOOL
    function = BinOp.LE

    def exact(self, a: Array, b: Array) -> Array:
        return np.less_equal(a, b)


@op("greater", fuse=Fuse.ELEMENTWISE, onnx="Greater")
class Greater(Binary):
    """a > b."""

    result = DType.BOOL

    def formula(self, a: Expr, b: Expr) -> Expr:
        return b < a

    def exact(self, a: Array, b: Array) -> Array:
        return np.greater(a, b)


@op("greater_equal", fuse=Fuse.ELEMENTWISE, onnx="GreaterOrEqual")
class GreaterEqual(Binary):
    """a >= b."""

    result = DType.BOOL

    def formula(self, a: Expr, b: Expr) -> Expr:
        return b <= a

    def exact(self, a: Array, b: Array) -> Array:
        return np.greater_equal(a, b)


@op("logical_and", fuse=Fuse.ELEMENTWISE, onnx="And")
class And(Binary):
    """True where both are."""

    accepts = BOOLS
    function = BinOp.AND

    def exact(self, a: Array, b: Array) -> Array:
        return np.logical_and(a, b)


@op("logical_or", fuse=Fuse.ELEMENTWISE, onnx="Or")
class Or(Binary):
    """True where either is."""

    accepts = BOOLS
    function = BinOp.OR

    def exact(self, a: Array, b: Array) -> Array:
        return np.logical_or(a, b)


@op("logical_xor", fuse=Fuse.ELEMENTWISE, onnx="Xor")
class Xor(Binary):
    """True where one of the two is."""

    accepts = BOOLS
    function = BinOp.NE

    def exact(self, a: Array, b: Array) -> Array:
        return np.logical_xor(a, b)


@op("bitwise_and", fuse=Fuse.ELEMENTWISE, onnx="BitwiseAnd")
class BitwiseAnd(Binary):
    """The bits that are set in both."""

    accepts = INTEGERS
    function = BinOp.BITAND

    def exact(self, a: Array, b: Array) -> Array:
        return np.bitwise_and(a, b)


@op("bitwise_or", fuse=Fuse.ELEMENTWISE, onnx="BitwiseOr")
class BitwiseOr(Binary):
    """The bits that are set in either."""

    accepts = INTEGERS
    function = BinOp.BITOR

    def exact(self, a: Array, b: Array) -> Array:
        return np.bitwise_or(a, b)


@op("bitwise_xor", fuse=Fuse.ELEMENTWISE, onnx="BitwiseXor")
class BitwiseXor(Binary):
    """The bits that are set in one of the two."""

    accepts = INTEGERS
    function = BinOp.BITXOR

    def exact(self, a: Array, b: Array) -> Array:
        return np.bitwise_xor(a, b)


@op("bit_shift", fuse=Fuse.ELEMENTWISE, onnx="BitShift")
class BitShift(Binary):
    """a with its bits moved by b places; the sign of a signed number is repeated to the right.

    Where b is negative, or the width or more, all bits are moved out.
    """

    accepts = INTEGERS
    direction: str

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        if self.direction not in ("LEFT", "RIGHT"):
            raise self.reject(f"there is no direction '{self.direction}'", a, b)
        return super().infer(a, b)

    def formula(self, a: Expr, b: Expr) -> Expr:
        shift = BinOp.SHL if self.direction == "LEFT" else BinOp.SHR
        inside = b < a.dtype.bits
        if a.dtype in UNSIGNED:
            return select(inside, binary(shift, a, b), 0)
        out: Expr = const(0, a.dtype)
        if self.direction == "RIGHT":
            out = select(a < 0, -1, out)
        return select(both(b >= 0, inside), binary(shift, a, b), out)

    def exact(self, a: Array, b: Array) -> Array:
        shift = np.left_shift if self.direction == "LEFT" else np.right_shift
        out = np.where((a < 0) & (self.direction == "RIGHT"), -1, 0)
        inside = (b >= 0) & (b < a.dtype.itemsize * 8)
        return np.where(inside, shift(a, np.where(inside, b, 0)), out).astype(a.dtype)


@op("where", fuse=Fuse.ELEMENTWISE, onnx="Where")
class Where(Op):
    """a where the condition holds, else b."""

    def infer(self, cond: TensorType, a: TensorType, b: TensorType) -> TensorType:
        if cond.dtype is not DType.BOOL:
            raise self.reject("the condition is not bool", cond, a, b)
        check_dtype(self, ANY, a, b)
        return TensorType(broadcast(self, cond, a, b), a.dtype)

    def compute(self, cond: te.Tensor, a: te.Tensor, b: te.Tensor) -> te.Tensor:
        return te.elementwise(self.name, select, cond, a, b)

    def reference(self, cond: Array, a: Array, b: Array) -> Array:
        a, b = as_f64(a, b)
        return np.where(cond, a, b)


@op("prelu", fuse=Fuse.ELEMENTWISE, onnx="PRelu")
class PRelu(Op):
    """x, below 0 slope * x; the slope is repeated to the shape of x."""

    def infer(self, x: TensorType, slope: TensorType) -> TensorType:
        check_dtype(self, NUMBERS, x, slope)
        broadcast(self, x, slope)
        pairs = zip(reversed(x.shape), reversed(slope.shape), strict=False)
        wider = any(not is_const(s, 1) and differs(n, s) for n, s in pairs)
        if slope.rank > x.rank or wider:
            raise self.reject("the slope is larger than x", x, slope)
        return x

    def compute(self, x: te.Tensor, slope: te.Tensor) -> te.Tensor:
        def formula(v: Expr, s: Expr) -> Expr:
            zero = const(0, widen(v).dtype)
            return cast(x.dtype, select(widen(v) < zero, widen(v) * widen(s), widen(v)))

        return te.elementwise(self.name, formula, x, slope)

    def reference(self, x: Array, slope: Array) -> Array:
        x, slope = as_f64(x, slope)
        with np.errstate(all="ignore"):
            return np.where(x < 0, x * slope, x)
