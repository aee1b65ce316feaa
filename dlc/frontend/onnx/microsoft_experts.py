"""Converter of onnxruntime's mixture of experts, spelled out: every expert sees every row.

Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dlc.core.types import INDEX
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.generate import fill
from dlc.frontend.onnx.microsoft import DOMAIN
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.reshape import reshape_to, transpose, unsqueeze
from dlc.frontend.onnx.slicing import slice_axes
from dlc.graph.arrays import NUMPY_DTYPES
from dlc.graph.graph import Value
from dlc.graph.ops.activation import Clip, Gelu, Relu, Silu
from dlc.graph.ops.binary import Add, Div, Less, Mul, Where
from dlc.graph.ops.matmul import MatMul
from dlc.graph.ops.reduce import Reduce
from dlc.graph.ops.scatter import ScatterElements
from dlc.graph.ops.softmax import Softmax
from dlc.graph.ops.sort import TopK
from dlc.te.expr import ONE, ZERO, Expr, const
from dlc.te.simplify import canonical


@dataclass(frozen=True, slots=True)
class Activation:
    """What stands between the two layers of an expert; `silu` may be a gate for a third one.

    In `swiglu` a gate g and a factor v give g * sigmoid(alpha * g) * (v + beta), g at most `limit`
    and v between -`limit` and `limit`. They lie side by side where `fusion` is 1, in halves where
    it is 2, and are the first and the third layer where it is 0.
    """

    name: str
    alpha: float
    beta: float
    limit: float
    fusion: int

    def run(self, ctx: Context, h: Value, third: Value | None) -> Value:
        """The activation of [experts, rows, size]."""
        if self.name == "swiglu":
            gate, factor = self._parts(ctx, h, third)
            if math.isfinite(self.limit):
                gate = ctx.call(Clip(max=self.limit), gate)
                factor = ctx.call(Clip(min=-self.limit, max=self.limit), factor)
            if self.beta:
                factor = ctx.call(Add(), factor, ctx.scalar(self.beta, h.type.dtype))
            return ctx.call(Mul(), ctx.call(Silu(alpha=self.alpha), gate), factor)
        if third is not None and self.name != "silu":
            ctx.refuse(f"a third layer beside the activation '{self.name}'")
        match self.name:
            case "relu":
                return ctx.call(Relu(), h)
            case "gelu":
                return ctx.call(Gelu(approximate="tanh"), h)
            case "silu":
                y = ctx.call(Silu(), h)
                return y if third is None else ctx.call(Mul(), y, third)
            case "identity":
                return h
        ctx.refuse(f"activation_type = '{self.name}' is not known")

    def _parts(self, ctx: Context, h: Value, third: Value | None) -> tuple[Value, Value]:
        """The gate and the factor."""
        size = h.type.shape[2]
        starts: tuple[Expr, Expr]
        match self.fusion, third:
            case 0, Value():
                return h, third
            case 1, None:
                starts, ends, step = (ZERO, ONE), (size, size), 2
            case 2, None:
                half = canonical(size // 2)
                starts, ends, step = (ZERO, half), (half, size), 1
            case _:
                beside = "without" if third is None else "with"
                ctx.refuse(f"swiglu_fusion = {self.fusion} {beside} a third layer")
        gate, factor = (
            slice_axes(ctx, h, [a], [b], [2], [step]) for a, b in zip(starts, ends, strict=True)
        )
        return gate, factor


@converter("MoE", since=1, domain=DOMAIN)
def convert_moe(
    ctx: Context,
    x: Value,
    router: Value,
    first: Value,
    first_bias: Value | None = None,
    second: Value | None = None,
    second_bias: Value | None = None,
    third: Value | None = None,
    third_bias: Value | None = None,
    *,
    activation_alpha: float = 1.0,
    activation_beta: float = 0.0,
    activation_type: str = "relu",
    k: int = 1,
    normalize_routing_weights: int = 0,
    swiglu_fusion: int = 0,
    swiglu_limit: float = math.inf,
    use_sparse_mixer: int = 0,
) -> Value:
    """The `k` experts that a router gives the most weight to, each two layers, in their mean.

    Shapes:
        x: [rows, hidden] or [batch, length, hidden]; router: [rows, experts]; first and third:
        [experts, size, hidden] and [experts, size]; second: [experts, hidden, size] and
        [experts, hidden] -> as x
    """
    if use_sparse_mixer:
        ctx.refuse("use_sparse_mixer is not handled")
    if second is None:
        ctx.refuse("it has no second layer")
    how = Activation(
        activation_type, activation_alpha, activation_beta, swiglu_limit, swiglu_fusion
    )
    layers = [v.type for v in (first, second, third) if v is not None]
    if x.type.rank not in (2, 3) or router.type.rank != 2 or any(t.rank != 3 for t in layers):
        ctx.refuse(f"experts {', '.join(map(str, layers))} of {router.type} for {x.type}")
    hidden = x.type.shape[-1]
    rows = unsqueeze(ctx, reshape_to(ctx, x, (router.type.shape[0], hidden)), (0,))
    beside = None if third is None else _layer(ctx, rows, third, third_bias)
    inner = how.run(ctx, _layer(ctx, rows, first, first_bias), beside)
    found = _layer(ctx, inner, second, second_bias)
    weight = _weights(ctx, router, k, normalized=bool(normalize_routing_weights))
    zero = ctx.scalar(0.0, x.type.dtype)
    seen = ctx.call(Less(), zero, weight)  # what an expert that is not chosen gives may be NaN
    each = ctx.call(Where(), seen, ctx.call(Mul(), found, weight), zero)
    y = ctx.call(Reduce(kind="sum", axes=(0,), keepdims=False), each)
    return reshape_to(ctx, y, x.type.shape)


def _layer(ctx: Context, rows: Value, weights: Value, bias: Value | None) -> Value:
    """What each expert makes of rows: [1 or experts, rows, n] -> [experts, rows, m]."""
    y = ctx.call(MatMul(), rows, transpose(ctx, weights, (0, 2, 1)))
    return y if bias is None else ctx.call(Add(), y, unsqueeze(ctx, bias, (1,)))


def _weights(ctx: Context, router: Value, k: int, *, normalized: bool) -> Value:
    """The weight of each expert for each row, 0 of those not chosen: [experts, rows, 1]."""
    shares = ctx.call(Softmax(axis=1), router)
    best, at = ctx.call_all(TopK(k=const(k, INDEX), axis=1, largest=True), shares, count=2)
    if normalized:
        total = ctx.call(Reduce(kind="sum", axes=(1,), keepdims=True), best)
        best = ctx.call(Div(), best, total)
    none = fill(ctx, np.zeros((), NUMPY_DTYPES[router.type.dtype]), router.type.shape)
    chosen = ctx.call(ScatterElements(axis=1), none, at, best)
    return unsqueeze(ctx, transpose(ctx, chosen, (1, 0)), (2,))
