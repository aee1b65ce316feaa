"""Converters of pools."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Unpack

from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.windows import WindowAttributes, read_window
from dlc.graph.graph import Value
from dlc.graph.ops.binary import Mul, Pow
from dlc.graph.ops.elementwise import Abs
from dlc.graph.ops.pool import AveragePool, MaxPool
from dlc.graph.ops.reduce import Reduce
from dlc.graph.ops.unpool import MaxPoolIndices


@converter("MaxPool", since=1)
def convert_max_pool(
    ctx: Context,
    x: Value,
    *,
    kernel_shape: Sequence[int],
    ceil_mode: int = 0,
    storage_order: int = 0,
    **attributes: Unpack[WindowAttributes],
) -> tuple[Value, ...]:
    """The maximum of each window, and where it lies."""
    window = read_window(ctx, x.type.shape[2:], kernel_shape, **attributes)
    op = MaxPool(
        kernel=window.kernel, stride=window.stride, pads=window.pads,
        dilation=window.dilation, ceil_mode=bool(ceil_mode),
    )  # fmt: skip
    if not any(ctx.node.outputs[1:]):
        return (ctx.call(op, x),)
    where = MaxPoolIndices(
        kernel=window.kernel, stride=window.stride, pads=window.pads,
        dilation=window.dilation, ceil_mode=bool(ceil_mode), column_major=bool(storage_order),
    )  # fmt: skip
    return ctx.call(op, x), ctx.call(where, x)


@converter("AveragePool", since=1)
def convert_average_pool(
    ctx: Context,
    x: Value,
    *,
    kernel_shape: Sequence[int],
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    **attributes: Unpack[WindowAttributes],
) -> Value:
    """The mean of each window; padding counts only where `count_include_pad` says so."""
    window = read_window(ctx, x.type.shape[2:], kernel_shape, **attributes)
    op = AveragePool(
        kernel=window.kernel, stride=window.stride, pads=window.pads,
        dilation=window.dilation, ceil_mode=bool(ceil_mode),
        count_include_pad=bool(count_include_pad),
    )  # fmt: skip
    return ctx.call(op, x)


@converter("GlobalAveragePool", since=1)
def convert_global_average_pool(ctx: Context, x: Value) -> Value:
    """The mean of each channel."""
    return _over_image(ctx, x, "mean")


@converter("GlobalMaxPool", since=1)
def convert_global_max_pool(ctx: Context, x: Value) -> Value:
    """The maximum of each channel."""
    return _over_image(ctx, x, "max")


@converter("GlobalLpPool", since=2)
def convert_global_lp_pool(ctx: Context, x: Value, *, p: int = 2) -> Value:
    """The p-norm of each channel."""
    if p not in (1, 2):
        ctx.refuse(f"p = {p}; only 1 and 2 are handled")
    return _over_image(ctx, x, f"l{p}")


@converter("LpPool", since=2)
def convert_lp_pool(
    ctx: Context,
    x: Value,
    *,
    kernel_shape: Sequence[int],
    ceil_mode: int = 0,
    p: int = 2,
    **attributes: Unpack[WindowAttributes],
) -> Value:
    """The p-norm of each window: padding adds zeros, so it is a mean that counts them."""
    if p < 1 or ceil_mode:
        ctx.refuse(f"p = {p}, ceil_mode = {ceil_mode}")
    window = read_window(ctx, x.type.shape[2:], kernel_shape, **attributes)
    size = ctx.call(Abs(), x)
    powers = size if p == 1 else ctx.call(Pow(), size, ctx.scalar(p, x.type.dtype))
    mean = AveragePool(
        kernel=window.kernel, stride=window.stride, pads=window.pads,
        dilation=window.dilation, count_include_pad=True,
    )  # fmt: skip
    elems = ctx.scalar(math.prod(kernel_shape), x.type.dtype)
    total = ctx.call(Mul(), ctx.call(mean, powers), elems)
    return total if p == 1 else ctx.call(Pow(), total, ctx.scalar(1 / p, x.type.dtype))


def _over_image(ctx: Context, x: Value, kind: str) -> Value:
    return ctx.call(Reduce(kind=kind, axes=tuple(range(2, x.type.rank)), keepdims=True), x)
