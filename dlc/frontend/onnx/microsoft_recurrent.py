"""The converter of onnxruntime's LSTM whose weights are integers.

Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.DynamicQuantizeLSTM
"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.microsoft import DOMAIN
from dlc.frontend.onnx.microsoft_quantized import convert_dynamic_matmul
from dlc.frontend.onnx.quantized import Blocks, dequantized
from dlc.frontend.onnx.recurrence import LayerAttributes, one_direction, read_layer
from dlc.frontend.onnx.recurrent import LSTM_ACTIVATIONS, run_lstm
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.reshape import transpose
from dlc.graph.graph import Value
from dlc.graph.ops.matmul import MatMul

_COLUMNS: Blocks = (1, 0)  # a scale for each, or one for all


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
    """An LSTM with weights [directions, in, 4 * hidden] of bytes.

    Its input and, at each step, its state are quantized by their own range. Of sequences of several
    lengths they are multiplied as floats, as nobody should see what is beyond an end.
    """
    if w_scale is None or r_scale is None:
        ctx.refuse("its weights have no scale")
    scales, zeros = (w_scale, r_scale), (w_zero, r_zero)

    def product(inner: Context, rows: Value, weights: Value, d: int, of_state: bool) -> Value:
        scale, zero = (
            None if v is None else one_direction(inner, v, d)
            for v in (scales[of_state], zeros[of_state])
        )
        assert scale is not None
        if read.lengths is None:
            return convert_dynamic_matmul(inner, rows, weights, scale, zero)
        return inner.call(MatMul(), rows, dequantized(inner, weights, scale, zero, _COLUMNS))

    turned = transpose(ctx, w, (0, 2, 1)), transpose(ctx, r, (0, 2, 1))
    read = read_layer(ctx, x, *turned, bias, sequence_lens, LSTM_ACTIVATIONS, **attributes)
    layer = replace(read, product=product)
    return run_lstm(ctx, layer, initial_h, initial_c, peepholes, input_forget=input_forget)
