"""Converters of support vector machines.

Source: https://onnx.ai/onnx/operators/onnx_aionnxml_SVMClassifier.html and its sibling
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dlc.core.types import DType
from dlc.frontend.onnx.cast import cast_to
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.learning import linear, rows_of
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.reshape import unsqueeze
from dlc.frontend.onnx.trees import transformed
from dlc.graph.graph import Value
from dlc.graph.op import Array
from dlc.graph.ops.binary import Add, Greater, Mul, Pow, Sub, Where
from dlc.graph.ops.elementwise import Exp, Tanh
from dlc.graph.ops.reduce import Reduce

DOMAIN = "ai.onnx.ml"


def kernel(ctx: Context, x: Value, vectors: Array, kind: str, params: Sequence[float]) -> Value:
    """The kernel of each row with each support vector: [n, vectors]."""
    gamma, coef0, degree = (*params, 0.0, 0.0, 3.0)[:3] if len(params) == 3 else (0.0, 0.0, 3.0)

    def scaled(v: Value) -> Value:
        moved = ctx.call(Mul(), v, ctx.scalar(gamma, DType.F32))
        return ctx.call(Add(), moved, ctx.scalar(coef0, DType.F32))

    if kind == "RBF":
        apart = ctx.call(Sub(), unsqueeze(ctx, x, (1,)), ctx.constant(vectors))
        far = ctx.call(Reduce(kind="sum_square", axes=(2,), keepdims=False), apart)
        return ctx.call(Exp(), ctx.call(Mul(), far, ctx.scalar(-gamma, DType.F32)))
    product = linear(ctx, x, vectors, np.zeros(1))
    match kind:
        case "LINEAR":
            return product
        case "POLY":
            return ctx.call(Pow(), scaled(product), ctx.scalar(degree, DType.F32))
        case "SIGMOID":
            return ctx.call(Tanh(), scaled(product))
    ctx.refuse(f"kernel_type = '{kind}' is not known")


@converter("SVMRegressor", since=1, domain=DOMAIN)
def convert_svm_regressor(
    ctx: Context,
    x: Value,
    *,
    coefficients: Sequence[float],
    kernel_params: Sequence[float] = (),
    kernel_type: str = "LINEAR",
    n_supports: int = 0,
    one_class: int = 0,
    post_transform: str = "NONE",
    rho: Sequence[float] = (),
    support_vectors: Sequence[float] = (),
) -> Value:
    """A sum of kernels; of one class the sign alone."""
    x = cast_to(ctx, unsqueeze(ctx, x, (0,)) if x.type.rank == 1 else x, DType.F32)
    if n_supports:
        vectors = rows_of(ctx, support_vectors, n_supports, "numbers of support vectors")
        x = kernel(ctx, x, vectors, kernel_type, kernel_params)
    weights = rows_of(ctx, coefficients, 1, "coefficients")
    total = linear(ctx, x, weights, np.array(rho or [0.0]))
    if one_class:
        above = ctx.call(Greater(), total, ctx.scalar(0.0, DType.F32))
        one = ctx.scalar(1.0, DType.F32)
        total = ctx.call(Where(), above, one, ctx.scalar(-1.0, DType.F32))
    return transformed(ctx, total, post_transform)
