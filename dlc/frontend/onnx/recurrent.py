"""Converters of RNN, GRU and LSTM.

Source: https://onnx.ai/onnx/operators/onnx__LSTM.html, onnx__GRU.html, onnx__RNN.html
"""

from __future__ import annotations

from functools import partial
from typing import Unpack

from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.recurrence import (
    Layer,
    LayerAttributes,
    StepBuilder,
    initial_state,
    one_direction,
    read_layer,
    recurrent_bias,
    run_layer,
)
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.slicing import split_axis
from dlc.graph.graph import Value
from dlc.graph.ops.binary import Sub
from dlc.graph.ops.matmul import MatMul
from dlc.te.expr import index

LSTM_ACTIVATIONS = ("Sigmoid", "Tanh", "Tanh")


@converter("LSTM", since=1)
def convert_lstm(
    ctx: Context,
    x: Value,
    w: Value,
    r: Value,
    bias: Value | None = None,
    sequence_lens: Value | None = None,
    initial_h: Value | None = None,
    initial_c: Value | None = None,
    peepholes: Value | None = None,
    *,
    input_forget: int = 0,
    output_sequence: int = 1,
    **attributes: Unpack[LayerAttributes],
) -> tuple[Value, ...]:
    """Long short-term memory."""
    layer = read_layer(ctx, x, w, r, bias, sequence_lens, LSTM_ACTIVATIONS, **attributes)
    return run_lstm(ctx, layer, initial_h, initial_c, peepholes, input_forget=input_forget)


def run_lstm(
    ctx: Context,
    layer: Layer,
    initial_h: Value | None,
    initial_c: Value | None,
    peepholes: Value | None,
    *,
    input_forget: int,
) -> tuple[Value, ...]:
    """All steps, the last state, and the last memory."""
    starts = [initial_state(ctx, layer, v) for v in (initial_h, initial_c)]
    peeps = _peepholes(ctx, peepholes, len(layer.reverse))
    cell = partial(_lstm_cell, coupled=bool(input_forget))
    return run_layer(ctx, layer, 4, starts, peeps, cell, whole_bias=True)


def _lstm_cell(
    body: StepBuilder,
    carries: list[Value],
    step: Value,
    invariants: list[Value],
    *,
    coupled: bool = False,
) -> list[Value]:
    """One step; `coupled` gates forget as much as they let in."""
    hidden, memory = carries
    gates = body.add(step, body.recurrent(hidden, invariants[0]))
    i, o, f, c = body.parts(gates, 4)
    if invariants[1:]:
        i = body.add(i, body.mul(memory, invariants[1]))
        f = body.add(f, body.mul(memory, invariants[3]))
    taken = body.act(0, i)
    left = _rest(body, taken) if coupled else body.act(0, f)
    memory = body.add(body.mul(left, memory), body.mul(taken, body.act(1, c)))
    if invariants[1:]:
        o = body.add(o, body.mul(memory, invariants[2]))
    out = body.unclipped(2, memory)
    return [body.mul(body.act(0, o), out), memory]


def _rest(body: StepBuilder, gate: Value) -> Value:
    """1 - gate."""
    return body.ctx.call(Sub(), body.ctx.scalar(1.0, gate.type.dtype), gate)


def _peepholes(ctx: Context, peepholes: Value | None, directions: int) -> list[list[Value]]:
    """For each direction the weights of the memory in the gates i, o and f."""
    if peepholes is None:
        return [[] for _ in range(directions)]
    rows = [one_direction(ctx, peepholes, d) for d in range(directions)]
    return [list(split_axis(ctx, row, 0, None, 3)) for row in rows]


@converter("GRU", since=1)
def convert_gru(
    ctx: Context,
    x: Value,
    w: Value,
    r: Value,
    bias: Value | None = None,
    sequence_lens: Value | None = None,
    initial_h: Value | None = None,
    *,
    linear_before_reset: int = 0,
    output_sequence: int = 1,
    **attributes: Unpack[LayerAttributes],
) -> tuple[Value, ...]:
    """Gated recurrent unit."""
    defaults = ("Sigmoid", "Tanh")
    layer = read_layer(ctx, x, w, r, bias, sequence_lens, defaults, **attributes)
    starts = [initial_state(ctx, layer, initial_h)]
    directions = range(len(layer.reverse))
    if linear_before_reset:
        extra = [recurrent_bias(ctx, layer, d) for d in directions]
        return run_layer(ctx, layer, 3, starts, extra, _gru_cell_linear, whole_bias=False)
    return run_layer(ctx, layer, 3, starts, [[] for _ in directions], _gru_cell, whole_bias=True)


def _gru_cell(
    body: StepBuilder, carries: list[Value], step: Value, invariants: list[Value]
) -> list[Value]:
    (hidden,) = carries
    z, r, h = body.parts(step, 3)
    size = index(body.layer.hidden)
    gates, candidate = split_axis(body.ctx, invariants[0], 1, [size * 2, size], 2)
    past_z, past_r = body.parts(body.ctx.call(MatMul(), hidden, gates), 2)
    update, reset = body.act(0, body.add(z, past_z)), body.act(0, body.add(r, past_r))
    past = body.ctx.call(MatMul(), body.mul(reset, hidden), candidate)
    return [_mix(body, update, hidden, body.act(1, body.add(h, past)))]


def _gru_cell_linear(
    body: StepBuilder, carries: list[Value], step: Value, invariants: list[Value]
) -> list[Value]:
    (hidden,) = carries
    z, r, h = body.parts(step, 3)
    past = body.ctx.call(MatMul(), hidden, invariants[0])
    if invariants[1:]:
        past = body.add(past, invariants[1])
    past_z, past_r, past_h = body.parts(past, 3)
    update, reset = body.act(0, body.add(z, past_z)), body.act(0, body.add(r, past_r))
    return [_mix(body, update, hidden, body.act(1, body.add(h, body.mul(reset, past_h))))]


def _mix(body: StepBuilder, update: Value, old: Value, new: Value) -> Value:
    """(1 - update) * new + update * old."""
    return body.add(new, body.mul(update, body.ctx.call(Sub(), old, new)))


@converter("RNN", since=1)
def convert_rnn(
    ctx: Context,
    x: Value,
    w: Value,
    r: Value,
    bias: Value | None = None,
    sequence_lens: Value | None = None,
    initial_h: Value | None = None,
    *,
    output_sequence: int = 1,
    **attributes: Unpack[LayerAttributes],
) -> tuple[Value, ...]:
    """A simple recurrent layer."""
    defaults = ("Tanh",)
    layer = read_layer(ctx, x, w, r, bias, sequence_lens, defaults, **attributes)
    starts = [initial_state(ctx, layer, initial_h)]
    return run_layer(ctx, layer, 1, starts, [[] for _ in layer.reverse], _rnn_cell, whole_bias=True)


def _rnn_cell(
    body: StepBuilder, carries: list[Value], step: Value, invariants: list[Value]
) -> list[Value]:
    past = body.ctx.call(MatMul(), carries[0], invariants[0])
    return [body.act(0, body.add(step, past))]
