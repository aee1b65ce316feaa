"""Converters of operators that onnxruntime adds: those its optimizer and exporters write.

Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.conv import ConvAttributes, add_bias, conv
from dlc.frontend.onnx.matmul import convert_gemm, scaled
from dlc.frontend.onnx.quantized import convert_dequantize, convert_quantize
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.reshape import transpose
from dlc.graph.graph import Value
from dlc.graph.ops.activation import Clip, Gelu, HardSigmoid, LeakyRelu, Relu, Sigmoid, Silu
from dlc.graph.ops.binary import Add
from dlc.graph.ops.elementwise import Tanh
from dlc.graph.ops.matmul import MatMul
from dlc.graph.ops.norm import LayerNorm, RMSNorm

DOMAIN = "com.microsoft"


@converter("Gelu", since=1, domain=DOMAIN)
def convert_gelu(ctx: Context, x: Value) -> Value:
    """The exact Gelu."""
    return ctx.call(Gelu(), x)


@converter("BiasGelu", since=1, domain=DOMAIN)
def convert_bias_gelu(ctx: Context, x: Value, bias: Value) -> Value:
    """The exact Gelu of a sum."""
    return ctx.call(Gelu(), ctx.call(Add(), x, bias))


@converter("FastGelu", since=1, domain=DOMAIN)
def convert_fast_gelu(ctx: Context, x: Value, bias: Value | None = None) -> Value:
    """The Gelu approximated by tanh, of a sum if there is a bias."""
    return ctx.call(Gelu(approximate="tanh"), x if bias is None else ctx.call(Add(), x, bias))


@converter("QuickGelu", since=1, domain=DOMAIN)
def convert_quick_gelu(ctx: Context, x: Value, *, alpha: float = 1.702) -> Value:
    """The product x * sigmoid(alpha * x)."""
    return ctx.call(Silu(alpha=alpha), x)


@converter("FusedMatMul", since=1, domain=DOMAIN)
def convert_fused_matmul(
    ctx: Context,
    a: Value,
    b: Value,
    *,
    alpha: float = 1.0,
    transA: int = 0,  # noqa: N803 - ONNX's name
    transB: int = 0,  # noqa: N803
    transBatchA: int = 0,  # noqa: N803
    transBatchB: int = 0,  # noqa: N803
) -> Value:
    """A matrix product of transposed operands, times a number.

    `transBatch` says that the batch stands between the rows and the columns.
    """
    a = _batch_first(ctx, a) if transBatchA else a
    b = _batch_first(ctx, b) if transBatchB else b
    a = _swapped(ctx, a) if transA else a
    b = _swapped(ctx, b) if transB else b
    return scaled(ctx, ctx.call(MatMul(), a, b), alpha)


@converter("FusedConv", since=1, domain=DOMAIN)
def convert_fused_conv(
    ctx: Context,
    x: Value,
    w: Value,
    bias: Value | None = None,
    other: Value | None = None,
    *,
    activation: str = "",
    activation_params: Sequence[float] = (),
    **attributes: Unpack[ConvAttributes],
) -> Value:
    """A convolution, with a sum and an activation behind it."""
    y = add_bias(ctx, conv(ctx, x, w, **attributes), bias)
    y = y if other is None else ctx.call(Add(), y, other)
    return _activated(ctx, y, activation, activation_params)


@converter("FusedGemm", since=1, domain=DOMAIN)
def convert_fused_gemm(
    ctx: Context,
    a: Value,
    b: Value,
    c: Value | None = None,
    *,
    activation: str = "",
    activation_alpha: float = 0.01,
    activation_beta: float = 0.0,
    activation_gamma: float = 0.0,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,  # noqa: N803
    transB: int = 0,  # noqa: N803
) -> Value:
    """A Gemm with an activation behind it."""
    y = convert_gemm(ctx, a, b, c, alpha=alpha, beta=beta, transA=transA, transB=transB)
    return _activated(ctx, y, activation, (activation_alpha, activation_beta))


def _activated(ctx: Context, y: Value, name: str, params: Sequence[float]) -> Value:
    first, second = (*params, 0.0, 0.0)[:2]
    match name:
        case "":
            return y
        case "Relu":
            return ctx.call(Relu(), y)
        case "Tanh":
            return ctx.call(Tanh(), y)
        case "Sigmoid":
            return ctx.call(Sigmoid(), y)
        case "LeakyRelu":
            return ctx.call(LeakyRelu(alpha=first), y)
        case "Clip":
            return ctx.call(Clip(min=first, max=second), y)
        case "HardSigmoid":
            return ctx.call(HardSigmoid(alpha=first, beta=second), y)
    ctx.refuse(f"activation = '{name}' is not known")


def _batch_first(ctx: Context, x: Value) -> Value:
    """The first axis moved behind those of the batch."""
    rank = x.type.rank
    return x if rank < 3 else transpose(ctx, x, (*range(1, rank - 1), 0, rank - 1))


def _swapped(ctx: Context, x: Value) -> Value:
    """The last two axes swapped; a vector as it is."""
    rank = x.type.rank
    return x if rank < 2 else transpose(ctx, x, (*range(rank - 2), rank - 1, rank - 2))


@converter("SkipLayerNormalization", since=1, domain=DOMAIN)
def convert_skip_layer_norm(
    ctx: Context,
    x: Value,
    skip: Value,
    gamma: Value,
    beta: Value | None = None,
    bias: Value | None = None,
    *,
    epsilon: float = 1e-12,
) -> tuple[Value, ...]:
    """The layer norm of a sum, and the sum."""
    total = _summed(ctx, x, skip, bias)
    affine = (gamma,) if beta is None else (gamma, beta)
    y = ctx.call(LayerNorm(axis=total.type.rank - 1, epsilon=epsilon), total, *affine)
    return _with_sum(ctx, y, total)


@converter("SimplifiedLayerNormalization", since=1)
def convert_simplified_layer_norm(
    ctx: Context,
    x: Value,
    scale: Value,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Value:
    """The RMS norm, which onnxruntime puts into the standard domain."""
    return ctx.call(RMSNorm(axis=axis, epsilon=epsilon), x, scale)


@converter("SkipSimplifiedLayerNormalization", since=1, domain=DOMAIN)
def convert_skip_simplified_layer_norm(
    ctx: Context,
    x: Value,
    skip: Value,
    gamma: Value,
    bias: Value | None = None,
    *,
    epsilon: float = 1e-12,
) -> tuple[Value, ...]:
    """The RMS norm of a sum, and the sum."""
    total = _summed(ctx, x, skip, bias)
    y = ctx.call(RMSNorm(axis=total.type.rank - 1, epsilon=epsilon), total, gamma)
    return _with_sum(ctx, y, total)


def _summed(ctx: Context, x: Value, skip: Value, bias: Value | None) -> Value:
    total = ctx.call(Add(), x, skip)
    return total if bias is None else ctx.call(Add(), total, bias)


def _with_sum(ctx: Context, y: Value, total: Value) -> tuple[Value, ...]:
    """The results: the second and third are statistics of training, which nobody computes."""
    if any(ctx.node.outputs[1:3]):
        ctx.refuse("its statistics are not handled")
    return (y, y, y, total) if ctx.output_count > 3 else (y,)


@converter("QuantizeLinear", since=1, domain=DOMAIN)
def convert_quantize_linear(
    ctx: Context, x: Value, scale: Value, zero: Value | None = None, *, axis: int = 1
) -> Value:
    """As the standard operator, also for 16 bits."""
    return convert_quantize(ctx, x, scale, zero, axis=axis)


@converter("DequantizeLinear", since=1, domain=DOMAIN)
def convert_dequantize_linear(
    ctx: Context, x: Value, scale: Value, zero: Value | None = None, *, axis: int = 1
) -> Value:
    """As the standard operator, also for 16 bits."""
    return convert_dequantize(ctx, x, scale, zero, axis=axis)
