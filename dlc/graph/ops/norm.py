"""Normalisations. `compute` gives the obvious stages; schedules fuse their passes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dlc.core.types import FLOATS
from dlc.graph.assume import differs
from dlc.graph.op import Array, Fuse, Op, as_f64, op
from dlc.graph.ops.attributes import normal_axis
from dlc.graph.ops.elementwise import check_dtype
from dlc.graph.ops.precision import wide, widen
from dlc.graph.ops.reduce import count, reduce_kept
from dlc.te import tensor as te
from dlc.te.expr import (
    BinOp,
    Expr,
    UnOp,
    binary,
    both,
    cast,
    const,
    select,
    unary,
)
from dlc.te.simplify import canonical
from dlc.te.types import TensorType, is_const

THREE_QUARTERS = 0.75  # a root and its root, many times as fast as any power


def check_channels(op: Op, x: TensorType, *vectors: TensorType) -> None:
    """Refuse per-channel operands that are not vectors of the channels (axis 1) of `x`."""
    check_dtype(op, FLOATS, x, *vectors)
    if x.rank < 2:
        raise op.reject("needs 2 or more dimensions", x, *vectors)
    for vector in vectors:
        if vector.rank != 1 or differs(vector.shape[0], x.shape[1]):
            raise op.reject(f"needs {x.shape[1]} numbers, one for each channel", x, *vectors)


def check_tail(op: Op, axis: int, x: TensorType, *operands: TensorType) -> None:
    """Refuse operands that do not broadcast to the dimensions of `x` from `axis` on."""
    check_dtype(op, FLOATS, x, *operands)
    tail = x.shape[normal_axis(op, axis, x.rank, x) :]
    for operand in operands:
        pairs = zip(reversed(operand.shape), reversed(tail), strict=False)
        unequal = any(not is_const(a, 1) and differs(a, b) for a, b in pairs)
        if operand.rank > len(tail) or unequal:
            raise op.reject(f"{operand} does not fit axes {axis} and up", x, *operands)


def moments(x: te.Tensor, axes: Sequence[int], epsilon: float) -> tuple[te.Tensor, te.Tensor]:
    """Mean and 1 / sqrt(variance + epsilon) over axes that stay with size 1.

    Two passes: the variance is the mean of squared deviations, so that nothing cancels.
    """
    dtype = wide(x.dtype)
    n = count(x.shape, axes, dtype)
    total = reduce_kept(f"{x.name}_sum", BinOp.ADD, x, axes)
    mean = te.elementwise(f"{x.name}_mean", lambda t: t / n, total)
    squares = reduce_kept(
        f"{x.name}_squares", BinOp.ADD, x, axes, mean, value=lambda v, m: (v - m) * (v - m)
    )
    return mean, _inverse_root(x.name, squares, n, epsilon)


def _inverse_root(name: str, squares: te.Tensor, n: Expr, epsilon: float) -> te.Tensor:
    return te.elementwise(
        f"{name}_scale", lambda s: 1.0 / unary(UnOp.SQRT, s / n + epsilon), squares
    )


@op("batch_norm", fuse=Fuse.ELEMENTWISE)
class BatchNorm(Op):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias for each channel (axis 1).

    Source: https://onnx.ai/onnx/operators/onnx__BatchNormalization.html, inference
    """

    epsilon: float = 1e-5

    def infer(
        self,
        x: TensorType,
        scale: TensorType,
        bias: TensorType,
        mean: TensorType,
        variance: TensorType,
    ) -> TensorType:
        check_channels(self, x, scale, bias, mean, variance)
        return x

    def compute(
        self,
        x: te.Tensor,
        scale: te.Tensor,
        bias: te.Tensor,
        mean: te.Tensor,
        variance: te.Tensor,
    ) -> te.Tensor:
        def element(*i: Expr) -> Expr:
            s, b, m, v = (widen(t[i[1]]) for t in (scale, bias, mean, variance))
            value = (widen(x[i]) - m) * (s / unary(UnOp.SQRT, v + self.epsilon)) + b
            return cast(x.dtype, value)

        return te.compute(self.name, x.shape, element, inputs=(x, scale, bias, mean, variance))

    def reference(self, x: Array, scale: Array, bias: Array, mean: Array, variance: Array) -> Array:
        x, *vectors = as_f64(x, scale, bias, mean, variance)
        scale, bias, mean, variance = (v.reshape(-1, *[1] * (x.ndim - 2)) for v in vectors)
        with np.errstate(all="ignore"):  # a negative variance gives NaN
            return (x - mean) / np.sqrt(variance + self.epsilon) * scale + bias


