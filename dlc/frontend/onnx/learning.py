"""Converters of classical machine learning: features and linear models.

Source: https://onnx.ai/onnx/operators/index.html#ai-onnx-ml
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dlc.core.types import DType
from dlc.frontend.onnx.cast import cast_to
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.indices import checked
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.reshape import reshape_to, unsqueeze
from dlc.frontend.onnx.slicing import concat
from dlc.frontend.onnx.trees import labels_of, of_one_score, transformed
from dlc.graph.graph import Value
from dlc.graph.op import Array
from dlc.graph.ops.binary import Add, Div, Equal, Greater, Mul, Where
from dlc.graph.ops.elementwise import Abs, IsNaN
from dlc.graph.ops.gather import Gather
from dlc.graph.ops.matmul import MatMul
from dlc.graph.ops.reduce import ArgMax, Reduce
from dlc.te.expr import ONE, const
from dlc.te.simplify import canonical

DOMAIN = "ai.onnx.ml"


@converter("Scaler", since=1, domain=DOMAIN)
def convert_scaler(
    ctx: Context, x: Value, *, offset: Sequence[float], scale: Sequence[float]
) -> Value:
    """(x - offset) * scale, for each feature."""
    x = cast_to(ctx, x, DType.F32)
    shift = ctx.constant(-np.array(offset, np.float32))
    return ctx.call(Mul(), ctx.call(Add(), x, shift), ctx.constant(np.array(scale, np.float32)))


@converter("ArrayFeatureExtractor", since=1, domain=DOMAIN)
def convert_array_feature_extractor(ctx: Context, x: Value, indices: Value) -> Value:
    """Columns by their numbers; one row at least."""
    at = reshape_to(ctx, indices, (canonical(indices.type.elems),))
    x = unsqueeze(ctx, x, (0,)) if x.type.rank == 1 else x
    inside = checked(ctx, at, x.type.shape[-1:], negative=False)
    return ctx.call(Gather(axis=x.type.rank - 1), x, inside)


@converter("Binarizer", since=1, domain=DOMAIN)
def convert_binarizer(ctx: Context, x: Value, *, threshold: float = 0.0) -> Value:
    """1 above the threshold, else 0."""
    above = ctx.call(Greater(), x, ctx.scalar(threshold, x.type.dtype))
    return cast_to(ctx, above, x.type.dtype)


@converter("Normalizer", since=1, domain=DOMAIN)
def convert_normalizer(ctx: Context, x: Value, *, norm: str = "MAX") -> Value:
    """Rows divided by their norm; a row of zeros stays."""
    if norm not in ("MAX", "L1", "L2"):
        ctx.refuse(f"norm = '{norm}' is not known")
    x = cast_to(ctx, x, DType.F32)
    kind = {"MAX": "max", "L1": "l1", "L2": "l2"}[norm]
    over = Reduce(kind=kind, axes=(x.type.rank - 1,), keepdims=True)
    size = ctx.call(over, ctx.call(Abs(), x) if norm == "MAX" else x)
    zero = ctx.call(Equal(), size, ctx.scalar(0.0, DType.F32))
    return ctx.call(Div(), x, ctx.call(Where(), zero, ctx.scalar(1.0, DType.F32), size))


@converter("Imputer", since=1, domain=DOMAIN)
def convert_imputer(
    ctx: Context,
    x: Value,
    *,
    imputed_value_floats: Sequence[float] = (),
    imputed_value_int64s: Sequence[int] = (),
    replaced_value_float: float = 0.0,
    replaced_value_int64: int = 0,
) -> Value:
    """Another value, for each feature, in place of one."""
    real = x.type.dtype.is_float
    given: Sequence[float] = imputed_value_floats if real else imputed_value_int64s
    if not given:
        ctx.refuse(f"it has no values for elements of type {x.type.dtype}")
    old = replaced_value_float if real else replaced_value_int64
    hit = ctx.call(IsNaN(), x) if math.isnan(old) else None
    hit = hit or ctx.call(Equal(), x, ctx.scalar(old, x.type.dtype))
    new = cast_to(ctx, ctx.constant(np.array(given)), x.type.dtype)
    return ctx.call(Where(), hit, reshape_to(ctx, new, ()) if len(given) == 1 else new, x)


@converter("FeatureVectorizer", since=1, domain=DOMAIN)
def convert_feature_vectorizer(
    ctx: Context, *parts: Value, inputdimensions: Sequence[int] = ()
) -> Value:
    """Features side by side, as floats."""
    if not parts:
        ctx.refuse("it has no operands")
    rows = []
    for part in parts:
        shape = part.type.shape if part.type.rank == 2 else (*part.type.shape, ONE)
        rows.append(reshape_to(ctx, cast_to(ctx, part, DType.F32), shape))
    widths = [row.type.shape[-1] for row in rows]
    wanted = [const(n, widths[0].dtype) for n in inputdimensions]
    if wanted and wanted != widths:
        ctx.refuse(f"inputdimensions {list(inputdimensions)} do not fit its operands")
    return concat(ctx, rows, 1)


def linear(ctx: Context, x: Value, rows: Array, base: Array) -> Value:
    """x times the transpose of `rows`, plus a number for each."""
    weights = ctx.constant(np.ascontiguousarray(rows.T.astype(np.float32)))
    total = ctx.call(MatMul(), cast_to(ctx, x, DType.F32), weights)
    return ctx.call(Add(), total, ctx.constant(base.astype(np.float32))) if base.any() else total


def rows_of(ctx: Context, numbers: Sequence[float], count: int, what: str) -> Array:
    """Numbers of an attribute as so many rows."""
    if count < 1 or len(numbers) % count:
        ctx.refuse(f"{len(numbers)} {what} for {count} rows")
    return np.array(numbers, np.float32).reshape(count, -1)


@converter("LinearRegressor", since=1, domain=DOMAIN)
def convert_linear_regressor(
    ctx: Context,
    x: Value,
    *,
    coefficients: Sequence[float],
    intercepts: Sequence[float] = (),
    post_transform: str = "NONE",
    targets: int = 1,
) -> Value:
    """A linear function for each target."""
    x = unsqueeze(ctx, x, (0,)) if x.type.rank == 1 else x
    rows = rows_of(ctx, coefficients, targets, "coefficients")
    base = np.array(intercepts or [0.0] * targets)
    if base.size != targets:
        ctx.refuse(f"{base.size} intercepts for {targets} targets")
    return transformed(ctx, linear(ctx, x, rows, base), post_transform)


@converter("LinearClassifier", since=1, domain=DOMAIN)
def convert_linear_classifier(
    ctx: Context,
    x: Value,
    *,
    classlabels_ints: Sequence[int] = (),
    classlabels_strings: Sequence[str] = (),
    coefficients: Sequence[float],
    intercepts: Sequence[float] = (),
    multi_class: int = 0,
    post_transform: str = "NONE",
) -> tuple[Value, Value]:
    """The class of the largest of linear functions; one function tells two classes apart."""
    labels = labels_of(ctx, classlabels_ints, classlabels_strings)
    classes = len(classlabels_ints or classlabels_strings)
    x = unsqueeze(ctx, x, (0,)) if x.type.rank == 1 else x
    count = len(intercepts) or classes
    rows = rows_of(ctx, coefficients, count, "coefficients")
    scores = linear(ctx, x, rows, np.array(intercepts or [0.0] * count))
    if count == 1 and classes == 2:
        above = ctx.call(Greater(), scores, ctx.scalar(0.0, DType.F32))
        best = cast_to(ctx, reshape_to(ctx, above, scores.type.shape[:1]), DType.I64)
        shown = of_one_score(ctx, scores, positive=True, how=post_transform)
    else:
        best = ctx.call(ArgMax(axis=1, keepdims=False), scores)
        shown = transformed(ctx, scores, post_transform)
    return ctx.call(Gather(axis=0), labels, best), shown
