"""What recurrent layers share: the products with the input for all steps at once, then a scan.

Source: https://onnx.ai/onnx/operators/onnx__LSTM.html
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypedDict

from dlc.core.types import DType
from dlc.frontend.onnx.body import Body, Step, scan
from dlc.frontend.onnx.cast import cast_to
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.control import counter
from dlc.frontend.onnx.generate import fill
from dlc.frontend.onnx.indices import checked
from dlc.frontend.onnx.recurrent_activation import Activation, read_activations
from dlc.frontend.onnx.reshape import reshape_to, transpose, unsqueeze
from dlc.frontend.onnx.slicing import slice_axes, split_axis
from dlc.graph.arrays import NUMPY_DTYPES
from dlc.graph.graph import Value
from dlc.graph.ops.activation import Clip
from dlc.graph.ops.binary import Add, Less, Mul, Where
from dlc.graph.ops.matmul import MatMul
from dlc.graph.ops.shape import Concat
from dlc.te.expr import Const, Expr, index

Product = Callable[[Context, Value, Value, int, bool], Value]
"""(context, rows, weights, direction, whether they are of the state) -> rows of gates."""


@dataclass(frozen=True, slots=True)
class Layer:
    """The operands and attributes that the three operators share."""

    x: Value  # [seq, batch, input]
    w: Value  # [directions, gates * hidden, input]
    r: Value  # [directions, gates * hidden, hidden]
    bias: Value | None  # [directions, 2 * gates * hidden]
    hidden: int
    reverse: tuple[bool, ...]
    """For each direction."""
    activations: tuple[tuple[Activation, ...], ...]
    """For each direction."""
    clip: float | None
    batch_first: bool
    lengths: Value | None
    """Steps of each sequence, [batch], unless all are the same."""
    product: Product | None = None
    """How weights are multiplied that are no floats."""

    def multiply(
        self, ctx: Context, rows: Value, weights: Value, direction: int, *, of_state: bool
    ) -> Value:
        """The product of rows with weights of a direction, of the input or of the state."""
        if self.product is None:
            return ctx.call(MatMul(), rows, weights)
        return self.product(ctx, rows, weights, direction, of_state)

    @property
    def batch(self) -> Expr:
        """The size of a batch."""
        return self.x.type.shape[1]

    @property
    def steps(self) -> Expr:
        """The length of the longest sequence."""
        return self.x.type.shape[0]


Cell = Callable[["StepBuilder", list[Value], Value, list[Value]], list[Value]]
"""(body, carries, step of the input products, invariants) -> new carries; the first is hidden."""


@dataclass(frozen=True, slots=True)
class StepBuilder:
    """The graph of one step."""

    ctx: Context
    layer: Layer
    direction: int

    def recurrent(self, hidden: Value, weights: Value) -> Value:
        """The product of the state with weights of the direction."""
        return self.layer.multiply(self.ctx, hidden, weights, self.direction, of_state=True)

    def act(self, which: int, x: Value) -> Value:
        """An activation, after the clip that the operator may have."""
        clip = self.layer.clip
        if clip is not None:
            x = self.ctx.call(Clip(min=-clip, max=clip), x)
        return self.unclipped(which, x)

    def unclipped(self, which: int, x: Value) -> Value:
        """An activation."""
        return self.layer.activations[self.direction][which].of(self.ctx, x)

    def add(self, a: Value, b: Value) -> Value:
        """The sum."""
        return self.ctx.call(Add(), a, b)

    def mul(self, a: Value, b: Value) -> Value:
        """The product."""
        return self.ctx.call(Mul(), a, b)

    def parts(self, gates: Value, count: int) -> tuple[Value, ...]:
        """The parts of a row of gates."""
        return split_axis(self.ctx, gates, -1, None, count)


class LayerAttributes(TypedDict, total=False):
    """What ONNX says of every recurrent layer.

    Source: https://onnx.ai/onnx/operators/onnx__LSTM.html
    """

    activation_alpha: Sequence[float]
    activation_beta: Sequence[float]
    activations: Sequence[str]
    clip: float
    direction: str
    hidden_size: int
    layout: int


def read_layer(
    ctx: Context,
    x: Value,
    w: Value,
    r: Value,
    bias: Value | None,
    sequence_lens: Value | None,
    defaults: Sequence[str],
    *,
    activation_alpha: Sequence[float] = (),
    activation_beta: Sequence[float] = (),
    activations: Sequence[str] = (),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
) -> Layer:
    """Check and collect what the three operators share; `defaults` are their activations."""
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
    lengths = _lengths(ctx, x, sequence_lens)
    reverse = ways[direction]
    names = activations or [*defaults] * len(reverse)
    if len(names) != len(defaults) * len(reverse):
        ctx.refuse(f"{len(names)} activations, not {len(defaults) * len(reverse)}")
    chosen = read_activations(ctx, names, activation_alpha, activation_beta)
    count = len(defaults)
    per_direction = tuple(tuple(chosen[d * count : (d + 1) * count]) for d in range(len(reverse)))
    return Layer(
        x,
        w,
        r,
        bias,
        int(hidden.value),
        reverse,
        per_direction,
        clip or None,
        bool(layout),
        lengths,
    )


def _lengths(ctx: Context, x: Value, sequence_lens: Value | None) -> Value | None:
    if sequence_lens is None:
        return None
    if sequence_lens.type.shape != x.type.shape[1:2]:
        ctx.refuse(f"sequence_lens is {sequence_lens.type} for {x.type}")
    lengths = ctx.sizes(sequence_lens)
    if lengths is not None and all(n == x.type.shape[0] for n in lengths):
        return None
    inside = checked(ctx, sequence_lens, (x.type.shape[0] + 1,), negative=False)
    return cast_to(ctx, inside, DType.I64)


def initial_state(ctx: Context, layer: Layer, value: Value | None) -> Value:
    """A starting state [directions, batch, hidden]; zeros by default."""
    if value is not None:
        return transpose(ctx, value, (1, 0, 2)) if layer.batch_first else value
    if not layer.x.type.dtype.is_float:
        ctx.refuse(f"its input is {layer.x.type}")
    zero = NUMPY_DTYPES[layer.x.type.dtype].type(0)
    sizes = (index(len(layer.reverse)), layer.batch, index(layer.hidden))
    return fill(ctx, zero.reshape(()), sizes)


def one_direction(ctx: Context, value: Value, direction: int) -> Value:
    """One entry of the first axis, without the axis."""
    start = index(direction)
    one = slice_axes(ctx, value, [start], [start + 1], [0], [1])
    return reshape_to(ctx, one, value.type.shape[1:])


def _input_bias(ctx: Context, layer: Layer, direction: int, whole: bool) -> Value | None:
    """What is added to the products of the input: both biases, or (`whole` unset) the input's."""
    if layer.bias is None:
        return None
    both = one_direction(ctx, layer.bias, direction)
    first, second = split_axis(ctx, both, 0, None, 2)
    return ctx.call(Add(), first, second) if whole else first


