"""Converters of RNN, GRU and LSTM: the products with the input for all steps at once, then a scan.

Source: https://onnx.ai/onnx/operators/onnx__LSTM.html, onnx__GRU.html, onnx__RNN.html
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dlc.frontend.onnx.body import Body, Step, scan
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.generate import fill
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.reshape import reshape_to, transpose, unsqueeze
from dlc.frontend.onnx.slicing import slice_axes, split_axis
from dlc.graph.arrays import NUMPY_DTYPES
from dlc.graph.graph import Value
from dlc.graph.op import Op
from dlc.graph.ops.activation import Clip, HardSigmoid, Relu, Sigmoid, Softplus, Softsign
from dlc.graph.ops.binary import Add, Mul, Sub
from dlc.graph.ops.elementwise import Tanh
from dlc.graph.ops.matmul import MatMul
from dlc.graph.ops.shape import Concat
from dlc.te.expr import Const, Expr, index

_ACTIVATIONS: dict[str, Op] = {
    "sigmoid": Sigmoid(),
    "tanh": Tanh(),
    "relu": Relu(),
    "softsign": Softsign(),
    "softplus": Softplus(),
    "hardsigmoid": HardSigmoid(),
}


@dataclass(frozen=True, slots=True)
class _Layer:
    """The operands and attributes that the three operators share."""

    x: Value  # [seq, batch, input]
    w: Value  # [directions, gates * hidden, input]
    r: Value  # [directions, gates * hidden, hidden]
    bias: Value | None  # [directions, 2 * gates * hidden]
    hidden: int
    reverse: tuple[bool, ...]
    """For each direction."""
    activations: tuple[tuple[Op, ...], ...]
    """For each direction."""
    clip: float | None
    batch_first: bool

    @property
    def batch(self) -> Expr:
        """The size of a batch."""
        return self.x.type.shape[1]


Cell = Callable[["_Cell", list[Value], Value, list[Value]], list[Value]]
"""(body, carries, step of the input products, invariants) -> new carries; the first is hidden."""


@dataclass(frozen=True, slots=True)
class _Cell:
    """The graph of one step."""

    ctx: Context
    layer: _Layer
    activations: tuple[Op, ...]

    def act(self, which: int, x: Value) -> Value:
        """An activation, after the clip that the operator may have."""
        clip = self.layer.clip
        if clip is not None:
            x = self.ctx.call(Clip(min=-clip, max=clip), x)
        return self.ctx.call(self.activations[which], x)

    def add(self, a: Value, b: Value) -> Value:
        """The sum."""
        return self.ctx.call(Add(), a, b)

    def mul(self, a: Value, b: Value) -> Value:
        """The product."""
        return self.ctx.call(Mul(), a, b)

    def parts(self, gates: Value, count: int) -> tuple[Value, ...]:
        """The parts of a row of gates."""
        return split_axis(self.ctx, gates, -1, None, count)


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
    activation_alpha: Sequence[float] = (),
    activation_beta: Sequence[float] = (),
    activations: Sequence[str] = (),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    layout: int = 0,
    output_sequence: int = 1,
) -> tuple[Value, ...]:
    """Long short-term memory."""
    if input_forget:
        ctx.refuse("input_forget = 1 is not handled")
    _check_parameters(ctx, activation_alpha, activation_beta)
    layer = _layer(
        ctx, x, w, r, bias, sequence_lens, direction, layout, clip, hidden_size,
        activations, ("Sigmoid", "Tanh", "Tanh"),
    )  # fmt: skip
    starts = [_initial(ctx, layer, v) for v in (initial_h, initial_c)]
    peeps = _peepholes(ctx, peepholes, len(layer.reverse))
    return _run(ctx, layer, 4, starts, peeps, _lstm_cell, whole_bias=True)


def _lstm_cell(
    body: _Cell, carries: list[Value], step: Value, invariants: list[Value]
) -> list[Value]:
    hidden, memory = carries
    gates = body.add(step, body.ctx.call(MatMul(), hidden, invariants[0]))
    i, o, f, c = body.parts(gates, 4)
    if invariants[1:]:
        i = body.add(i, body.mul(memory, invariants[1]))
        f = body.add(f, body.mul(memory, invariants[3]))
    kept = body.mul(body.act(0, f), memory)
    memory = body.add(kept, body.mul(body.act(0, i), body.act(1, c)))
    if invariants[1:]:
        o = body.add(o, body.mul(memory, invariants[2]))
    out = body.ctx.call(body.activations[2], memory)
    return [body.mul(body.act(0, o), out), memory]


def _peepholes(ctx: Context, peepholes: Value | None, directions: int) -> list[list[Value]]:
    """For each direction the weights of the memory in the gates i, o and f."""
    if peepholes is None:
        return [[] for _ in range(directions)]
    return [
        list(split_axis(ctx, _direction(ctx, peepholes, d), 0, None, 3)) for d in range(directions)
    ]


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
    activation_alpha: Sequence[float] = (),
    activation_beta: Sequence[float] = (),
    activations: Sequence[str] = (),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: int = 0,
    output_sequence: int = 1,
) -> tuple[Value, ...]:
    """Gated recurrent unit."""
    _check_parameters(ctx, activation_alpha, activation_beta)
    layer = _layer(
        ctx, x, w, r, bias, sequence_lens, direction, layout, clip, hidden_size,
        activations, ("Sigmoid", "Tanh"),
    )  # fmt: skip
    starts = [_initial(ctx, layer, initial_h)]
    directions = range(len(layer.reverse))
    if linear_before_reset:
        extra = [_recurrent_bias(ctx, layer, d) for d in directions]
        return _run(ctx, layer, 3, starts, extra, _gru_cell_linear, whole_bias=False)
    return _run(ctx, layer, 3, starts, [[] for _ in directions], _gru_cell, whole_bias=True)


def _gru_cell(
    body: _Cell, carries: list[Value], step: Value, invariants: list[Value]
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
    body: _Cell, carries: list[Value], step: Value, invariants: list[Value]
) -> list[Value]:
    (hidden,) = carries
    z, r, h = body.parts(step, 3)
    past = body.ctx.call(MatMul(), hidden, invariants[0])
    if invariants[1:]:
        past = body.add(past, invariants[1])
    past_z, past_r, past_h = body.parts(past, 3)
    update, reset = body.act(0, body.add(z, past_z)), body.act(0, body.add(r, past_r))
    return [_mix(body, update, hidden, body.act(1, body.add(h, body.mul(reset, past_h))))]


def _mix(body: _Cell, update: Value, old: Value, new: Value) -> Value:
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
    activation_alpha: Sequence[float] = (),
    activation_beta: Sequence[float] = (),
    activations: Sequence[str] = (),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    output_sequence: int = 1,
) -> tuple[Value, ...]:
    """A simple recurrent layer."""
    _check_parameters(ctx, activation_alpha, activation_beta)
    layer = _layer(
        ctx, x, w, r, bias, sequence_lens, direction, layout, clip, hidden_size,
        activations, ("Tanh",),
    )  # fmt: skip
    starts = [_initial(ctx, layer, initial_h)]
    return _run(ctx, layer, 1, starts, [[] for _ in layer.reverse], _rnn_cell, whole_bias=True)


def _rnn_cell(
    body: _Cell, carries: list[Value], step: Value, invariants: list[Value]
) -> list[Value]:
    past = body.ctx.call(MatMul(), carries[0], invariants[0])
    return [body.act(0, body.add(step, past))]


def _check_parameters(ctx: Context, alpha: Sequence[float], beta: Sequence[float]) -> None:
    if alpha or beta:
        ctx.refuse("activation_alpha and activation_beta are not handled")


def _layer(
    ctx: Context,
    x: Value,
    w: Value,
    r: Value,
    bias: Value | None,
    sequence_lens: Value | None,
    direction: str,
    layout: int,
    clip: float | None,
    hidden_size: int | None,
    activations: Sequence[str],
    defaults: Sequence[str],
) -> _Layer:
    """Check and collect what the three operators share."""
    ways = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
    if direction not in ways:
        ctx.refuse(f"direction = '{direction}' is not known")
    if layout not in (0, 1):
        ctx.refuse(f"layout = {layout} is not known")
    if not x.type.rank == w.type.rank == r.type.rank == 3:
        ctx.refuse(f"its operands are {x.type}, {w.type} and {r.type}, not of rank 3")
    hidden = r.type.shape[-1]
    if not isinstance(hidden, Const) or hidden_size not in (None, hidden.value):
        ctx.refuse(f"hidden_size {hidden_size} contradicts the weights {r.type}")
    if layout:
        x = transpose(ctx, x, (1, 0, 2))
    _check_lengths(ctx, x, sequence_lens)
    reverse = ways[direction]
    names = [a.lower() for a in activations] or [d.lower() for d in defaults] * len(reverse)
    if unknown := [name for name in names if name not in _ACTIVATIONS]:
        ctx.refuse(f"activation '{unknown[0]}' is not handled")
    if len(names) != len(defaults) * len(reverse):
        ctx.refuse(f"{len(names)} activations, not {len(defaults) * len(reverse)}")
    count = len(defaults)
    chosen = [_ACTIVATIONS[name] for name in names]
    per_direction = tuple(tuple(chosen[d * count : (d + 1) * count]) for d in range(len(reverse)))
    return _Layer(
        x, w, r, bias, int(hidden.value), reverse, per_direction, clip or None, bool(layout)
    )


def _check_lengths(ctx: Context, x: Value, sequence_lens: Value | None) -> None:
    if sequence_lens is None:
        return
    lengths = ctx.sizes(sequence_lens)
    if lengths is None or any(n != x.type.shape[0] for n in lengths):
        ctx.refuse("sequence_lens, sequences of different lengths, are not handled")


def _initial(ctx: Context, layer: _Layer, value: Value | None) -> Value:
    """A starting state [directions, batch, hidden]; zeros by default."""
    if value is not None:
        return transpose(ctx, value, (1, 0, 2)) if layer.batch_first else value
    zero = NUMPY_DTYPES[layer.x.type.dtype].type(0)
    sizes = (index(len(layer.reverse)), layer.batch, index(layer.hidden))
    return fill(ctx, zero.reshape(()), sizes)


def _direction(ctx: Context, value: Value, direction: int) -> Value:
    """One entry of the first axis, without the axis."""
    start = index(direction)
    one = slice_axes(ctx, value, [start], [start + 1], [0], [1])
    return reshape_to(ctx, one, value.type.shape[1:])


def _input_bias(
    ctx: Context, layer: _Layer, direction: int, gates: int, whole: bool
) -> Value | None:
    """What is added to the products of the input: both biases, or (`whole` unset) the input's."""
    if layer.bias is None:
        return None
    both = _direction(ctx, layer.bias, direction)
    first, second = split_axis(ctx, both, 0, None, 2)
    return ctx.call(Add(), first, second) if whole else first


