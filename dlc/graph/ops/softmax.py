"""Softmax and its logarithm. `compute` gives the obvious stages; schedules fuse their passes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dlc.core.types import FLOATS
from dlc.graph.op import Array, Fuse, Op, as_f64, op
from dlc.graph.ops.attributes import normal_axis
from dlc.graph.ops.elementwise import check_dtype
from dlc.graph.ops.precision import widen
from dlc.graph.ops.reduce import reduce_kept
from dlc.te import tensor as te
from dlc.te.expr import BinOp, Expr, UnOp, cast, const, maximum, minimum, unary
from dlc.te.types import TensorType

UNSHIFTED = 16.0
"""The largest logit of a softmax that needs no shift: sums of exp(16) are far from any limit."""


def _exponentials(x: te.Tensor, axis: int) -> tuple[te.Tensor, te.Tensor]:
    """exp(x - shift), and its sum, along an axis.

    Any shift gives the same softmax if no power overflows, and none vanishes that should not. The
    largest element m does, and so does 0 for a small m >= 0, with which nothing is lost: x - m is
    rounded, by 2**-22 where it is 8, and its power is off by as much, some ULP.
    """
    top = reduce_kept(f"{x.name}_max", BinOp.MAX, x, (axis,))

    def beyond(m: Expr) -> Expr:
        return m - minimum(maximum(m, 0.0), UNSHIFTED)

    shift = te.elementwise(f"{x.name}_shift", beyond, top)

    def power(v: Expr, m: Expr) -> Expr:
        return unary(UnOp.FLUSH, unary(UnOp.EXP, widen(v) - m))

    powers = te.elementwise(f"{x.name}_exp", power, x, shift)
    return powers, reduce_kept(f"{x.name}_sum", BinOp.ADD, powers, (axis,))


@dataclass(frozen=True, kw_only=True)
class _OverAxis(Op):
    """Floats of the same shape, each computed from all along one axis."""

    axis: int = -1

    def infer(self, x: TensorType) -> TensorType:
        check_dtype(self, FLOATS, x)
        normal_axis(self, self.axis, x.rank, x)
        return x


@op("softmax", fuse=Fuse.REDUCTION)
class Softmax(_OverAxis):
    """exp(x) over its sum along one axis; NaN where all elements are -inf.

    What would be denormal is 0: less than 2**-126 of a sum that is 1 (2**-1022 in f64). Adding or
    multiplying denormals takes a hundred times as long, and a mask that adds -100, as that of
    shifted windows, would leave nothing else.

    Source: https://onnx.ai/onnx/operators/onnx__Softmax.html, opset 13
    """

    def compute(self, x: te.Tensor) -> te.Tensor:
        axis = normal_axis(self, self.axis, x.type.rank, x.type)
        powers, total = _exponentials(x, axis)
        factor = te.elementwise(f"{x.name}_factor", lambda t: const(1, t.dtype) / t, total)

        def share(e: Expr, f: Expr) -> Expr:
            return cast(x.dtype, unary(UnOp.FLUSH, e * f))

        return te.elementwise(self.name, share, powers, factor)

    def reference(self, x: Array) -> Array:
        (x,) = as_f64(x)
        with np.errstate(all="ignore"):
            e = np.exp(x - np.max(x, axis=self.axis, keepdims=True, initial=-math.inf))
            return np.asarray(e / np.sum(e, axis=self.axis, keepdims=True))


@op("log_softmax", fuse=Fuse.REDUCTION)
class LogSoftmax(_OverAxis):
    """The logarithm of softmax: x - max - log(sum(exp(x - max))).

    Source: https://onnx.ai/onnx/operators/onnx__LogSoftmax.html, opset 13
    """

    def compute(self, x: te.Tensor) -> te.Tensor:
        axis = normal_axis(self, self.axis, x.type.rank, x.type)
        top = reduce_kept(f"{x.name}_max", BinOp.MAX, x, (axis,))

        def power(v: Expr, m: Expr) -> Expr:  # beside the largest, which is 1, no denormal counts
            return unary(UnOp.FLUSH, unary(UnOp.EXP, v - m))

        total = reduce_kept(f"{x.name}_sum", BinOp.ADD, x, (axis,), top, value=power)

        log = te.elementwise(f"{x.name}_log", lambda t: unary(UnOp.LOG, t), total)

        def formula(v: Expr, m: Expr, t: Expr) -> Expr:
            return cast(x.dtype, widen(v) - m - t)

        return te.elementwise(self.name, formula, x, top, log)

    def reference(self, x: Array) -> Array:
        (x,) = as_f64(x)
        with np.errstate(all="ignore"):
            moved = x - np.max(x, axis=self.axis, keepdims=True, initial=-math.inf)
            return np.asarray(moved - np.log(np.sum(np.exp(moved), axis=self.axis, keepdims=True)))
