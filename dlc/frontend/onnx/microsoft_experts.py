"""Converters of onnxruntime's mixtures of experts: rows meet the matrices that are chosen for them.

Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict, Unpack

import numpy as np

from dlc.core.types import INDEX, DType
from dlc.frontend.onnx.cast import cast_to
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.few_bits import BYTES, in_blocks, rounded_to_bytes, unpacked
from dlc.frontend.onnx.microsoft import DOMAIN
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.reshape import reshape_to, transpose, unsqueeze
from dlc.frontend.onnx.slicing import slice_axes
from dlc.graph.graph import Value
from dlc.graph.op import Array
from dlc.graph.ops.activation import Clip, Gelu, Relu, Silu
from dlc.graph.ops.attributes import as_sizes
from dlc.graph.ops.binary import Add, Div, Equal, Mul, Where
from dlc.graph.ops.gather import Gather, GatherElements
from dlc.graph.ops.matmul import MatMul
from dlc.graph.ops.reduce import Reduce
from dlc.graph.ops.shape import Expand
from dlc.graph.ops.softmax import Softmax
from dlc.graph.ops.sort import TopK
from dlc.te.expr import ONE, ZERO, Expr, const, index
from dlc.te.simplify import canonical

_HALF, _BYTE = 4, 8  # bits


@dataclass(frozen=True, slots=True)
class Activation:
    """What stands between the two layers of an expert; `silu` may be a gate for a third one.

    In `swiglu` a gate g and a factor v give g * sigmoid(alpha * g) * (v + beta), g at most `limit`
    and v between -`limit` and `limit`. They lie side by side where `fusion` is 1, in halves where
    it is 2, and are the first and the third layer where it is 0.
    """

    name: str
    alpha: float
    beta: float
    limit: float
    fusion: int

    def run(self, ctx: Context, h: Value, third: Value | None) -> Value:
        """The activation of [experts, rows, size]."""
        if self.name == "swiglu":
            gate, factor = self._parts(ctx, h, third)
            if math.isfinite(self.limit):
                gate = ctx.call(Clip(max=self.limit), gate)
                factor = ctx.call(Clip(min=-self.limit, max=self.limit), factor)
            if self.beta:
                factor = ctx.call(Add(), factor, ctx.scalar(self.beta, h.type.dtype))
            return ctx.call(Mul(), ctx.call(Silu(alpha=self.alpha), gate), factor)
        if third is not None and self.name != "silu":
            ctx.refuse(f"a third layer beside the activation '{self.name}'")
        match self.name:
            case "relu":
                return ctx.call(Relu(), h)
            case "gelu":
                return ctx.call(Gelu(approximate="tanh"), h)
            case "silu":
                y = ctx.call(Silu(), h)
                return y if third is None else ctx.call(Mul(), y, third)
            case "identity":
                return h
        ctx.refuse(f"activation_type = '{self.name}' is not known")

    def _parts(self, ctx: Context, h: Value, third: Value | None) -> tuple[Value, Value]:
        """The gate and the factor."""
        size = h.type.shape[2]
        starts: tuple[Expr, Expr]
        match self.fusion, third:
            case 0, Value():
                return h, third
            case 1, None:
                starts, ends, step = (ZERO, ONE), (size, size), 2
            case 2, None:
                half = canonical(size // 2)
                starts, ends, step = (ZERO, half), (half, size), 1
            case _:
                beside = "without" if third is None else "with"
                ctx.refuse(f"swiglu_fusion = {self.fusion} {beside} a third layer")
        gate, factor = (
            slice_axes(ctx, h, [a], [b], [2], [step]) for a, b in zip(starts, ends, strict=True)
        )
        return gate, factor


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of all experts; rows are rounded to bytes where `block` says how many together.

    Shapes:
        weights: [experts, n, depth]; bias: [experts, n]
    """

    weights: Value
    bias: Value | None
    block: int | None = None

    def run(self, ctx: Context, rows: Value, which: Value) -> Value:
        """What becomes of each row by an expert of its own: [rows, 1, depth] -> [rows, 1, n]."""
        if self.block is not None:
            *_, depth = self.weights.type.static_shape
            rows = rounded_to_bytes(ctx, rows, -(-depth // self.block), self.block)
        matrices = ctx.call(Gather(axis=0), transpose(ctx, self.weights, (0, 2, 1)), which)
        y = ctx.call(MatMul(), rows, matrices)
        if self.bias is None:
            return y
        bias = ctx.call(Gather(axis=0), self.bias, which)
        return ctx.call(Add(), y, unsqueeze(ctx, bias, (1,)))


class ExpertAttributes(TypedDict, total=False):
    """What onnxruntime says of every mixture of experts."""

    activation_alpha: float
    activation_beta: float
    activation_type: str
    k: int
    swiglu_fusion: int
    swiglu_limit: float
    use_sparse_mixer: int


@converter("MoE", since=1, domain=DOMAIN)
def convert_moe(
    ctx: Context,
    x: Value,
    router: Value,
    first: Value,
    first_bias: Value | None = None,
    second: Value | None = None,
    second_bias: Value | None = None,
    third: Value | None = None,
    third_bias: Value | None = None,
    *,
    normalize_routing_weights: int = 0,
    **attributes: Unpack[ExpertAttributes],
) -> Value:
    """The `k` experts that a router gives the most weight to, each two layers, in their mean.

    Shapes:
        x: [rows, hidden] or [batch, length, hidden]; router: [rows, experts]; first and third:
        [experts, size, hidden] and [experts, size]; second: [experts, hidden, size] and
        [experts, hidden] -> as x
    """
    if second is None:
        ctx.refuse("it has no second layer")
    layers = [Layer(first, first_bias), Layer(second, second_bias)]
    if third is not None:
        layers.append(Layer(third, third_bias))
    routing = Routing(router, bool(normalize_routing_weights))
    return _mean_of_experts(ctx, x, routing, layers, **attributes)


@converter("QMoE", since=1, domain=DOMAIN)
def convert_qmoe(
    ctx: Context,
    x: Value,
    router: Value,
    first: Value,
    first_scale: Value | None = None,
    first_bias: Value | None = None,
    second: Value | None = None,
    second_scale: Value | None = None,
    second_bias: Value | None = None,
    third: Value | None = None,
    third_scale: Value | None = None,
    third_bias: Value | None = None,
    first_zero: Value | None = None,
    second_zero: Value | None = None,
    third_zero: Value | None = None,
    weights: Value | None = None,
    *,
    accuracy_level: int = 0,
    block_size: int = -1,
    expert_weight_bits: int = 4,
    fc1_expert_weight_bits: int | None = None,
    fc2_expert_weight_bits: int | None = None,
    fc3_expert_weight_bits: int | None = None,
    normalize_routing_weights: int = 0,
    quant_type: str = "int",
    weights_prepacked: int = -1,
    **attributes: Unpack[ExpertAttributes],
) -> Value:
    """The same of weights of 2, 4 or 8 bits, whose columns or blocks of columns share a scale.

    Rows are rounded to bytes, a block of the weights at a time, where these have 8 bits, and where
    they have 4 at `accuracy_level` 4. Experts weigh what the router gives them among those that
    are chosen, or else what stands in `weights`.

    Shapes:
        x, router, biases: see `MoE`; weights of layers: u8[experts, n, depth * bits / 8]; scales:
        [experts, n] or [experts, n, blocks]; zero points: the same in u8, packed along the last
        axis; weights: [rows, experts] -> as x
    """
    if second is None:
        ctx.refuse("it has no second layer")
    if quant_type != "int":
        ctx.refuse(f"quant_type = '{quant_type}' is not handled")
    if weights_prepacked > 0:
        ctx.refuse("weights_prepacked: the layout is that of one kind of GPU")
    operands = [
        (first, first_scale, first_zero, first_bias, fc1_expert_weight_bits),
        (second, second_scale, second_zero, second_bias, fc2_expert_weight_bits),
    ]
    if third is not None:
        operands.append((third, third_scale, third_zero, third_bias, fc3_expert_weight_bits))
    layers = []
    for data, scale, zero, bias, own_bits in operands:
        bits = expert_weight_bits if own_bits is None else own_bits
        in_bytes = block_size > 0 and (bits == _BYTE or (bits, accuracy_level) == (_HALF, BYTES))
        wide = None if bias is None else cast_to(ctx, bias, DType.F32)
        matrices = _dequantized(ctx, data, scale, zero, bits, block_size)
        layers.append(Layer(matrices, wide, block_size if in_bytes else None))
    rows, shares = cast_to(ctx, x, DType.F32), cast_to(ctx, router, DType.F32)
    given = None if weights is None else cast_to(ctx, weights, DType.F32)
    routing = Routing(shares, given is None or bool(normalize_routing_weights), given)
    return cast_to(ctx, _mean_of_experts(ctx, rows, routing, layers, **attributes), x.type.dtype)


def _dequantized(
    ctx: Context, data: Value, scale: Value | None, zero: Value | None, bits: int, block_size: int
) -> Value:
    """The weights of a layer: [experts, n, depth]."""
    if bits not in (2, 4, 8):
        ctx.refuse(f"weights of {bits} bits are not handled")
    if scale is None:
        ctx.refuse("its weights have no scales")
    packed, factor = ctx.array(data), ctx.array(scale)
    points = None if zero is None else ctx.array(zero)
    if packed is None or factor is None or (zero is not None and points is None):
        ctx.refuse("its weights are computed at run time")
    if data.type.dtype is not DType.U8 or packed.ndim != 3:
        ctx.refuse(f"weights of type {data.type} are not bytes of experts, rows and columns")
    experts, n, _ = packed.shape
    numbers = unpacked(packed, bits).reshape(experts, n, -1)
    depth = numbers.shape[2]
    block = block_size if block_size > 0 else depth
    shape = experts, n, -(-depth // block)
    if factor.size != np.prod(shape):
        ctx.refuse(f"scales of type {scale.type} are not those of {shape[2]} blocks of {data.type}")
    middle = np.full(shape, 1 << (bits - 1), np.float32)
    if points is not None:
        middle = _points(ctx, points, shape, bits)
    return in_blocks(ctx, numbers, factor.astype(np.float32).reshape(shape), middle, bits, block)


def _points(ctx: Context, packed: Array, shape: tuple[int, int, int], bits: int) -> Array:
    """Zero points, packed by blocks, or by columns where each of these has one."""
    experts, n, blocks = shape
    along = blocks if packed.ndim == 3 else n
    found = unpacked(packed, bits).reshape(*packed.shape[:-1], -1)[..., :along]
    if packed.dtype != np.uint8 or found.size != np.prod(shape):
        ctx.refuse(
            f"{packed.size} bytes of zero points are not those of {experts} x {n} x {blocks}"
        )
    return found.reshape(shape).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Routing:
    """Which experts see a row, and what each of them weighs: its share, or what `weights` say.

    Shapes:
        router, weights: [rows, experts]
    """

    router: Value
    normalized: bool
    weights: Value | None = None

    def choose(self, ctx: Context, k: int) -> tuple[Value, Value]:
        """What the experts of each row weigh, [rows, k, 1], and which ones they are, [rows * k]."""
        given = self.router if self.weights is not None else ctx.call(Softmax(axis=1), self.router)
        best, at = ctx.call_all(TopK(k=const(k, INDEX), axis=1, largest=True), given, count=2)
        if self.weights is not None:
            best = ctx.call(GatherElements(axis=1), self.weights, at)
        if self.normalized:
            total = ctx.call(Reduce(kind="sum", axes=(1,), keepdims=True), best)
            if self.weights is not None:  # which may all be zero
                zero, one = (ctx.scalar(n, total.type.dtype) for n in (0.0, 1.0))
                total = ctx.call(Where(), ctx.call(Equal(), total, zero), one, total)
            best = ctx.call(Div(), best, total)
        return unsqueeze(ctx, best, (2,)), reshape_to(ctx, at, (at.type.shape[0] * k,))


def _mean_of_experts(
    ctx: Context,
    x: Value,
    routing: Routing,
    layers: Sequence[Layer],
    *,
    activation_alpha: float = 1.0,
    activation_beta: float = 0.0,
    activation_type: str = "relu",
    k: int = 1,
    swiglu_fusion: int = 0,
    swiglu_limit: float = math.inf,
    use_sparse_mixer: int = 0,
) -> Value:
    """Each row by its own experts: the first layer, perhaps beside a third one, then the second."""
    if use_sparse_mixer:
        ctx.refuse("use_sparse_mixer is not handled")
    how = Activation(
        activation_type, activation_alpha, activation_beta, swiglu_limit, swiglu_fusion
    )
    router, types = routing.router.type, [layer.weights.type for layer in layers]
    if x.type.rank not in (2, 3) or router.rank != 2 or any(t.rank != 3 for t in types):
        ctx.refuse(f"experts {', '.join(map(str, types))} of {router} for {x.type}")
    share, which = routing.choose(ctx, k)
    rows, hidden = router.shape[0], x.type.shape[-1]
    each = unsqueeze(ctx, reshape_to(ctx, x, (rows, hidden)), (1,))
    each = ctx.call(Expand(shape=as_sizes((rows, k, hidden))), each)
    each = reshape_to(ctx, each, (rows * k, ONE, hidden))
    first, second, *third = layers
    beside = third[0].run(ctx, each, which) if third else None
    found = second.run(ctx, how.run(ctx, first.run(ctx, each, which), beside), which)
    weighted = ctx.call(Mul(), reshape_to(ctx, found, (rows, index(k), hidden)), share)
    y = ctx.call(Reduce(kind="sum", axes=(1,), keepdims=False), weighted)
    return reshape_to(ctx, y, x.type.shape)
