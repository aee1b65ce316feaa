"""What convolutions and pools share: the attributes that say how a window moves over an image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from dlc.frontend.onnx.context import Context
from dlc.te.expr import Const, Expr
from dlc.te.types import is_const


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
        ctx.refuse(f"a kernel of {len(kernel)} dimensions for images of {rank}")
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
            found = _same(ctx, auto_pad, image, kernel, stride, dilation)
        case _:
            ctx.refuse(f"auto_pad = '{auto_pad}' is not known")
    return Window(tuple(kernel), stride, dilation, found)


def per_axis(
    ctx: Context, values: Sequence[int], count: int, default: int, what: str
) -> tuple[int, ...]:
    """A list attribute of `count` numbers; an absent one has the default everywhere."""
    if not values:
        return (default,) * count
    if len(values) != count:
        ctx.refuse(f"{what} has {len(values)} numbers, not {count}")
    return tuple(values)


def _same(
    ctx: Context,
    mode: str,
    image: Sequence[Expr],
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> tuple[int, ...]:
    """The pixels to add so that the result has ceil(size / stride) of them."""
    small, large = [], []
    for size, k, s, d in zip(image, kernel, stride, dilation, strict=True):
        if s == 1:
            total = (k - 1) * d
        elif isinstance(size, Const):
            n = int(size.value)
            total = max(0, (-(-n // s) - 1) * s + (k - 1) * d + 1 - n)
        elif (k - 1) * d + 1 <= 1 and not is_const(size, 0):
            total = 0
        else:
            ctx.refuse(
                f"auto_pad = '{mode}' with stride {s} needs a fixed image size, and it is {size}",
                "fix the dimension with dims= or shapes=",
            )
        small.append(total // 2)
        large.append(total - total // 2)
    return (*small, *large) if mode == "SAME_UPPER" else (*large, *small)
