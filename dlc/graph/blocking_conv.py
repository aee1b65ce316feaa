"""Convolutions in blocked form: which kind, and their weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dlc.core.types import DType
from dlc.graph.blocking import Blocked, Blocking
from dlc.graph.blocking_border import makes_planar, multiplies_pixels, reads_planar
from dlc.graph.graph import Node, Value
from dlc.graph.integers import BYTES
from dlc.graph.layout import (
    Channels,
    GroupLayout,
    block_conv_weights,
    blocks_for,
    depthwise_weights,
    group_layout,
    join_groups,
    lane_weights,
)
from dlc.graph.live_taps import worth_leaving_out
from dlc.graph.op import Array
from dlc.graph.ops.attributes import as_sizes
from dlc.graph.ops.conv import Conv
from dlc.graph.ops.conv_blocked import BlockedConv, ConvBlocked, DepthwiseBlocked, PlanarConv
from dlc.graph.ops.conv_gathered import ConvGathered
from dlc.graph.ops.conv_lanes import ConvLanes
from dlc.graph.ops.matmul import MatMul
from dlc.graph.ops.shape import Pad, Reshape
from dlc.te.expr import Const
from dlc.te.types import const_size, elements_of

MAX_EXTRA_WORK = 8
"""Idle lanes and joined groups multiply the work; by more than this, the direct kernel wins.