def recurrent_bias(ctx: Context, layer: Layer, direction: int) -> list[Value]:
    """The half of the bias that belongs to the product with the state, if there is a bias."""
    if layer.bias is None:
        return []
    return [split_axis(ctx, one_direction(ctx, layer.bias, direction), 0, None, 2)[1]]


def run_layer(
    ctx: Context,
    layer: Layer,
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
    rows = reshape_to(ctx, layer.x, (layer.steps * layer.batch, layer.x.type.shape[2]))
    for d in range(len(layer.reverse)):
        weights = transpose(ctx, one_direction(ctx, layer.w, d), (1, 0))
        products = layer.multiply(ctx, rows, weights, d, of_state=False)
        bias = _input_bias(ctx, layer, d, whole_bias)
        if bias is not None:
            products = ctx.call(Add(), products, bias)
        products = reshape_to(ctx, products, (layer.steps, layer.batch, weights.type.shape[1]))
        recurrent = transpose(ctx, one_direction(ctx, layer.r, d), (1, 0))
        carries = [one_direction(ctx, s, d) for s in starts]
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
    layer: Layer,
    direction: int,
    carries: list[Value],
    products: Value,
    invariants: list[Value],
    cell: Cell,
) -> tuple[Value, ...]:
    """One direction: final carries, then the hidden state of every step [seq, batch, hidden]."""

    def step(inner: Body, state: list[Value], elements: list[Value]) -> Step:
        body = StepBuilder(inner, layer, direction)
        made = cell(body, state, elements[0], invariants)
        if layer.lengths is None:
            return Step(made, made[:1])
        return _within(inner, layer.lengths, elements[1], state, made)

    sequences = [products] if layer.lengths is None else [products, counter(ctx, layer.steps)]
    name = f"{ctx.node.op_type.lower()}_cell"
    return scan(ctx, name, carries, sequences, step, reverse=layer.reverse[direction])


def _within(
    body: Body, lengths: Value, number: Value, before: list[Value], after: list[Value]
) -> Step:
    """Beyond the end of its sequence a state stays as it is, and the result is zero.

    Backwards too: there the steps beyond the end come first, and leave the initial state alone.
    """
    runs = body.call(Less(), number, lengths)
    runs = reshape_to(body, runs, (*runs.type.shape, index(1)))
    state = [body.call(Where(), runs, new, old) for old, new in zip(before, after, strict=True)]
    zero = body.scalar(0, after[0].type.dtype)
    return Step(state, [body.call(Where(), runs, after[0], zero)])
