"""Activation functions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from dlc.core.types import FLOATS, DType
from dlc.graph.op import Array, Fuse, Op, as_f64, op
from dlc.graph.ops.elementwise import NUMBERS, Intrinsic, Unary, check_dtype
from dlc.graph.ops.precision import widen
from dlc.te import tensor as te
from dlc.te.expr import Expr, UnOp, cast, const, maximum, minimum, select, unary
from dlc.te.types import TensorType


def expm1(v: Expr) -> Expr:
    """exp(v) - 1 for v <= 0 without cancellation: 2 t / (1 - t) with t = tanh(v / 2)."""
    t = unary(UnOp.TANH, v * 0.5)
    return t * 2.0 / (1.0 - t)


def softplus(v: Expr) -> Expr:
    """log(1 + exp(v)), without overflow."""
    return maximum(v, 0.0) + unary(UnOp.LOG1P, unary(UnOp.EXP, -unary(UnOp.ABS, v)))


@op("relu", fuse=Fuse.ELEMENTWISE, onnx="Relu")
class Relu(Unary):
    """max(x, 0); NaN stays NaN."""

    accepts = NUMBERS

    def formula(self, v: Expr) -> Expr:
        return maximum(v, 0)

    def exact(self, x: Array) -> Array:
        return np.maximum(x, 0)


@op("leaky_relu", fuse=Fuse.ELEMENTWISE, onnx="LeakyRelu")
class LeakyRelu(Unary):
    """x, below 0 alpha * x."""

    alpha: float = 0.01

    def formula(self, v: Expr) -> Expr:
        return select(v < 0, v * self.alpha, v)

    def exact(self, x: Array) -> Array:
        return np.where(x < 0, x * self.alpha, x)


@op("thresholded_relu", fuse=Fuse.ELEMENTWISE, onnx="ThresholdedRelu")
class ThresholdedRelu(Unary):
    """x above alpha, else 0."""

    alpha: float = 1.0

    def formula(self, v: Expr) -> Expr:
        return select(v > self.alpha, v, 0.0)

    def exact(self, x: Array) -> Array:
        return np.where(x > self.alpha, x, 0.0)


@op("sigmoid", fuse=Fuse.ELEMENTWISE, onnx="Sigmoid")
class Sigmoid(Intrinsic):
    """1 / (1 + exp(-x))."""

    function = UnOp.SIGMOID

    def exact(self, x: Array) -> Array:
        return exact_sigmoid(x)


def exact_sigmoid(x: Array) -> Array:
    """The logistic function in float64."""
    return 1.0 / (1.0 + np.exp(-x))


@op("elu", fuse=Fuse.ELEMENTWISE, onnx="Elu")
class Elu(Unary):
    """x, below 0 alpha * (exp(x) - 1)."""

    alpha: float = 1.0

    def formula(self, v: Expr) -> Expr:
        return select(v < 0, expm1(v) * self.alpha, v)

    def exact(self, x: Array) -> Array:
        return np.where(x < 0, np.expm1(x) * self.alpha, x)


@op("celu", fuse=Fuse.ELEMENTWISE, onnx="Celu")
class Celu(Unary):
    """x, below 0 alpha * (exp(x / alpha) - 1)."""

    alpha: float = 1.0

    def formula(self, v: Expr) -> Expr:
        return select(v < 0, expm1(v / self.alpha) * self.alpha, v)

    def exact(self, x: Array) -> Array:
        return np.where(x < 0, np.expm1(x / self.alpha) * self.alpha, x)


@op("selu", fuse=Fuse.ELEMENTWISE, onnx="Selu")
class Selu(Unary):
    """gamma * x, below 0 gamma * alpha * (exp(x) - 1).

    Source: https://onnx.ai/onnx/operators/onnx__Selu.html, defaults.
    """

    alpha: float = 1.67326319217681884765625
    gamma: float = 1.05070102214813232421875

    def formula(self, v: Expr) -> Expr:
        return select(v <= 0, expm1(v) * (self.alpha * self.gamma), v * self.gamma)

    def exact(self, x: Array) -> Array:
        return self.gamma * np.where(x <= 0, self.alpha * np.expm1(x), x)


@op("hard_sigmoid", fuse=Fuse.ELEMENTWISE, onnx="HardSigmoid")
class HardSigmoid(Unary):
    """alpha * x + beta, between 0 and 1."""

    alpha: float = 0.2
    beta: float = 0.5

    def formula(self, v: Expr) -> Expr:
        return maximum(minimum(v * self.alpha + self.beta, 1.0), 0.0)

    def exact(self, x: Array) -> Array:
        return np.clip(x * self.alpha + self.beta, 0, 1)


@op("hard_swish", fuse=Fuse.ELEMENTWISE, onnx="HardSwish")
class HardSwish(Unary):
    """x * min(max(x / 6 + 1 / 2, 0), 1).

    It is (u + u * u / 3) / 2 with u = x, and with u = -3 - x, too: the nearer to 0 of the two loses
    the fewer digits. 1/3 has two parts; with FMA all that is left is below 1 ULP.
    """

    def formula(self, v: Expr) -> Expr:
        third = float(np.dtype(v.dtype.numpy_name).type(1 / 3))
        low = v * 0.0  # where all is 0; NaN where v is infinite
        u = maximum(v, minimum(-3.0 - v, low))
        part = u * float(Fraction(1, 3) - Fraction(third)) + u * third
        return select(v < 3.0, (u * part + u) * 0.5, v)

    def exact(self, x: Array) -> Array:
        return x * np.clip(x / 6 + 0.5, 0, 1)


@op("softplus", fuse=Fuse.ELEMENTWISE, onnx="Softplus")
class Softplus(Unary):
    """log(1 + exp(x))."""

    def formula(self, v: Expr) -> Expr:
        return softplus(v)

    def exact(self, x: Array) -> Array:
        return np.logaddexp(x, 0.0)


@op("softsign", fuse=Fuse.ELEMENTWISE, onnx="Softsign")
class Softsign(Unary):
    """x / (1 + |x|)."""

    def formula(self, v: Expr) -> Expr:
        return v / (unary(UnOp.ABS, v) + 1.0)

    def exact(self, x: Array) -> Array:
        return x / (1.0 + np.abs(x))


_exact_erfc = np.vectorize(math.erfc, otypes=[np.float64])


@op("gelu", fuse=Fuse.ELEMENTWISE, onnx="Gelu")
class Gelu(Unary):
    """x times the normal distribution's cumulative probability of x, or its approximation.

    The approximation (1 + tanh(u)) / 2 is sigmoid(2 u), which loses nothing where it is near 0.

    Source: https://onnx.ai/onnx/operators/onnx__Gelu.html
    """

    approximate: str = "none"

    def infer(self, x: TensorType) -> TensorType:
        if self.approximate not in ("none", "tanh"):
            raise self.reject(f"there is no approximation '{self.approximate}'", x)
        return super().infer(x)

    def formula(self, v: Expr) -> Expr:
        if self.approximate == "tanh":
            inner = (v * v * 0.044715 + 1.0) * v * math.sqrt(2 / math.pi)
            return v * unary(UnOp.SIGMOID, inner * 2.0)
        return v * unary(UnOp.NORMCDF, v)

    def exact(self, x: Array) -> Array:
        if self.approximate == "tanh":
            inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
            return np.asarray(x * exact_sigmoid(2 * inner))
        return np.asarray(0.5 * x * _exact_erfc(-x / math.sqrt(2)))


@op("gelu_short", fuse=Fuse.ELEMENTWISE)
class GeluShort(Gelu):
    """Gelu with a probability that is right to 19 bits behind the point."""

    accepts = FLOATS - {DType.F64}

    def formula(self, v: Expr) -> Expr:
        return v * unary(UnOp.NORMCDF_SHORT, v)


@op("silu", fuse=Fuse.ELEMENTWISE)
class Silu(Unary):
    """x * sigmoid(alpha * x)."""

    alpha: float = 1.0

    def formula(self, v: Expr) -> Expr:
        scaled = v if self.alpha == 1.0 else v * self.alpha
        return v * unary(UnOp.SIGMOID, scaled)

    def exact(self, x: Array) -> Array:
        return x * exact_sigmoid(self.alpha * x)


@op("mish", fuse=Fuse.ELEMENTWISE, onnx="Mish")
class Mish(Unary):
    """x * tanh(log(1 + exp(x))).

    The tangent is w / (w + 2) with w = exp(x)**2 + 2 exp(x), which by e = exp(-|x|) cannot
    overflow: above 0 both are multiplied by e**2.
    """

    def formula(self, v: Expr) -> Expr:
        e = unary(UnOp.EXP, -unary(UnOp.ABS, v))
        square, twice, below = e * e, e * 2.0, v < 0.0
        top = select(below, square + twice, twice + 1.0)
        return v * (top / (top + select(below, 2.0, square * 2.0)))

    def exact(self, x: Array) -> Array:
        return x * np.tanh(np.logaddexp(x, 0.0))


@op("shrink", fuse=Fuse.ELEMENTWISE)
class Shrink(Unary):
    """x moved by bias toward 0 outside of -lambd ... lambd, 0 inside."""

    accepts = FLOATS
    bias: float = 0.0
    lambd: float = 0.5

    def formula(self, v: Expr) -> Expr:
        inner = select(v > self.lambd, v - self.bias, 0.0)
        return select(v < -self.lambd, v + self.bias, inner)

    def exact(self, x: Array) -> Array:
        inner = np.where(x > self.lambd, x - self.bias, 0.0)
        return np.where(x < -self.lambd, x + self.bias, inner)


@op("clip", fuse=Fuse.ELEMENTWISE)
class Clip(Op):
    """min(max(x, min), max); None is no limit, NaN stays NaN."""

    min: float | None = None
    max: float | None = None

    def infer(self, x: TensorType) -> TensorType:
        check_dtype(self, NUMBERS, x)
        return x

    def compute(self, x: te.Tensor) -> te.Tensor:
        return te.elementwise(self.name, lambda v: cast(x.dtype, self._limited(widen(v))), x)

    def _limited(self, v: Expr) -> Expr:
        if self.min is not None:
            v = maximum(v, const(self.min, v.dtype))
        return v if self.max is None else minimum(v, const(self.max, v.dtype))

    def reference(self, x: Array) -> Array:
        (x,) = as_f64(x)
        if self.min is not None:
            x = np.maximum(x, np.asarray(self.min, x.dtype))
        return x if self.max is None else np.minimum(x, np.asarray(self.max, x.dtype))
