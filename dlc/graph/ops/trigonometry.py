"""Inverse trigonometric and hyperbolic functions, from functions that te has."""

from __future__ import annotations

import math

import numpy as np

from dlc.core.types import DType
from dlc.graph.op import Array, Fuse, op
from dlc.graph.ops.elementwise import Unary
from dlc.te.expr import Expr, UnOp, const, select, unary

_SINGLE = (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)
_DOUBLE = (
    -0.013916943217800841, 0.03063443323901452, -0.04104381417807643, 0.04719381457895137,
    -0.052580394289794816, 0.05881925033877732, -0.06666642004996545, 0.07692306735321475,
    -0.0909090906699066, 0.11111111110754406, -0.14285714285711515, 0.19999999999999993,
    -0.3333333333333333,
)  # fmt: skip
"""(atan(x) / x - 1) / x^2 as a polynomial in x^2, up to tan(pi/8): a Chebyshev fit in 50 digits."""


def atan(v: Expr) -> Expr:
    """The arc tangent to about 2 units in the last place of the type it is computed in.

    Source: S. L. Moshier, Cephes, single/atanf.c: reduction at tan(pi/8) and tan(3 pi/8).
    """
    first, *rest = _DOUBLE if v.dtype is DType.F64 else _SINGLE
    size = unary(UnOp.ABS, v)
    far, middle = size > math.tan(3 * math.pi / 8), size > math.tan(math.pi / 8)
    x = select(far, -1.0 / size, select(middle, (size - 1.0) / (size + 1.0), size))
    start = select(
        far, const(math.pi / 2, v.dtype), select(middle, const(math.pi / 4, v.dtype), 0.0)
    )
    z = x * x
    poly: Expr = const(first, v.dtype)
    for coefficient in rest:
        poly = poly * z + coefficient
    angle = start + (poly * z * x + x)
    return select(v < 0, -angle, angle)


def _root(v: Expr) -> Expr:
    return unary(UnOp.SQRT, v)


@op("atan", fuse=Fuse.ELEMENTWISE, onnx="Atan")
class Atan(Unary):
    """The angle whose tangent is x."""

    def formula(self, v: Expr) -> Expr:
        return atan(v)

    def exact(self, x: Array) -> Array:
        return np.arctan(x)


@op("asin", fuse=Fuse.ELEMENTWISE, onnx="Asin")
class Asin(Unary):
    """The angle whose sine is x; NaN outside of -1 ... 1."""

    def formula(self, v: Expr) -> Expr:
        return atan(v / _root((1.0 - v) * (v + 1.0)))

    def exact(self, x: Array) -> Array:
        return np.arcsin(x)


@op("acos", fuse=Fuse.ELEMENTWISE, onnx="Acos")
class Acos(Unary):
    """The angle whose cosine is x, from the tangent of its half; NaN outside of -1 ... 1."""

    def formula(self, v: Expr) -> Expr:
        return atan(_root((1.0 - v) / (v + 1.0))) * 2.0

    def exact(self, x: Array) -> Array:
        return np.arccos(x)


@op("asinh", fuse=Fuse.ELEMENTWISE, onnx="Asinh")
class Asinh(Unary):
    """log(x + sqrt(x^2 + 1)), written so that small x keeps its digits."""

    def formula(self, v: Expr) -> Expr:
        size = unary(UnOp.ABS, v)
        near = unary(UnOp.LOG1P, size + v * v / (_root(v * v + 1.0) + 1.0))
        far = unary(UnOp.LOG, size) + math.log(2)  # where x^2 might overflow
        result = select(size < 1e9, near, far)
        return select(v < 0, -result, result)

    def exact(self, x: Array) -> Array:
        return np.arcsinh(x)


@op("acosh", fuse=Fuse.ELEMENTWISE, onnx="Acosh")
class Acosh(Unary):
    """log(x + sqrt(x^2 - 1)), written so that x near 1 keeps its digits; NaN below 1."""

    def formula(self, v: Expr) -> Expr:
        t = v - 1.0
        near = unary(UnOp.LOG1P, t + _root(t * 2.0 + t * t))
        return select(v < 1e9, near, unary(UnOp.LOG, v) + math.log(2))

    def exact(self, x: Array) -> Array:
        return np.arccosh(x)


@op("atanh", fuse=Fuse.ELEMENTWISE, onnx="Atanh")
class Atanh(Unary):
    """log((1 + x) / (1 - x)) / 2, written so that small x keeps its digits."""

    def formula(self, v: Expr) -> Expr:
        size = unary(UnOp.ABS, v)
        result = unary(UnOp.LOG1P, size * 2.0 / (1.0 - size)) * 0.5
        return select(v < 0, -result, result)

    def exact(self, x: Array) -> Array:
        return np.arctanh(x)


@op("tan", fuse=Fuse.ELEMENTWISE, onnx="Tan")
class Tan(Unary):
    """The tangent."""

    def formula(self, v: Expr) -> Expr:
        return unary(UnOp.SIN, v) / unary(UnOp.COS, v)

    def exact(self, x: Array) -> Array:
        return np.tan(x)
