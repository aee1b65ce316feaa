"""The converter of onnxruntime's LSTM whose weights are integers.

Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.DynamicQuantizeLSTM
"""

from __future__ import annotations

from typing import Unpack

from dlc.core.types import DType
from dlc.frontend.onnx.cast import cast_to
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.microsoft import DOMAIN
from dlc.frontend.onnx.recurrence import LayerAttributes
from dlc.frontend.onnx.recurrent import convert_lstm
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.reshape import reshape_to, transpose, unsqueeze
from dlc.graph.graph import Value
from dlc.graph.ops.binary import Mul, Sub
from dlc.te.expr import ONE


@converter("DynamicQuantizeLSTM", since=1, domain=DOMAIN)
def convert_dynamic_lstm(
    ctx: Context,
    x: Value,
    w: Value,
    r: Value,
    bias: Value | None = None,
    sequence_lens: Value | None = None,
    initial_h: Value | None = None,
    initial_c: Value | None = None,
    peepholes: Value | None = None,
    w_scale: Value | None = None,
    w_zero: Value | None = None,
    r_scale: Value | None = None,
    r_zero: Value | None = None,
    *,
    input_forget: int = 0,
    **attributes: Unpack[LayerAttributes],
) -> tuple[Value, ...]:
    """An LSTM with weights [directions, in, 4 * hidden] of bytes, which become floats once.

    onnxruntime rounds its input and its state to bytes, too, at each step; that makes it faster
    and less exact.
    """
    if w_scale is None or r_scale is None:
        ctx.refuse("its weights have no scale")
    floats = (_real(ctx, w, w_scale, w_zero), _real(ctx, r, r_scale, r_zero))
    return convert_lstm(
        ctx, x, *floats, bias, sequence_lens, initial_h, initial_c, peepholes,
        input_forget=input_forget, **attributes,
    )  # fmt: skip


def _real(ctx: Context, weights: Value, scale: Value, zero: Value | None) -> Value:
    """Floats, turned as the standard operator has them; a scale for each row or direction."""
    whole = cast_to(ctx, transpose(ctx, weights, (0, 2, 1)), DType.I32)
    if zero is not None:
        whole = ctx.call(Sub(), whole, _spread(ctx, cast_to(ctx, zero, DType.I32)))
    return ctx.call(Mul(), cast_to(ctx, whole, scale.type.dtype), _spread(ctx, scale))


def _spread(ctx: Context, numbers: Value) -> Value:
    """[directions] or [directions, rows] as [directions, rows or 1, 1]."""
    if numbers.type.rank == 1:
        return reshape_to(ctx, numbers, (*numbers.type.shape, ONE, ONE))
    return unsqueeze(ctx, numbers, (2,))
