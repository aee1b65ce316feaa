"""Everything but convolutions in blocked form: what works on each element, each channel, each part.

Each function writes a node in blocked form and returns True, or writes nothing and returns False.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dlc.core.types import DType
from dlc.graph.arrays import NUMPY_DTYPES
from dlc.graph.blocking import Blocked, Blocking
from dlc.graph.graph import Node, Value
from dlc.graph.layout import Channels, block_constant, split_axis, spread
from dlc.graph.op import Array
from dlc.graph.ops.activation import (
    Clip,
    Elu,
    Gelu,
    HardSigmoid,
    HardSwish,
    LeakyRelu,
    Mish,
    Relu,
    Selu,
    Sigmoid,
    Silu,
    Softplus,
    Softsign,
)
from dlc.graph.ops.attributes import as_sizes
from dlc.graph.ops.binary import Add, Maximum, Minimum, Mul, PRelu, Sub, Where
from dlc.graph.ops.elementwise import Abs, Cast, Erf, Identity, Neg, Round, Sign, Tanh
from dlc.graph.ops.layout import ChannelShuffle
from dlc.graph.ops.norm import BatchNorm, InstanceNorm
from dlc.graph.ops.norm_blocked import InstanceNormBlocked
from dlc.graph.ops.pool import AveragePool, MaxPool
from dlc.graph.ops.reduce import Reduce
from dlc.graph.ops.resize import Resize
from dlc.graph.ops.shape import Concat, Pad, Reshape, Slice
from dlc.te.expr import ONE, ZERO, Const
from dlc.te.types import TensorType, is_const

FINITE = (
    *(Abs, Add, Cast, Clip, Elu, Erf, Gelu, HardSigmoid, HardSwish, Identity, LeakyRelu, Maximum),
    *(Minimum, Mish, Mul, Neg, PRelu, Relu, Round, Selu, Sigmoid, Sign, Silu, Softplus, Softsign),
    *(Sub, Tanh, Where),
)
"""Operators whose result is finite for finite operands, short of overflow."""

FINITE_KINDS = frozenset({"sum", "mean", "max", "min", "sum_square", "l1", "l2", "l_inf"})
ZERO_KEEPING = frozenset({"sum", "mean", "max", "min", "sum_square", "l1", "l2", "l_inf", "prod"})
"""Reductions of finite elements that are finite, and reductions of zeros that are zero."""


@dataclass(frozen=True, slots=True)
class _Operand:
    """How one operand joins a blocked operation, and what it holds in idle lanes (None: unknown).

    `fill` asks for the value that idle lanes of a constant are to get.
    """

    build: Callable[[float], Value]
    idle: float | None = None
    takes_fill: bool = False


def block_elementwise(blocking: Blocking, node: Node) -> bool:
    """An elementwise operator, if an operand as large as its result is blocked."""
    if len(node.outputs) != 1 or node.output.type.rank < 3 or isinstance(node.op, BatchNorm):
        return False
    full = [v for v in node.inputs if v.type.shape == node.output.type.shape]
    forms = [f for v in full if (f := blocking.find_blocked(v)) is not None]
    if not forms:
        return False
    channels = forms[0].channels
    operands = [_operand(blocking, v, node.output.type.rank, channels) for v in node.inputs]
    known = [o for o in operands if o is not None]
    if len(known) < len(operands):
        return False
    found = _idle_lanes(node, known, channels)
    if found is None:
        return False
    fill, idle = found
    result = blocking.call(node.op, *(o.build(fill) for o in known))
    blocking.set_blocked(node.output, Blocked(result, channels, idle))
    return True


def _operand(blocking: Blocking, value: Value, rank: int, channels: Channels) -> _Operand | None:
    """How an operand can join tensors of these channels; None if it cannot."""
    array = blocking.array(value)
    if array is not None:
        return _constant_operand(blocking, value, array, rank, channels)
    shape, form = value.type.shape, blocking.find_blocked(value)
    if form is not None and form.channels == channels and value.type.rank == rank:
        return _Operand(lambda _: form.value, idle=form.idle)
    if all(is_const(s, 1) for s in shape):
        flat = Reshape(shape=as_sizes((1,) * (rank + 1)))
        name = f"{value.name}_flat"
        return _Operand(lambda _: blocking.call(flat, blocking.planar(value), hint=name))
    if value.type.rank != rank:
        return None
    if is_const(shape[1], 1) and channels.count > 1:
        return _Operand(lambda _: _one_channel(blocking, value))
    if not is_const(shape[1], channels.count):
        return None
    if form is None and channels.is_contiguous:
        return _Operand(lambda _: blocking.blocked(value).value, idle=0.0)
    return _Operand(lambda _: blocking.repacked(value, channels), idle=0.0)


def _constant_operand(
    blocking: Blocking, value: Value, array: Array, rank: int, channels: Channels
) -> _Operand | None:
    probe = block_constant(array, rank, channels)
    if probe is None:
        return None

    def build(fill: float) -> Value:
        blocked = block_constant(array, rank, channels, fill)
        assert blocked is not None
        return blocking.constant(blocked, value, f"{value.name}_blocked")

    per_channel = probe.shape[-1] > 1
    idle = float(array.reshape(-1)[0]) if array.size == 1 and not per_channel else None
    return _Operand(build, idle=idle, takes_fill=per_channel)


def _one_channel(blocking: Blocking, value: Value) -> Value:
    """[n, 1, *s] as [n, 1, *s, 1], which broadcasts over blocks and lanes."""
    form = blocking.find_blocked(value)
    shape = as_sizes((*value.type.shape, 1))
    if form is None:
        return blocking.call(Reshape(shape=shape), blocking.planar(value), hint=f"{value.name}_all")
    sliced = Slice(starts=as_sizes((0,) * len(shape)), sizes=shape)
    return blocking.call(sliced, form.value, hint=f"{value.name}_all")


def _idle_lanes(
    node: Node, operands: Sequence[_Operand], channels: Channels
) -> tuple[float, float | None] | None:
    """What constants are to hold in idle lanes, and what the result then holds there.

    Zeros are tried first, then ones, which save a division. None if neither keeps the idle lanes
    finite.
    """
    if not channels.has_idle_lanes:
        return 0.0, None
    for fill in (0.0, 1.0):
        known = [fill if o.takes_fill else o.idle for o in operands]
        if any(k is None for k in known):
            continue
        arrays = [
            np.asarray([k]).astype(NUMPY_DTYPES[_exact(v.type.dtype)])
            for k, v in zip(known, node.inputs, strict=True)
        ]
        result = node.op.reference(*arrays)
        assert not isinstance(result, tuple)
        if math.isfinite(result[0]):
            return fill, float(result[0])
    return (0.0, None) if isinstance(node.op, FINITE) else None


def _exact(dtype: DType) -> DType:
    return DType.F64 if dtype.is_float else dtype


def block_pool(blocking: Blocking, node: Node) -> bool:
    """A pool of a blocked tensor. Where zeros cannot win, they are its halo and cost no test."""
    op, (x,) = node.op, node.inputs
    assert isinstance(op, MaxPool | AveragePool)
    form = blocking.find_blocked(x)
    if form is None:
        return False
    value = form.value
    zeros_do = op.count_include_pad if isinstance(op, AveragePool) else blocking.is_nonnegative(x)
    if any(op.pads) and zeros_do and not op.ceil_mode:
        rank = len(op.kernel)
        before, after = (0, 0, *op.pads[:rank], 0), (0, 0, *op.pads[rank:], 0)
        value = blocking.call(
            Pad(before=as_sizes(before), after=as_sizes(after)), value, hint=f"{value.name}_halo"
        )
        op = replace(op, pads=(0,) * (2 * rank))
    idle = 0.0 if form.idle == 0.0 else None
    blocking.set_blocked(node.output, Blocked(blocking.call(op, value), form.channels, idle))
    return True


def block_reduce(blocking: Blocking, node: Node) -> bool:
    """A reduction over spatial axes, or over all channels where no lane is idle."""
    op, (x,) = node.op, node.inputs
    assert isinstance(op, Reduce)
    form = blocking.find_blocked(x)
    if form is None:
        return False
    axes = tuple(sorted(a % x.type.rank for a in op.axes))
    if axes and axes[0] >= 2:
        reduced = blocking.call(replace(op, axes=axes, keepdims=True), form.value)
        idle = 0.0 if form.idle == 0.0 and op.kind in ZERO_KEEPING else None
        small = Blocked(reduced, form.channels, idle)
        if op.kind not in FINITE_KINDS and form.channels.has_idle_lanes and idle is None:
            return False
        _set_reduced(blocking, node, op, small, axes)
        return True
    if axes == (1,) and not form.channels.has_idle_lanes and form.channels.is_contiguous:
        blocked_axes = (1, x.type.rank)
        reduced = blocking.call(replace(op, axes=blocked_axes, keepdims=True), form.value)
        shape = node.output.type.shape
        blocking.set_planar(
            node.output, blocking.call_as(Reshape(shape=shape), reduced, old=node.output)
        )
        return True
    return False


def _set_reduced(
    blocking: Blocking, node: Node, op: Reduce, small: Blocked, axes: tuple[int, ...]
) -> None:
    if op.keepdims:
        blocking.set_blocked(node.output, small)
        return
    x = node.inputs[0]
    shape = tuple(ONE if d in axes else s for d, s in enumerate(x.type.shape))
    kept = Value(blocking.fresh(f"{node.output.name}_kept"), TensorType(shape, x.type.dtype))
    blocking.set_blocked(kept, small)
    planar = blocking.planar(kept)
    result = blocking.call_as(Reshape(shape=node.output.type.shape), planar, old=node.output)
    blocking.set_planar(node.output, result)


def block_instance_norm(blocking: Blocking, node: Node) -> bool:
    """An instance normalisation with constant scale and bias."""
    op, (x, scale, bias) = node.op, node.inputs
    assert isinstance(op, InstanceNorm)
    form = blocking.find_blocked(x)
    vectors = [(v, blocking.array(v)) for v in (scale, bias)]
    if form is None or any(a is None for _, a in vectors):
        return False
    channels = form.channels
    blocked = [
        blocking.constant(
            split_axis(spread(a, 0, channels), 0, blocking.block), v, f"{v.name}_blocked"
        )
        for v, a in vectors
        if a is not None
    ]
    result = blocking.call(InstanceNormBlocked(epsilon=op.epsilon), form.value, *blocked)
    blocking.set_blocked(node.output, Blocked(result, channels))
    return True


def block_concat(blocking: Blocking, node: Node) -> bool:
    """A concatenation: of channels, part after part; along other axes, of equal channels."""
    op, rank = node.op, node.output.type.rank
    assert isinstance(op, Concat)
    axis = op.axis % rank
    forms = [blocking.find_blocked(v) for v in node.inputs]
    if all(f is None for f in forms) or rank < 3 or not blocking.wants_blocked(node.output):
        return False
    if not all(isinstance(v.type.shape[1], Const) for v in node.inputs):
        return False
    missing = [v for v, f in zip(node.inputs, forms, strict=True) if f is None]
    if any(blocking.array(v) is not None for v in missing) or len(missing) * 2 > len(forms):
        return False
    parts = [blocking.blocked(v) for v in node.inputs]
    if axis != 1 and len({p.channels for p in parts}) > 1:
        return False
    channels = parts[0].channels
    if axis == 1:
        channels = Channels.join(blocking.block, [p.channels for p in parts])
    idle = parts[0].idle if len({p.idle for p in parts}) == 1 else None
    result = blocking.call(Concat(axis=axis), *(p.value for p in parts))
    blocking.set_blocked(node.output, Blocked(result, channels, idle))
    return True


def block_channel_shuffle(blocking: Blocking, node: Node) -> bool:
    """A shuffle of channels: they stay where they are if whoever reads them finds them there.

    Else it takes them to where their readers want them.
    """
    op, (x,) = node.op, node.inputs
    assert isinstance(op, ChannelShuffle)
    form = blocking.find_blocked(x)
    if form is None:
        return False
    count = form.channels.count
    order = np.swapaxes(np.arange(count).reshape(op.groups, count // op.groups), 0, 1).reshape(-1)
    found = form.channels.ordered(order.tolist())
    if blocking.finds_channels(node.output):
        blocking.set_blocked(node.output, replace(form, channels=found))
        return True
    channels = blocking.wanted_channels(node.output) or Channels.of(blocking.block, count)
    moved = blocking.move(form, found.lanes, channels, f"{node.output.name}_blocked")
    blocking.set_blocked(node.output, moved)
    return True


def block_slice(blocking: Blocking, node: Node) -> bool:
    """A slice that keeps all channels, or takes whole blocks of them."""
    op, (x,) = node.op, node.inputs
    assert isinstance(op, Slice)
    form = blocking.find_blocked(x)
    if form is None:
        return False
    start, size, step = op.starts[1], op.sizes[1], op.strides[1]
    if not isinstance(start, Const) or not isinstance(size, Const) or step != 1:
        return False
    found = form.channels.part(int(start.value), int(size.value))
    if found is None:
        return False
    first, channels = found
    blocked = Slice(
        starts=as_sizes((op.starts[0], first, *op.starts[2:], 0)),
        sizes=as_sizes((op.sizes[0], channels.blocks, *op.sizes[2:], blocking.block)),
        steps=(*op.strides, 1),
    )
    result = blocking.call(blocked, form.value)
    blocking.set_blocked(node.output, Blocked(result, channels, form.idle))
    return True


def block_pad(blocking: Blocking, node: Node) -> bool:
    """A pad of spatial axes or of the batch."""
    op, (x,) = node.op, node.inputs
    assert isinstance(op, Pad)
    form = blocking.find_blocked(x)
    if form is None or not is_const(op.before[1], 0) or not is_const(op.after[1], 0):
        return False
    blocked = replace(op, before=(*op.before, ZERO), after=(*op.after, ZERO))
    idle = form.idle if form.idle == op.value or op.mode != "constant" else None
    result = blocking.call(blocked, form.value)
    blocking.set_blocked(node.output, Blocked(result, form.channels, idle))
    return True


def block_resize(blocking: Blocking, node: Node) -> bool:
    """A resize that keeps the channels."""
    op, (x,) = node.op, node.inputs
    assert isinstance(op, Resize)
    form = blocking.find_blocked(x)
    if form is None or op.sizes[1] != x.type.shape[1] or (op.scales and op.scales[1] != 1.0):
        return False
    sizes = as_sizes((op.sizes[0], form.channels.blocks, *op.sizes[2:], blocking.block))
    scales = (*op.scales, 1.0) if op.scales else ()
    result = blocking.call(replace(op, sizes=sizes, scales=scales), form.value)
    idle = 0.0 if form.idle == 0.0 else None
    blocking.set_blocked(node.output, Blocked(result, form.channels, idle))
    return True