@op("instance_norm", fuse=Fuse.REDUCTION)
class InstanceNorm(Op):
    """Each channel of each image normalised over its pixels, then scaled.

    Source: https://onnx.ai/onnx/operators/onnx__InstanceNormalization.html
    """

    epsilon: float = 1e-5

    def infer(self, x: TensorType, scale: TensorType, bias: TensorType) -> TensorType:
        check_channels(self, x, scale, bias)
        return x

    def compute(self, x: te.Tensor, scale: te.Tensor, bias: te.Tensor) -> te.Tensor:
        axes = tuple(range(2, x.type.rank))
        mean, factor = moments(x, axes, self.epsilon)

        def element(*i: Expr) -> Expr:
            kept = (*i[:2], *(const(0, i[0].dtype) for _ in axes))
            value = (widen(x[i]) - mean[kept]) * factor[kept]
            return cast(x.dtype, value * widen(scale[i[1]]) + widen(bias[i[1]]))

        return te.compute(self.name, x.shape, element, inputs=(x, mean, factor, scale, bias))

    def reference(self, x: Array, scale: Array, bias: Array) -> Array:
        x, scale, bias = as_f64(x, scale, bias)
        normal = exact_norm(x, tuple(range(2, x.ndim)), self.epsilon)
        column = (-1, *[1] * (x.ndim - 2))
        return normal * scale.reshape(column) + bias.reshape(column)