def _recurrent_bias(ctx: Context, layer: _Layer, direction: int) -> list[Value]:
    if layer.bias is None:
        return []
    return [split_axis(ctx, _direction(ctx, layer.bias, direction), 0, None, 2)[1]]


def _run(
    ctx: Context,
    layer: _Layer,
    gates: int,
    starts: list[Value],
    extra: list[list[Value]],
    cell: Cell,
    *,
    whole_bias: bool,
) -> tuple[Value, ...]:
    """All directions: (every step, final carries...) as ONNX orders them."""
    steps: list[Value] = []
    finals: list[list[Value]] = [[] for _ in starts]
    for d in range(len(layer.reverse)):
        weights = transpose(ctx, _direction(ctx, layer.w, d), (1, 0))
        products = ctx.call(MatMul(), layer.x, weights)
        bias = _input_bias(ctx, layer, d, gates, whole_bias)
        if bias is not None:
            products = ctx.call(Add(), products, bias)
        recurrent = transpose(ctx, _direction(ctx, layer.r, d), (1, 0))
        carries = [_direction(ctx, s, d) for s in starts]
        made = _scan(ctx, layer, d, carries, products, [recurrent, *extra[d]], cell)
        for final, value in zip(finals, made[:-1], strict=True):
            final.append(unsqueeze(ctx, value, [0]))
        steps.append(unsqueeze(ctx, made[-1], [1]))
    sequence = _join(ctx, steps, 1)
    ends = [_join(ctx, values, 0) for values in finals]
    if layer.batch_first:
        sequence = transpose(ctx, sequence, (2, 0, 1, 3))
        ends = [transpose(ctx, end, (1, 0, 2)) for end in ends]
    return (sequence, *ends)


def _join(ctx: Context, parts: list[Value], axis: int) -> Value:
    return parts[0] if len(parts) == 1 else ctx.call(Concat(axis=axis), *parts)


def _scan(
    ctx: Context,
    layer: _Layer,
    direction: int,
    carries: list[Value],
    products: Value,
    invariants: list[Value],
    cell: Cell,
) -> tuple[Value, ...]:
    """One direction: final carries, then the hidden state of every step [seq, batch, hidden]."""

    def step(inner: Body, state: list[Value], elements: list[Value]) -> Step:
        made = cell(
            _Cell(inner, layer, layer.activations[direction]), state, elements[0], invariants
        )
        return Step(made, made[:1])

    name = f"{ctx.node.op_type.lower()}_cell"
    return scan(ctx, name, carries, [products], step, reverse=layer.reverse[direction])