Source: measured: grouped kernels reach an eighth of the speed of dense ones.
"""


def block_conv(blocking: Blocking, node: Node) -> bool:
    """A convolution with constant weights."""
    op, x, w = _parts(node)
    array = blocking.array(w)
    if array is None or not _can_block(w.type.dtype) or array.shape[0] == 0:
        return False
    if not isinstance(x.type.shape[1], Const):
        return False  # as many channels as the weights need, but the model does not say so
    oc, per_group = array.shape[:2]
    if multiplies_pixels(blocking, node, array):
        _pixels(blocking, node, array)
        return True
    if per_group == 1 and op.groups == oc and op.groups > 1:
        form = _depthwise(blocking, node, array)
    elif op.groups > 1:
        found = _grouped(blocking, node, array)
        if found is None:
            return False
        form = found
    elif makes_planar(blocking, node):
        _few(blocking, node)
        return True
    elif blocking.find_blocked(x) is None and reads_planar(blocking, node, per_group):
        form = _planar(blocking, node, array)
    else:
        form = _dense(blocking, node, array)
    blocking.set_blocked(node.output, form)
    return True


def _few(blocking: Blocking, node: Node) -> None:
    """A convolution of few results stays as it is, but for its halo."""
    op, x, w = _parts(node)
    halo = _with_halo(blocking, op, blocking.planar(x), lanes=0)
    plain = replace(op, pads=(0,) * len(op.pads))
    blocking.set_planar(node.output, blocking.call_as(plain, halo, w, old=node.output))


def _pixels(blocking: Blocking, node: Node, array: Array) -> None:
    """A convolution of single pixels is a product of the weights and the pixels of an image."""
    op, x, w = _parts(node)
    n, _, *pixels = x.type.shape
    results, channels = array.shape[:2]
    stack = (op.groups,) if op.groups > 1 else ()
    flat = Reshape(shape=as_sizes((n, *stack, channels, elements_of(tuple(pixels)))))
    rows = array.reshape(*stack, results // op.groups, channels)
    matrix = blocking.constant(rows, w, f"{w.name}_rows")
    result = blocking.call(MatMul(), matrix, blocking.call(flat, blocking.planar(x)))
    image = Reshape(shape=node.output.type.shape)
    blocking.set_planar(node.output, blocking.call_as(image, result, old=node.output))


def _dense(blocking: Blocking, node: Node, array: Array, *, sparse: bool = False) -> Blocked:
    op, x, w = _parts(node)
    source = blocked_source(blocking, x)
    outputs = _outputs(blocking, node, array)
    blocked_op = ConvBlocked(
        stride=op.stride, dilation=op.dilation, sparse=sparse, turned=w.type.dtype in BYTES,
        used=_used(blocking, source.channels, w),
        zeros=() if sparse else _zeros(blocking, node, array),
    )  # fmt: skip
    weights = _weights(blocking, blocked_op, w, block_conv_weights(array, source.channels, outputs))
    halo = _with_halo(blocking, op, source.value, lanes=1)
    result = blocking.call(blocked_op, halo, weights)
    return Blocked(blocking.without_idle(result, outputs), outputs)


def _weights(blocking: Blocking, op: ConvBlocked, w: Value, packed: Array) -> Value:
    """Weights of a blocked convolution, as it reads them, from [ob, cb, *k, ci, oc]."""
    turned = np.swapaxes(packed, -1, -2) if op.turned else packed
    return blocking.constant(turned, w, f"{w.name}_blocked")


def _used(blocking: Blocking, channels: Channels, w: Value) -> int:
    """How many channels of a block are summands; 0 for all, as where engines take whole blocks."""
    is_whole = channels.used == channels.block or w.type.dtype in BYTES
    return 0 if is_whole or blocking.context.target.gpu is not None else channels.used


def _zeros(blocking: Blocking, node: Node, array: Array) -> tuple[int, ...]:
    """The zeros around an image that are told from pixels, as no summands: where there are many.

    Infinity times 0 is NaN, and stays a summand.
    """
    op, x, w = _parts(node)
    _, _, *sizes = x.type.shape
    if blocking.context.target.gpu is not None or not w.type.dtype.is_float:
        return ()
    if not np.isfinite(array).all() or not all(isinstance(n, Const) for n in sizes):
        return ()
    pixels, blocks = tuple(map(const_size, sizes)), blocks_for(array.shape[0], blocking.block)
    return worth_leaving_out(
        pixels, array.shape[2:], op.stride, op.dilation, op.pads, blocks, blocking.context.target
    )


def blocked_source(blocking: Blocking, x: Value) -> Blocked:
    """The blocked form of an operand, with finite numbers in its idle lanes: 0 times these is 0."""
    form = blocking.blocked(x)
    if form.idle is not None:
        return form
    value = blocking.without_idle(form.value, form.channels)
    return form if value is form.value else replace(form, value=value, idle=0.0)


def _depthwise(blocking: Blocking, node: Node, array: Array) -> Blocked:
    op, x, _ = _parts(node)
    packed = depthwise_weights(array, blocking.blocked(x).channels)
    return _in_lanes(
        blocking, node, DepthwiseBlocked(stride=op.stride, dilation=op.dilation), packed
    )


def _in_lanes(blocking: Blocking, node: Node, conv: BlockedConv, packed: Array) -> Blocked:
    """Groups that lie within blocks, whose results stand where their channels do."""
    op, x, w = _parts(node)
    source = blocked_source(blocking, x)
    weights = blocking.constant(packed, w, f"{w.name}_blocked")
    halo = _with_halo(blocking, op, source.value, lanes=1)
    return Blocked(blocking.call(conv, halo, weights), source.channels)


def _grouped(blocking: Blocking, node: Node, array: Array) -> Blocked | None:
    """Groups are shuffled within a block, filled up to whole blocks, or joined until they fill
    some, if it costs little.
    """
    op, x, w = _parts(node)
    form = blocking.find_blocked(x)
    if blocking.fits_lanes(node) and (form is None or form.channels.is_contiguous):
        packed = lane_weights(array, blocking.blocked(x).channels)
        return _in_lanes(blocking, node, ConvLanes(stride=op.stride, dilation=op.dilation), packed)
    layout = layout_of_groups(blocking, array, op.groups)
    if layout is None:
        return None
    dense = join_groups(array, op.groups, layout.joined)
    sparse = layout.joined > 1 and w.type.dtype.is_float  # bytes are finite
    if layout.groups == 1:
        return _dense(blocking, node, dense, sparse=sparse)
    if form is not None and form.channels.order and layout.joined == 1:
        return _gathered(blocking, node, form, dense, layout)
    source = grouped_source(blocking, x, layout)
    inputs = Channels.of(blocking.block, dense.shape[1])
    blocked_op = ConvBlocked(
        stride=op.stride, dilation=op.dilation, groups=layout.groups, sparse=sparse,
        turned=w.type.dtype in BYTES, used=_used(blocking, inputs, w),
    )  # fmt: skip
    weights = _weights(blocking, blocked_op, w, block_conv_weights(dense, inputs, layout.outputs))
    halo = _with_halo(blocking, op, source, lanes=1)
    result = blocking.call(blocked_op, halo, weights)
    return Blocked(blocking.without_idle(result, layout.outputs), layout.outputs)


def _gathered(
    blocking: Blocking, node: Node, form: Blocked, dense: Array, layout: GroupLayout
) -> Blocked:
    """Groups of channels that stand anywhere: where, is a constant."""
    op, _, w = _parts(node)
    packed = np.moveaxis(lane_weights(dense, layout.outputs), 1, -2)
    weights = blocking.constant(packed, w, f"{w.name}_blocked")
    lanes = form.channels.lanes.reshape(layout.groups, -1)
    table = blocking.table(lanes, f"{w.name}_lanes")
    halo = _with_halo(blocking, op, form.value, lanes=1)
    conv = ConvGathered(stride=op.stride, dilation=op.dilation)
    result = blocking.call(conv, halo, weights, table)
    return Blocked(blocking.without_idle(result, layout.outputs), layout.outputs)


def layout_of_groups(blocking: Blocking, w: Array, groups: int) -> GroupLayout | None:
    """How a grouped convolution of these weights is computed; None where that costs too much."""
    oc, per_group = w.shape[:2]
    layout = group_layout(per_group, oc // groups, groups, blocking.block)
    too_much = layout.cost * blocking.block**2 > MAX_EXTRA_WORK * oc * per_group
    return None if too_much else layout


def grouped_source(blocking: Blocking, x: Value, layout: GroupLayout) -> Value:
    """The blocked operand of a grouped convolution, with finite numbers in its idle lanes."""
    source = blocking.blocked_at(x, layout.inputs)
    if blocking.blocked(x).idle is None:
        source = blocking.without_idle(source, layout.inputs)
    return source


def _planar(blocking: Blocking, node: Node, array: Array) -> Blocked:
    """A convolution of few channels, such as the first of a model, reads them unblocked."""
    op, x, w = _parts(node)
    outputs = _outputs(blocking, node, array)
    packed = lane_weights(array, outputs)
    weights = blocking.constant(packed, w, f"{w.name}_blocked")
    blocked_op = PlanarConv(stride=op.stride, dilation=op.dilation)
    halo = _with_halo(blocking, op, blocking.planar(x), lanes=0)
    result = blocking.call(blocked_op, halo, weights)
    return Blocked(blocking.without_idle(result, outputs), outputs)


def _can_block(weights: DType) -> bool:
    """Whether there is a blocked form of convolutions by such weights."""
    return weights.is_float or weights in BYTES


def _parts(node: Node) -> tuple[Conv, Value, Value]:
    assert isinstance(node.op, Conv)
    x, w = node.inputs
    return node.op, x, w


def _outputs(blocking: Blocking, node: Node, array: Array) -> Channels:
    """Where the result's channels stand; any place will do, the weights follow.

    Where only weights have to know, and nobody reads planar images, blocks have as many channels
    each: they are summands, and idle lanes are none.
    """
    wanted = blocking.wanted_channels(node.output)
    if wanted is not None:
        return wanted
    is_free = blocking.finds_channels(node.output, least=blocking.block // 2 + 1)
    is_free = is_free and blocking.context.target.gpu is None
    return (Channels.evenly if is_free else Channels.of)(blocking.block, len(array))


def _with_halo(blocking: Blocking, op: Conv, x: Value, lanes: int) -> Value:
    """The operand surrounded by the zeros that the convolution reads."""
    if not any(op.pads):
        return x
    rank = len(op.pads) // 2
    before = (0, 0, *op.pads[:rank], *(0,) * lanes)
    after = (0, 0, *op.pads[rank:], *(0,) * lanes)
    return blocking.call(
        Pad(before=as_sizes(before), after=as_sizes(after)), x, hint=f"{x.name}_halo"
    )
