"""Converters of what onnxruntime computes around attention with a state: gates and a gated norm.

Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

from dlc.core.types import DType
from dlc.frontend.onnx.cast import cast_to
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.microsoft import DOMAIN
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.reshape import reshape_to
from dlc.graph.graph import Value
from dlc.graph.ops.activation import Sigmoid, Silu, Softplus
from dlc.graph.ops.binary import Add, Mul
from dlc.graph.ops.norm import RMSNorm
from dlc.te.simplify import canonical, surely_equal

_GATES = {"silu": Silu, "swish": Silu, "sigmoid": Sigmoid}


@converter("GatedRMSNorm", since=1, domain=DOMAIN)
def convert_gated_rms_norm(
    ctx: Context,
    x: Value,
    scale: Value,
    gate: Value,
    *,
    activation: str = "silu",
    epsilon: float = 1e-5,
) -> Value:
    """The RMS norm of groups of elements, as many as there are scales, times a gate; in float32."""
    *lead, last = x.type.shape
    if activation not in _GATES or scale.type.rank != 1 or x.type.shape != gate.type.shape:
        ctx.refuse(f"activation = '{activation}', {scale.type} or {gate.type} for {x.type}")
    (size,) = scale.type.shape
    if not surely_equal(last % size, 0):
        ctx.refuse(f"{size} scales do not divide {last} elements")
    shape = (*lead, canonical(last // size), size)
    rows, factor, gates = (cast_to(ctx, v, DType.F32) for v in (x, scale, gate))
    rows = reshape_to(ctx, rows, shape)
    norm = ctx.call(RMSNorm(axis=len(lead) + 1, epsilon=epsilon), rows, factor)
    y = reshape_to(ctx, norm, x.type.shape)
    return cast_to(ctx, ctx.call(Mul(), y, ctx.call(_GATES[activation](), gates)), x.type.dtype)


@converter("LinearAttentionGate", since=1, domain=DOMAIN)
def convert_linear_attention_gate(
    ctx: Context, a: Value, bias: Value, scale: Value, b: Value | None = None
) -> tuple[Value, ...]:
    """How much of a state is kept, as a logarithm, and how much is put into it; in float32."""
    kept = ctx.call(Softplus(), ctx.call(Add(), cast_to(ctx, a, DType.F32), bias))
    decay = cast_to(ctx, ctx.call(Mul(), kept, scale), a.type.dtype)
    return (decay,) if b is None else (decay, ctx.call(Sigmoid(), b))
