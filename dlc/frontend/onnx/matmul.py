"""Converters of matrix products."""

from __future__ import annotations

from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.registry import converter
from dlc.graph.graph import Value
from dlc.graph.ops.binary import Add, Mul
from dlc.graph.ops.matmul import MatMul
from dlc.graph.ops.shape import Transpose


@converter("MatMul", since=1)
def convert_matmul(ctx: Context, a: Value, b: Value) -> Value:
    """NumPy's matmul."""
    return ctx.call(MatMul(), a, b)


@converter("Gemm", since=1)
def convert_gemm(
    ctx: Context,
    a: Value,
    b: Value,
    c: Value | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    broadcast: int = 1,
    transA: int = 0,  # noqa: N803 - ONNX's name
    transB: int = 0,  # noqa: N803
) -> Value:
    """The sum alpha * A' @ B' + beta * C.

    Until opset 7, `broadcast` allowed what is always allowed now.
    """
    if a.type.rank != 2 or b.type.rank != 2:
        ctx.refuse(f"its operands must be matrices, and are {a.type} and {b.type}")
    if transA:
        a = ctx.call(Transpose(perm=(1, 0)), a)
    if transB:
        b = ctx.call(Transpose(perm=(1, 0)), b)
    y = scaled(ctx, ctx.call(MatMul(), a, b), alpha)
    return y if c is None or beta == 0 else ctx.call(Add(), y, scaled(ctx, c, beta))


def scaled(ctx: Context, x: Value, factor: float) -> Value:
    """The product x * factor, unless that is x."""
    return x if factor == 1.0 else ctx.call(Mul(), x, ctx.scalar(factor, x.type.dtype))
