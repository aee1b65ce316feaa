"""Converters of pools."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Unpack

from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.windows import WindowAttributes, pad_open_image, read_window
from dlc.graph.graph import Value
from dlc.graph.ops.binary import Div, Mul, Pow
from dlc.graph.ops.elementwise import Abs
from dlc.graph.ops.pool import AveragePool, MaxPool
from dlc.graph.ops.reduce import Reduce
from dlc.graph.ops.shape import Expand
from dlc.graph.ops.unpool import MaxPoolIndices
from dlc.te.expr import ONE, BinOp
from dlc.te.tensor import identity


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
    if not any(ctx.node.outputs[1:]):
        lowest = identity(BinOp.MAX, x.type.dtype).value
        x, attributes = pad_open_image(ctx, x, kernel_shape, lowest, attributes)
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
    image, framed = pad_open_image(ctx, x, kernel_shape, 0, attributes)
    window = read_window(ctx, image.type.shape[2:], kernel_shape, **framed)
    op = AveragePool(
        kernel=window.kernel, stride=window.stride, pads=window.pads,
        dilation=window.dilation, ceil_mode=bool(ceil_mode),
        count_include_pad=bool(count_include_pad),
    )  # fmt: skip
    mean = ctx.call(op, image)
    if image is x or count_include_pad:
        return mean
    inside = ctx.call(Expand(shape=(ONE, ONE, *x.type.shape[2:])), ctx.scalar(1, x.type.dtype))
    inside, _ = pad_open_image(ctx, inside, kernel_shape, 0, attributes)
    return ctx.call(Div(), mean, ctx.call(op, inside))


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
    x, attributes = pad_open_image(ctx, x, kernel_shape, 0, attributes)
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
