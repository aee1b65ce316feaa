"""Converters of `Pad`: elements around a tensor, whose widths and axes a run may tell."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.data_axes import of_axis
from dlc.frontend.onnx.elementwise import axes_of
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.reshape import reshape_to
from dlc.graph.graph import Value
from dlc.graph.ops.binary import Where
from dlc.graph.ops.shape import Expand, Pad
from dlc.te.expr import ZERO, Expr, index
from dlc.te.transform import loads


@converter("Pad", since=1)
def convert_pad_attributes(
    ctx: Context,
    x: Value,
    *,
    pads: Sequence[int] = (),
    paddings: Sequence[int] = (),
    mode: str = "constant",
    value: float = 0.0,
) -> Value:
    """Until opset 11 the widths were an attribute, in opset 1 called `paddings`."""
    widths = list(map(index, pads or paddings))
    return pad_axes(ctx, x, widths, range(x.type.rank), mode, value)


@converter("Pad", since=11)
def convert_pad(
    ctx: Context,
    x: Value,
    pads: Value,
    constant_value: Value | None = None,
    axes: Value | None = None,
    *,
    mode: str = "constant",
) -> Value:
    """Elements around a tensor; a negative width cuts elements off."""
    value = 0.0
    widths: Sequence[Expr] = ctx.need_sizes(pads, "the padding")
    where: Sequence[int] = range(x.type.rank)
    if axes is not None and (named := ctx.data_only(axes)) is not None:
        widths = _widths_of_data(ctx, x, widths, named)
    elif axes is not None:
        where = ctx.ints(axes, "axes")
    if constant_value is not None:
        if ctx.array(constant_value) is None and mode == "constant":
            return _padded_with(ctx, x, widths, where, constant_value)
        value = ctx.one_number(constant_value, "constant_value") if mode == "constant" else 0.0
    return pad_axes(ctx, x, widths, where, mode, value)


def _widths_of_data(
    ctx: Context, x: Value, widths: Sequence[Expr], axes: Sequence[Expr]
) -> list[Expr]:
    """The widths of all axes where a run tells the axes."""
    rank, count = x.type.rank, len(axes)
    if len(widths) != 2 * count:
        ctx.refuse(f"{len(widths)} widths for {count} axes")
    sides = (widths[:count], widths[count:])
    return [w for side in sides for w in of_axis(axes, rank, side, [ZERO] * rank)]


def _padded_with(
    ctx: Context, x: Value, widths: Sequence[Expr], axes: Sequence[int], value: Value
) -> Value:
    """Padding with an element that is known only at run time."""
    inside = ctx.call(Expand(shape=x.type.shape), ctx.constant(np.ones((), np.bool_)))
    padded = pad_axes(ctx, x, widths, axes, "constant", 0)
    mask = pad_axes(ctx, inside, widths, axes, "constant", 0)
    return ctx.call(Where(), mask, padded, reshape_to(ctx, value, ()))


def pad_axes(
    ctx: Context,
    x: Value,
    widths: Sequence[Expr],
    axes: Sequence[int],
    mode: str,
    value: float,
) -> Value:
    """Elements before and after along some axes: all widths before, then all after."""
    if mode not in ("constant", "reflect", "edge", "wrap"):
        ctx.refuse(f"mode = '{mode}' is not known")
    if len(widths) != 2 * len(axes):
        ctx.refuse(f"{len(widths)} widths for {len(axes)} axes")
    before: list[Expr] = [ZERO] * x.type.rank
    after: list[Expr] = [ZERO] * x.type.rank
    for i, axis in enumerate(axes_of(ctx, axes, x.type.rank)):
        before[axis], after[axis] = widths[i], widths[i + len(axes)]
    if all(w == ZERO for w in widths):
        return x
    for axis, size in enumerate(x.type.shape):
        first, last = before[axis], after[axis]
        if loads(first + last):  # the size of the result gets a name of its own
            result = ctx.data.size(first + size + last)
            before[axis] = ctx.data.signed(first)
            after[axis] = result - size - before[axis]
    return ctx.call(Pad(before=tuple(before), after=tuple(after), value=value, mode=mode), x)
