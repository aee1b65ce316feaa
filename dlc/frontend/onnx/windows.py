"""What convolutions and pools share: the attributes that say how a window moves over an image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from dlc.frontend.onnx.context import Context
from dlc.graph.graph import Value
from dlc.graph.ops.shape import Pad
from dlc.te.expr import ONE, ZERO, Const, Expr, ceil_div, index, maximum
from dlc.te.simplify import canonical


class WindowAttributes(TypedDict, total=False):
    """What ONNX says of a window's way over an image.

    Source: https://onnx.ai/onnx/operators/onnx__Conv.html
    """

    auto_pad: str
    dilations: Sequence[int]
    pads: Sequence[int]
    strides: Sequence[int]


@dataclass(frozen=True, slots=True)
class Window:
    """One number for each spatial axis; `pads` has all begins, then all ends, in pixels."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    pads: tuple[int, ...]


def read_window(
    ctx: Context,
    image: Sequence[Expr],
    kernel: Sequence[int],
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] = (),
    pads: Sequence[int] = (),
    strides: Sequence[int] = (),
) -> Window:
    """Complete the attributes: absent lists, `auto_pad`."""
    rank = len(image)
    if len(kernel) != rank or not rank:
        ctx.refuse(f"a kernel of rank {len(kernel)} for images of rank {rank}")
    stride = per_axis(ctx, strides, rank, 1, "strides")
    dilation = per_axis(ctx, dilations, rank, 1, "dilations")
    if min((*stride, *dilation, *kernel), default=1) < 1:
        ctx.refuse("strides, dilations and kernel_shape must be positive")
    given = per_axis(ctx, pads, 2 * rank, 0, "pads")
    match auto_pad:
        case "NOTSET" | "":
            found = given
        case "VALID":
            found = (0,) * (2 * rank)
        case "SAME_UPPER" | "SAME_LOWER":
            widths = _same_widths(auto_pad, image, kernel, stride, dilation)
            if not all(isinstance(w, Const) for w in widths):
                sizes = " x ".join(map(str, image))
                ctx.refuse(
                    f"auto_pad = '{auto_pad}' needs a fixed image size, and it is {sizes}",
                    "fix the dimension with dims= or shapes=",
                )
            found = tuple(int(w.value) for w in widths if isinstance(w, Const))
        case _:
            ctx.refuse(f"auto_pad = '{auto_pad}' is not known")
    return Window(tuple(kernel), stride, dilation, found)


def pad_open_image(
    ctx: Context,
    x: Value,
    kernel: Sequence[int],
    value: float,
    attributes: WindowAttributes,
) -> tuple[Value, WindowAttributes]:
    """An image within the border that SAME gives it, where that depends on sizes of the run.

    Any other image stays as it is, and so do its attributes.
    """
    image = x.type.shape[2:]
    strides = per_axis(ctx, attributes.get("strides", ()), len(image), 1, "strides")
    is_open = any(s > 1 and not isinstance(n, Const) for n, s in zip(image, strides, strict=True))
    mode = attributes.get("auto_pad", "")
    if mode not in ("SAME_UPPER", "SAME_LOWER") or not is_open or len(kernel) != len(image):
        return x, attributes
    dilations = per_axis(ctx, attributes.get("dilations", ()), len(image), 1, "dilations")
    if min((*strides, *dilations, *kernel)) < 1:
        return x, attributes  # refused by whoever reads them
    widths = _same_widths(mode, image, kernel, strides, dilations)
    before, after = widths[: len(image)], widths[len(image) :]
    op = Pad(before=(ZERO, ZERO, *before), after=(ZERO, ZERO, *after), value=value)
    return ctx.call(op, x), {**attributes, "auto_pad": "VALID"}


def per_axis(
    ctx: Context, values: Sequence[int], count: int, default: int, what: str
) -> tuple[int, ...]:
    """A list attribute of `count` numbers; an absent one has the default everywhere."""
    if not values:
        return (default,) * count
    if len(values) != count:
        ctx.refuse(f"{what} has {len(values)} numbers, not {count}")
    return tuple(values)


def _same_widths(
    mode: str,
    image: Sequence[Expr],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> list[Expr]:
    """The pixels to add so that the result has ceil(size / stride) of them."""
    small: list[Expr] = []
    large: list[Expr] = []
    for size, k, stride, dilation in zip(image, kernel, strides, dilations, strict=True):
        reach = (k - 1) * dilation + 1
        if stride == 1:
            total = index(reach - 1)
        else:
            total = (ceil_div(size, stride) - ONE) * stride + reach - size
            if reach < stride:  # pixels may be left over
                total = maximum(total, ZERO)
        small.append(canonical(total // 2))
        large.append(canonical(total - total // 2))
    return [*small, *large] if mode == "SAME_UPPER" else [*large, *small]
