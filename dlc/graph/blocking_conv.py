"""Convolutions in blocked form: which kind, and their weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from math import prod

import numpy as np

from dlc.graph.blocking import Blocked, Blocking
from dlc.graph.graph import Node, Value
from dlc.graph.layout import (
    Channels,
    block_conv_weights,
    blocks_for,
    depthwise_weights,
    group_layout,
    join_groups,
    planar_conv_weights,
)
from dlc.graph.op import Array
from dlc.graph.ops.attributes import as_sizes
from dlc.graph.ops.conv import Conv, ConvTranspose
from dlc.graph.ops.conv_blocked import ConvBlocked, DepthwiseBlocked, PlanarConv
from dlc.graph.ops.layout import Interleave
from dlc.graph.ops.shape import Concat, Expand, Pad, Reshape, Slice, Transpose
from dlc.te.expr import Const
from dlc.te.types import is_const

MAX_EXTRA_WORK = 8
"""Idle lanes and joined groups multiply the work; by more than this, the direct kernel wins.

Source: the anchors' grouped kernels reach an eighth of the speed of dense ones.
"""


def block_conv(blocking: Blocking, node: Node) -> bool:
    """A convolution with constant weights."""
    op, x, w = _parts(node)
    array = blocking.array(w)
    if array is None or not w.type.dtype.is_float or array.shape[0] == 0:
        return False
    if not isinstance(x.type.shape[1], Const):
        return False  # as many channels as the weights need, but the model does not say so
    oc, per_group = array.shape[:2]
    if per_group == 1 and op.groups == oc and op.groups > 1:
        form = _depthwise(blocking, node, array)
    elif op.groups > 1:
        found = _grouped(blocking, node, array)
        if found is None:
            return False
        form = found
    elif per_group * 2 < blocking.block and blocking.find_blocked(x) is None:
        form = _planar(blocking, node, array)
    else:
        form = _dense(blocking, node, array)
    blocking.set_blocked(node.output, form)
    return True


def _dense(blocking: Blocking, node: Node, array: Array) -> Blocked:
    op, x, w = _parts(node)
    source = _source(blocking, x)
    outputs = _outputs(blocking, node, array)
    packed = block_conv_weights(array, source.channels, outputs)
    weights = blocking.constant(packed, w, f"{w.name}_blocked")
    blocked_op = ConvBlocked(stride=op.stride, dilation=op.dilation)
    halo = _with_halo(blocking, op, source.value, lanes=1)
    result = blocking.call(blocked_op, halo, weights)
    return Blocked(blocking.without_idle(result, outputs), outputs)


def _source(blocking: Blocking, x: Value) -> Blocked:
    """The blocked form of an operand, with finite numbers in its idle lanes: 0 times these is 0."""
    form = blocking.blocked(x)
    if form.idle is not None:
        return form
    return replace(form, value=blocking.without_idle(form.value, form.channels), idle=0.0)


def _depthwise(blocking: Blocking, node: Node, array: Array) -> Blocked:
    op, x, w = _parts(node)
    source = blocking.blocked(x)
    packed = depthwise_weights(array, source.channels)
    weights = blocking.constant(packed, w, f"{w.name}_blocked")
    blocked_op = DepthwiseBlocked(stride=op.stride, dilation=op.dilation)
    halo = _with_halo(blocking, op, source.value, lanes=1)
    return Blocked(blocking.call(blocked_op, halo, weights), source.channels)


def _grouped(blocking: Blocking, node: Node, array: Array) -> Blocked | None:
    """Groups are filled up to whole blocks, or joined until they fill some, if it costs little."""
    op, x, w = _parts(node)
    block = blocking.block
    oc, per_group = array.shape[:2]
    layout = group_layout(per_group, oc // op.groups, op.groups, block)
    if layout.cost * block**2 > MAX_EXTRA_WORK * oc * per_group:
        return None
    dense = join_groups(array, op.groups, layout.joined)
    if layout.groups == 1:
        return _dense(blocking, node, dense)
    source = blocking.blocked_at(x, layout.inputs)
    if blocking.blocked(x).idle is None:
        source = blocking.without_idle(source, layout.inputs)
    packed = block_conv_weights(dense, Channels.of(block, dense.shape[1]), layout.outputs)
    weights = blocking.constant(packed, w, f"{w.name}_blocked")
    blocked_op = ConvBlocked(stride=op.stride, dilation=op.dilation, groups=layout.groups)
    halo = _with_halo(blocking, op, source, lanes=1)
    result = blocking.call(blocked_op, halo, weights)
    return Blocked(blocking.without_idle(result, layout.outputs), layout.outputs)


def _planar(blocking: Blocking, node: Node, array: Array) -> Blocked:
    """A convolution of few channels, such as the first of a model, reads them unblocked."""
    op, x, w = _parts(node)
    outputs = _outputs(blocking, node, array)
    packed = planar_conv_weights(array, outputs)
    weights = blocking.constant(packed, w, f"{w.name}_blocked")
    blocked_op = PlanarConv(stride=op.stride, dilation=op.dilation)
    halo = _with_halo(blocking, op, blocking.planar(x), lanes=0)
    result = blocking.call(blocked_op, halo, weights)
    return Blocked(blocking.without_idle(result, outputs), outputs)


def _parts(node: Node) -> tuple[Conv, Value, Value]:
    assert isinstance(node.op, Conv)
    x, w = node.inputs
    return node.op, x, w


def _outputs(blocking: Blocking, node: Node, array: Array) -> Channels:
    """Where the result's channels stand; any place will do, the weights follow."""
    wanted = blocking.wanted_channels(node.output)
    return wanted or Channels.of(blocking.block, array.shape[0])


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


