"""Convolutions in blocked form: which kind, and their weights."""

from __future__ import annotations

from dlc.graph.blocking import Blocked, Blocking
from dlc.graph.graph import Node, Value
from dlc.graph.layout import (
    Channels,
    block_conv_weights,
    depthwise_weights,
    groups_to_join,
    join_groups,
    planar_conv_weights,
)
from dlc.graph.op import Array
from dlc.graph.ops.attributes import as_sizes
from dlc.graph.ops.conv import Conv
from dlc.graph.ops.conv_blocked import ConvBlocked, DepthwiseBlocked, PlanarConv
from dlc.graph.ops.shape import Pad

MAX_JOINED_GROUPS = 8
"""Joining groups multiplies the work by their number; with more, the direct kernel wins.

Source: the anchors' grouped kernels reach an eighth of the speed of dense ones.
"""


def block_conv(blocking: Blocking, node: Node) -> bool:
    """A convolution with constant weights."""
    op, (x, w) = node.op, node.inputs
    assert isinstance(op, Conv)
    array = blocking.array(w)
    if array is None or not w.type.dtype.is_float or array.shape[0] == 0:
        return False
    oc, per_group = array.shape[:2]
    if per_group == 1 and op.groups == oc and op.groups > 1:
        form = _depthwise(blocking, op, x, w, array)
    elif op.groups > 1:
        found = _grouped(blocking, op, x, w, array)
        if found is None:
            return False
        form = found
    elif per_group * 2 < blocking.block and blocking.find_blocked(x) is None:
        form = _planar(blocking, op, x, w, array)
    else:
        form = _dense(blocking, op, x, w, array)
    blocking.set_blocked(node.output, form)
    return True


def _dense(blocking: Blocking, op: Conv, x: Value, w: Value, array: Array) -> Blocked:
    source = blocking.blocked(x)
    outputs = Channels.of(blocking.block, array.shape[0])
    packed = block_conv_weights(array, source.channels, outputs)
    weights = blocking.constant(packed, w, f"{w.name}_blocked")
    blocked_op = ConvBlocked(stride=op.stride, dilation=op.dilation)
    halo = _with_halo(blocking, op, source.value, lanes=1)
    return Blocked(blocking.call(blocked_op, halo, weights), outputs)


def _depthwise(blocking: Blocking, op: Conv, x: Value, w: Value, array: Array) -> Blocked:
    source = blocking.blocked(x)
    packed = depthwise_weights(array, source.channels)
    weights = blocking.constant(packed, w, f"{w.name}_blocked")
    blocked_op = DepthwiseBlocked(stride=op.stride, dilation=op.dilation)
    halo = _with_halo(blocking, op, source.value, lanes=1)
    return Blocked(blocking.call(blocked_op, halo, weights), source.channels)


def _grouped(blocking: Blocking, op: Conv, x: Value, w: Value, array: Array) -> Blocked | None:
    """Neighbouring groups are joined until each fills whole blocks, if that costs little."""
    block = blocking.block
    oc, per_group = array.shape[:2]
    joined = groups_to_join(per_group, oc // op.groups, op.groups, block)
    if joined > MAX_JOINED_GROUPS:
        return None
    dense = join_groups(array, op.groups, joined)
    if joined == op.groups:
        return _dense(blocking, op, x, w, dense)
    source = blocking.blocked(x)
    if not source.channels.is_contiguous:
        return None
    outputs = Channels.of(block, oc)
    packed = block_conv_weights(dense, Channels.of(block, dense.shape[1]), outputs)
    weights = blocking.constant(packed, w, f"{w.name}_blocked")
    blocked_op = ConvBlocked(stride=op.stride, dilation=op.dilation, groups=op.groups // joined)
    halo = _with_halo(blocking, op, source.value, lanes=1)
    return Blocked(blocking.call(blocked_op, halo, weights), outputs)


def _planar(blocking: Blocking, op: Conv, x: Value, w: Value, array: Array) -> Blocked:
    """A convolution of few channels, such as the first of a model, reads them unblocked."""
    outputs = Channels.of(blocking.block, array.shape[0])
    packed = planar_conv_weights(array, outputs)
    weights = blocking.constant(packed, w, f"{w.name}_blocked")
    blocked_op = PlanarConv(stride=op.stride, dilation=op.dilation)
    halo = _with_halo(blocking, op, blocking.planar(x), lanes=0)
    return Blocked(blocking.call(blocked_op, halo, weights), outputs)


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