def exact_norm(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    """Elements less their mean, over their standard deviation."""
    centred = x - np.mean(x, axis=axes, keepdims=True)
    variance = np.mean(centred * centred, axis=axes, keepdims=True)
    return np.asarray(centred / np.sqrt(variance + epsilon))


@op("group_norm", fuse=Fuse.REDUCTION)
class GroupNorm(Op):
    """Groups of channels normalised over their pixels, then each channel scaled.

    Source: https://onnx.ai/onnx/operators/onnx__GroupNormalization.html, opset 21
    """

    groups: int
    epsilon: float = 1e-5

    def infer(self, x: TensorType, scale: TensorType, bias: TensorType) -> TensorType:
        check_channels(self, x, scale, bias)
        if self.groups < 1 or differs(x.shape[1] % self.groups, 0):
            raise self.reject(f"{x.shape[1]} channels do not make {self.groups} groups", x)
        return x

    def compute(self, x: te.Tensor, scale: te.Tensor, bias: te.Tensor) -> te.Tensor:
        n, channels, *spatial = x.shape
        size = canonical(channels // self.groups)
        split = te.compute(
            f"{x.name}_groups", (n, self.groups, size, *spatial),
            lambda *i: x[(i[0], i[1] * size + i[2], *i[3:])], inputs=(x,),
        )  # fmt: skip
        axes = tuple(range(2, split.type.rank))
        mean, factor = moments(split, axes, self.epsilon)

        def element(*i: Expr) -> Expr:
            kept = (i[0], i[1] // size, *(const(0, i[0].dtype) for _ in axes))
            value = (widen(x[i]) - mean[kept]) * factor[kept]
            return cast(x.dtype, value * widen(scale[i[1]]) + widen(bias[i[1]]))

        return te.compute(self.name, x.shape, element, inputs=(x, mean, factor, scale, bias))

    def reference(self, x: Array, scale: Array, bias: Array) -> Array:
        x, scale, bias = as_f64(x, scale, bias)
        n, channels, *spatial = x.shape
        split = x.reshape(n, self.groups, channels // self.groups, *spatial)
        normal = exact_norm(split, tuple(range(2, split.ndim)), self.epsilon).reshape(x.shape)
        column = (-1, *[1] * (x.ndim - 2))
        return normal * scale.reshape(column) + bias.reshape(column)


@op("layer_norm", fuse=Fuse.REDUCTION)
class LayerNorm(Op):
    """Elements from `axis` on normalised together, then scaled and moved.

    Operands: x, optionally the scale, optionally the bias.

    Source: https://onnx.ai/onnx/operators/onnx__LayerNormalization.html
    """

    axis: int = -1
    epsilon: float = 1e-5

    def infer(self, x: TensorType, *affine: TensorType) -> TensorType:
        if len(affine) > 2:
            raise self.reject("takes a scale and a bias", x, *affine)
        check_tail(self, self.axis, x, *affine)
        return x

    def compute(self, x: te.Tensor, *affine: te.Tensor) -> te.Tensor:
        axes = tuple(range(normal_axis(self, self.axis, x.type.rank, x.type), x.type.rank))
        mean, factor = moments(x, axes, self.epsilon)

        def formula(v: Expr, m: Expr, f: Expr, *scale_and_bias: Expr) -> Expr:
            value = (widen(v) - m) * f
            for position, operand in enumerate(scale_and_bias):
                value = value + widen(operand) if position else value * widen(operand)
            return cast(x.dtype, value)

        return te.elementwise(self.name, formula, x, mean, factor, *affine)

    def reference(self, x: Array, *affine: Array) -> Array:
        x, *operands = as_f64(x, *affine)
        result = exact_norm(x, tuple(range(self.axis % x.ndim, x.ndim)), self.epsilon)
        for position, operand in enumerate(operands):
            result = result + operand if position else result * operand
        return result


@op("rms_norm", fuse=Fuse.REDUCTION)
class RMSNorm(Op):
    """Elements from `axis` on over the root of their mean square, times the scale if there is one.

    Source: https://onnx.ai/onnx/operators/onnx__RMSNormalization.html
    """

    axis: int = -1
    epsilon: float = 1e-5

    def infer(self, x: TensorType, *scale: TensorType) -> TensorType:
        if len(scale) > 1:
            raise self.reject("takes one scale", x, *scale)
        check_tail(self, self.axis, x, *scale)
        return x

    def compute(self, x: te.Tensor, *scale: te.Tensor) -> te.Tensor:
        axes = tuple(range(normal_axis(self, self.axis, x.type.rank, x.type), x.type.rank))
        n = count(x.shape, axes, wide(x.dtype))
        squares = reduce_kept(f"{x.name}_squares", BinOp.ADD, x, axes, value=lambda v: v * v)
        factor = _inverse_root(x.name, squares, n, self.epsilon)

        def formula(v: Expr, f: Expr, *s: Expr) -> Expr:
            value = widen(v) * f
            return cast(x.dtype, value * widen(s[0]) if s else value)

        return te.elementwise(self.name, formula, x, factor, *scale)

    def reference(self, x: Array, *scale: Array) -> Array:
        x, *factors = as_f64(x, *scale)
        axes = tuple(range(self.axis % x.ndim, x.ndim))
        result = x / np.sqrt(np.mean(x * x, axis=axes, keepdims=True) + self.epsilon)
        return np.asarray(result * factors[0] if factors else result)


@op("lrn", fuse=Fuse.REDUCTION, onnx="LRN")
class LRN(Op):
    """Local response normalisation over `size` neighbouring channels.

    x / (bias + alpha / size * sum of squares) ** beta

    Source: https://onnx.ai/onnx/operators/onnx__LRN.html
    """

    size: int
    alpha: float = 0.0001
    beta: float = 0.75
    bias: float = 1.0

    def infer(self, x: TensorType) -> TensorType:
        check_channels(self, x)
        if self.size < 1:
            raise self.reject(f"a neighbourhood of {self.size} channels", x)
        return x

    def compute(self, x: te.Tensor) -> te.Tensor:
        below = (self.size - 1) // 2

        def neighbours(*i: Expr) -> te.Reduce:
            def square(r: Expr) -> Expr:
                c = i[1] + r - below
                v = widen(x[(i[0], c, *i[2:])])
                return select(both(c >= 0, c < x.shape[1]), v * v, const(0, v.dtype))

            return te.reduce_sum((self.size,), square)

        squares = te.compute(f"{x.name}_squares", x.shape, neighbours, inputs=(x,))

        def formula(v: Expr, s: Expr) -> Expr:
            base = s * (self.alpha / self.size) + self.bias
            return cast(x.dtype, widen(v) / self._power(base))

        return te.elementwise(self.name, formula, x, squares)

    def _power(self, base: Expr) -> Expr:
        """A number to the power of `beta`, which is three quarters by default, as in AlexNet."""
        if self.beta == THREE_QUARTERS:
            root = unary(UnOp.SQRT, base)
            return root * unary(UnOp.SQRT, root)
        return binary(BinOp.POW, base, const(self.beta, base.dtype))

    def reference(self, x: Array) -> Array:
        (x,) = as_f64(x)
        total = np.zeros_like(x)
        for c in range(x.shape[1]):
            first = max(0, c - (self.size - 1) // 2)
            last = min(x.shape[1], c + math.ceil((self.size - 1) / 2) + 1)
            total[:, c] = np.sum(x[:, first:last] ** 2, axis=1)
        return np.asarray(x / (self.bias + self.alpha / self.size * total) ** self.beta)