def block_conv_transpose(blocking: Blocking, node: Node) -> bool:
    """A transposed convolution with constant weights: one convolution for each phase of the stride.

    Result s * i + r reads only the taps r, s + r, 2 s + r, ... of the kernel, so each r is a plain
    convolution, and all of them together give blocks that are then put between each other.

    Source: Shi et al., "Is the deconvolution layer the same as a convolutional layer?",
    arXiv 1609.07009, section 3.
    """
    op, (x, w) = node.op, node.inputs
    assert isinstance(op, ConvTranspose)
    array = blocking.array(w)
    rank = len(op.stride)
    if array is None or 0 in array.shape or any(d != 1 for d in op.dilation):
        return False
    if not isinstance(x.type.shape[1], Const):
        return False
    depthwise = _is_depthwise(node)
    if op.groups > 1 and not depthwise:
        return False
    kernel = array.shape[2:]
    taps = tuple(blocks_for(k, s) for k, s in zip(kernel, op.stride, strict=True))
    last = zip(kernel, op.pads[rank:], op.output_padding, taps, op.stride, strict=True)
    # Output padding may reach beyond what the image reaches.
    more = [max(0, blocks_for(k - end + extra - t * s, s)) for k, end, extra, t, s in last]
    source = _source(blocking, x)
    outputs = source.channels if depthwise else Channels.of(blocking.block, array.shape[1])
    image = source.value
    before = as_sizes((0, 0, *(t - 1 for t in taps), 0))
    after = as_sizes((0, 0, *(t - 1 + e for t, e in zip(taps, more, strict=True)), 0))
    if max(*taps, *(e + 1 for e in more)) > 1:
        image = blocking.call(Pad(before=before, after=after), image, hint=f"{image.name}_halo")
    form = Blocked(image, source.channels)
    phases = [_phase(array, r, op.stride) for r in np.ndindex(*op.stride)]
    if not depthwise and _fits_one_block(op, array, blocking.block):
        filled = [_filled(phase, taps) for phase in phases]
        blocking.set_planar(node.output, _pixels_of_lanes(blocking, form, filled, node))
        return True
    parts = _phase_images(blocking, node, form, outputs, phases)
    strided = any(s > 1 for s in op.stride)
    result = blocking.call(Interleave(stride=op.stride), parts) if strided else parts
    sizes = (x.type.shape[0], outputs.blocks, *node.output.type.shape[2:], blocking.block)
    crop = Slice(starts=as_sizes((0, 0, *op.pads[:rank], 0)), sizes=as_sizes(sizes))
    result = blocking.call(crop, result)
    if not depthwise:
        result = blocking.without_idle(result, outputs)
    blocking.set_blocked(node.output, Blocked(result, outputs))
    return True


def _is_depthwise(node: Node) -> bool:
    """Whether a transposed convolution works on each channel by itself."""
    assert isinstance(node.op, ConvTranspose)
    c, per_group = node.inputs[1].type.shape[:2]
    groups = node.op.groups
    return groups > 1 and is_const(c, groups) and is_const(per_group, 1)


def _fits_one_block(op: ConvTranspose, w: Array, block: int) -> bool:
    """Whether all phases of all results are lanes of one block, and there are several phases."""
    phases = prod(op.stride)
    return phases > 1 and block % phases == 0 and w.shape[1] * phases <= block


