"""Converters of convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.windows import WindowAttributes, pad_open_image, per_axis, read_window
from dlc.graph.graph import Value
from dlc.graph.ops.attributes import as_sizes
from dlc.graph.ops.binary import Add
from dlc.graph.ops.conv import Conv, ConvTranspose
from dlc.graph.ops.shape import Pad, Reshape
from dlc.te.expr import ONE, Const
from dlc.te.simplify import surely_differ


class ConvAttributes(WindowAttributes, total=False):
    """What ONNX says of a convolution."""

    group: int
    kernel_shape: Sequence[int]


@converter("Conv", since=1)
def convert_conv(
    ctx: Context,
    x: Value,
    w: Value,
    bias: Value | None = None,
    **attributes: Unpack[ConvAttributes],
) -> Value:
    """Cross-correlation.

    Source: https://onnx.ai/onnx/operators/onnx__Conv.html
    """
    return add_bias(ctx, conv(ctx, x, w, **attributes), bias)


def conv(
    ctx: Context,
    x: Value,
    w: Value,
    *,
    group: int = 1,
    kernel_shape: Sequence[int] = (),
    **attributes: Unpack[WindowAttributes],
) -> Value:
    """A convolution without a bias, of any type of numbers."""
    kernel = kernel_sizes(ctx, w, kernel_shape)
    x, attributes = pad_open_image(ctx, x, kernel, 0, attributes)
    window = read_window(ctx, x.type.shape[2:], kernel, **attributes)
    op = Conv(stride=window.stride, pads=window.pads, dilation=window.dilation, groups=group)
    return ctx.call(op, x, w)


@converter("ConvTranspose", since=1)
def convert_conv_transpose(
    ctx: Context,
    x: Value,
    w: Value,
    bias: Value | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] = (),
    group: int = 1,
    kernel_shape: Sequence[int] = (),
    output_padding: Sequence[int] = (),
    output_shape: Sequence[int] = (),
    pads: Sequence[int] = (),
    strides: Sequence[int] = (),
) -> Value:
    """The gradient of Conv.

    Source: https://onnx.ai/onnx/operators/onnx__ConvTranspose.html
    """
    rank = x.type.rank - 2
    kernel = kernel_sizes(ctx, w, kernel_shape)
    if len(kernel) != rank or not rank:
        ctx.refuse(f"a kernel of rank {len(kernel)} for images of rank {rank}")
    stride = per_axis(ctx, strides, rank, 1, "strides")
    dilation = per_axis(ctx, dilations, rank, 1, "dilations")
    extra = per_axis(ctx, output_padding, rank, 0, "output_padding")
    if output_shape or auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        if len(output_shape) not in (0, rank, rank + 2):  # some exporters name all sizes
            ctx.refuse(f"output_shape {list(output_shape)} for images of rank {rank}")
        wanted = tuple(output_shape)[-rank:] if output_shape else ()
        total = _total_pads(ctx, x, wanted, kernel, stride, dilation, extra)
        if wanted:  # one larger than what the kernel reaches is padding of the output
            extra = tuple(e - min(t, 0) for e, t in zip(extra, total, strict=True))
            total = [max(t, 0) for t in total]
        found = _halved(total, upper=auto_pad == "SAME_UPPER")
    elif auto_pad in ("NOTSET", "VALID"):
        found = per_axis(ctx, pads if auto_pad == "NOTSET" else (), 2 * rank, 0, "pads")
    else:
        ctx.refuse(f"auto_pad = '{auto_pad}' is not known")
    pads = tuple(max(p, 0) for p in found)
    op = ConvTranspose(
        stride=stride, pads=pads, dilation=dilation, output_padding=extra, groups=group
    )
    return add_bias(ctx, _grown(ctx, ctx.call(op, x, w), found), bias)


def _grown(ctx: Context, image: Value, pads: Sequence[int]) -> Value:
    """The image with zeros around it where pads are below 0."""
    if min(pads) >= 0:
        return image
    before, after = pads[: len(pads) // 2], pads[len(pads) // 2 :]
    sides = ((0, 0, *(max(-p, 0) for p in side)) for side in (before, after))
    first, last = (as_sizes(side) for side in sides)
    return ctx.call(Pad(before=first, after=last), image)


def kernel_sizes(ctx: Context, w: Value, kernel_shape: Sequence[int]) -> tuple[int, ...]:
    """The spatial sizes of the weights."""
    sizes = w.type.shape[2:]
    if kernel_shape:
        if len(kernel_shape) != len(sizes) or any(
            map(surely_differ, sizes, map(_const, kernel_shape))
        ):
            ctx.refuse(f"kernel_shape {list(kernel_shape)} contradicts the weights {w.type}")
        return tuple(kernel_shape)
    if not all(isinstance(s, Const) for s in sizes):
        ctx.refuse(f"the kernel size of the weights {w.type} is not fixed")
    return tuple(int(s.value) for s in sizes if isinstance(s, Const))


def _const(value: int) -> Const:
    return Const(value, ONE.dtype)


def add_bias(ctx: Context, y: Value, bias: Value | None) -> Value:
    """Add one number to each channel (axis 1)."""
    if bias is None:
        return y
    shape = (*bias.type.shape, *[ONE] * (y.type.rank - 2))
    return ctx.call(Add(), y, ctx.call(Reshape(shape=shape), bias))


def _total_pads(
    ctx: Context,
    x: Value,
    wanted: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    extra: Sequence[int],
) -> list[int]:
    """The pads of each axis that give the wanted size, or stride times the input's size.

    Source: https://onnx.ai/onnx/operators/onnx__ConvTranspose.html, `pads` and `output_shape`
    """
    totals = []
    for axis, (k, s, d, e) in enumerate(zip(kernel, stride, dilation, extra, strict=True)):
        size = x.type.shape[2 + axis]
        reach = e + (k - 1) * d + 1
        if not wanted:
            totals.append(reach - s)  # the size of the image cancels
        elif isinstance(size, Const):
            totals.append(s * (int(size.value) - 1) + reach - wanted[axis])
        else:
            ctx.refuse("output_shape needs a fixed image size", "fix it with dims= or shapes=")
    return totals


def _halved(totals: Sequence[int], *, upper: bool) -> tuple[int, ...]:
    """Begins, then ends; the odd pixel goes to the end where `upper` is set."""
    small = [t // 2 for t in totals]
    large = [t - t // 2 for t in totals]
    return (*small, *large) if upper else (*large, *small)