def _pixels_of_lanes(blocking: Blocking, x: Blocked, phases: list[Array], node: Node) -> Value:
    """All phases as lanes of one convolution, whose pixels then become several, planar ones.

    A block for each phase would be idle but for few lanes, where there are few results.
    """
    assert isinstance(node.op, ConvTranspose)
    stride, w = node.op.stride, node.inputs[1]
    rank, block = len(stride), blocking.block
    unit = (1,) * rank
    stacked = np.stack([np.swapaxes(p, 0, 1) for p in phases], axis=1)
    oc, count, *rest = stacked.shape
    dense = stacked.reshape(oc * count, *rest)
    packed = block_conv_weights(dense, x.channels, Channels.of(block, oc * count))
    weights = blocking.constant(packed, w, f"{w.name}_blocked")
    lanes = blocking.call(ConvBlocked(stride=unit, dilation=unit), x.value, weights)
    n, _, *sizes, _ = lanes.type.shape
    parted = Reshape(shape=as_sizes((n, *sizes, block // count, *stride)))
    apart = blocking.call(parted, lanes)
    starts, kept = (0,) * (2 + 2 * rank), (n, *sizes, oc, *stride)
    used = blocking.call(Slice(starts=as_sizes(starts), sizes=as_sizes(kept)), apart)
    pairs = (d for axis in range(rank) for d in (1 + axis, 2 + rank + axis))
    turned = blocking.call(Transpose(perm=(0, 1 + rank, *pairs)), used)
    wide = (size * step for size, step in zip(sizes, stride, strict=True))
    image = blocking.call(Reshape(shape=as_sizes((n, oc, *wide))), turned)
    crop = Slice(
        starts=as_sizes((0, 0, *node.op.pads[:rank])), sizes=as_sizes(node.output.type.shape)
    )
    return blocking.call_as(crop, image, old=node.output)


def _phase_images(
    blocking: Blocking, node: Node, x: Blocked, outputs: Channels, phases: list[Array]
) -> Value:
    """The images of all phases: [n, phases * ob, *spatial, oc].

    Phases of as many taps are computed together; those that have fewer do not multiply with zeros
    instead, which would make infinity NaN, and one that has none is zeros.
    """
    most, w = phases[0].shape[2:], node.inputs[1]
    parts: list[Value] = []
    for taps, found in groupby(phases, key=lambda phase: phase.shape[2:]):
        group = list(found)
        if 0 in taps:
            n, _, *spatial, _ = parts[0].type.shape
            shape = as_sizes((n, len(group) * outputs.blocks, *spatial, blocking.block))
            parts.append(blocking.call(Expand(shape=shape), blocking.zero(node.output)))
            continue
        less = [m - t for m, t in zip(most, taps, strict=True)]
        form = replace(x, value=_without_first(blocking, x.value, less))
        if _is_depthwise(node):
            parts += _depthwise_phases(blocking, form, group, w)
        else:
            parts.append(_dense_phases(blocking, form, group, w))
    return blocking.call(Concat(axis=1), *parts) if len(parts) > 1 else parts[0]


def _without_first(blocking: Blocking, image: Value, count: Sequence[int]) -> Value:
    """A blocked image without the first pixels of each spatial dimension."""
    if not any(count):
        return image
    n, blocks, *spatial, block = image.type.shape
    kept = (size - less for size, less in zip(spatial, count, strict=True))
    op = Slice(starts=as_sizes((0, 0, *count, 0)), sizes=as_sizes((n, blocks, *kept, block)))
    return blocking.call(op, image, hint=f"{image.name}_part")


def _dense_phases(blocking: Blocking, x: Blocked, phases: list[Array], w: Value) -> Value:
    """All phases by one convolution: [n, phases * ob, *spatial, oc]."""
    unit = (1,) * (phases[0].ndim - 2)
    outputs = Channels.of(blocking.block, phases[0].shape[1])
    flipped = (np.swapaxes(p, 0, 1) for p in phases)
    packed = [block_conv_weights(p, x.channels, outputs) for p in flipped]
    joined = blocking.constant(np.concatenate(packed), w, f"{w.name}_blocked")
    return blocking.call(ConvBlocked(stride=unit, dilation=unit), x.value, joined)


def _depthwise_phases(blocking: Blocking, x: Blocked, phases: list[Array], w: Value) -> list[Value]:
    """One depthwise convolution for each phase: [n, cb, *spatial, c]."""
    unit = (1,) * (phases[0].ndim - 2)
    conv = DepthwiseBlocked(stride=unit, dilation=unit)
    packed = [depthwise_weights(p, x.channels) for p in phases]
    weights = [blocking.constant(p, w, f"{w.name}_blocked") for p in packed]
    return [blocking.call(conv, x.value, v) for v in weights]


def _phase(w: Array, start: tuple[int, ...], stride: tuple[int, ...]) -> Array:
    """The taps of one phase, last first; none where the kernel ends before it.

    Shapes:
        w: [c, oc, *k] -> [c, oc, *taps]
    """
    steps = (slice(r, None, s) for r, s in zip(start, stride, strict=True))
    return np.flip(w[(slice(None), slice(None), *steps)], tuple(range(2, w.ndim)))


def _filled(phase: Array, taps: tuple[int, ...]) -> Array:
    """A phase with zeros for the taps that it has less than others."""
    missing = [(t - n, 0) for t, n in zip(taps, phase.shape[2:], strict=True)]
    return np.pad(phase, [(0, 0), (0, 0), *missing])
