"""Transposed convolutions in blocked form: convolutions, one for each phase of the stride."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import prod

import numpy as np

from dlc.graph.blocking import Blocked, Blocking
from dlc.graph.blocking_conv import blocked_source, grouped_source, layout_of_groups
from dlc.graph.graph import Node, Value
from dlc.graph.layout import (
    Channels,
    GroupLayout,
    block_conv_weights,
    blocks_for,
    depthwise_weights,
    join_groups,
)
from dlc.graph.op import Array, Op
from dlc.graph.ops.absent import ABSENT, present
from dlc.graph.ops.attributes import as_sizes
from dlc.graph.ops.conv import ConvTranspose
from dlc.graph.ops.conv_blocked import ConvBlocked, DepthwiseBlocked
from dlc.graph.ops.layout import Interleave
from dlc.graph.ops.shape import Concat, Expand, Pad, Reshape, Slice, Transpose
from dlc.te.expr import Const
from dlc.te.types import is_const


@dataclass(frozen=True, slots=True)
class _Phases:
    """A transposed convolution as convolutions: the taps of each phase of the stride, last first.

    Shapes:
        each of taps: [oc, c / groups, *taps]; 0 taps where the kernel ends before the phase
    """

    taps: tuple[Array, ...]
    outputs: Channels
    groups: int  # one for each channel where that is `depthwise`
    sparse: bool
    depthwise: bool


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
    if array is None or 0 in array.shape or any(d != 1 for d in op.dilation):
        return False
    if not isinstance(x.type.shape[1], Const):
        return False
    dense = _as_conv(array, op.groups)
    layout = None
    if op.groups > 1 and not _is_depthwise(node):
        layout = layout_of_groups(blocking, dense, op.groups)
        if layout is None:
            return False
    if layout is not None and layout.groups > 1:
        form = Blocked(grouped_source(blocking, x, layout), layout.inputs)
    else:
        form = blocked_source(blocking, x)
    form = replace(form, value=_with_taps(blocking, op, array.shape[2:], form.value))
    phases = _phases(blocking, node, dense, form, layout)
    if not phases.depthwise and _fits_one_block(op, phases, blocking.block):
        blocking.set_planar(node.output, _pixels_of_lanes(blocking, form, phases, node))
        return True
    parts = _phase_images(blocking, node, form, phases)
    strided = any(s > 1 for s in op.stride)
    result = blocking.call(Interleave(stride=op.stride), parts) if strided else parts
    rank, outputs = len(op.stride), phases.outputs
    sizes = (x.type.shape[0], outputs.blocks, *node.output.type.shape[2:], blocking.block)
    crop = Slice(starts=as_sizes((0, 0, *op.pads[:rank], 0)), sizes=as_sizes(sizes))
    result = blocking.call(crop, result)
    if not phases.depthwise:
        result = blocking.without_idle(result, outputs)
    blocking.set_blocked(node.output, Blocked(result, outputs))
    return True


def _is_depthwise(node: Node) -> bool:
    """Whether a transposed convolution works on each channel by itself."""
    assert isinstance(node.op, ConvTranspose)
    c, per_group = node.inputs[1].type.shape[:2]
    groups = node.op.groups
    return groups > 1 and is_const(c, groups) and is_const(per_group, 1)


def _as_conv(w: Array, groups: int) -> Array:
    """The weights of a transposed convolution, in the order of a convolution's.

    Shapes:
        w: [c, oc / groups, *k] -> [oc, c / groups, *k]
    """
    c, per_group, *kernel = w.shape
    parts = np.swapaxes(w.reshape(groups, c // groups, per_group, *kernel), 1, 2)
    return parts.reshape(groups * per_group, c // groups, *kernel)


def _with_taps(blocking: Blocking, op: ConvTranspose, kernel: Sequence[int], image: Value) -> Value:
    """A blocked image surrounded by the zeros that the phases read."""
    rank = len(op.stride)
    taps = tuple(blocks_for(k, s) for k, s in zip(kernel, op.stride, strict=True))
    last = zip(kernel, op.pads[rank:], op.output_padding, taps, op.stride, strict=True)
    # Output padding may reach beyond what the image reaches.
    more = [max(0, blocks_for(k - end + extra - t * s, s)) for k, end, extra, t, s in last]
    if max(*taps, *(e + 1 for e in more)) <= 1:
        return image
    before = as_sizes((0, 0, *(t - 1 for t in taps), 0))
    after = as_sizes((0, 0, *(t - 1 + e for t, e in zip(taps, more, strict=True)), 0))
    return blocking.call(Pad(before=before, after=after), image, hint=f"{image.name}_halo")


def _phases(
    blocking: Blocking, node: Node, w: Array, x: Blocked, layout: GroupLayout | None
) -> _Phases:
    """The taps of all phases, of weights in the order of a convolution's."""
    op = node.op
    assert isinstance(op, ConvTranspose)
    depthwise, sparse, groups = _is_depthwise(node), False, 1
    outputs = x.channels if depthwise else Channels.of(blocking.block, w.shape[0])
    if layout is None:
        w = present(w)
    else:
        w = join_groups(w, op.groups, layout.joined)
        sparse, groups = layout.joined > 1, layout.groups
        outputs = layout.outputs
    taps = tuple(_phase(w, start, op.stride) for start in np.ndindex(*op.stride))
    return _Phases(taps, outputs, groups, sparse, depthwise)


def _fits_one_block(op: ConvTranspose, phases: _Phases, block: int) -> bool:
    """Whether all phases of all results are lanes of one block, and there are several phases."""
    count = prod(op.stride)
    lanes = phases.taps[0].shape[0] * count
    return phases.groups == 1 and count > 1 and block % count == 0 and lanes <= block


def _pixels_of_lanes(blocking: Blocking, x: Blocked, phases: _Phases, node: Node) -> Value:
    """All phases as lanes of one convolution, whose pixels then become several, planar ones.

    A block for each phase would be idle but for few lanes, where there are few results.
    """
    assert isinstance(node.op, ConvTranspose)
    stride, w = node.op.stride, node.inputs[1]
    rank, block = len(stride), blocking.block
    unit = (1,) * rank
    most = phases.taps[0].shape[2:]
    stacked = np.stack([_filled(p, most) for p in phases.taps], axis=1)
    filled = any(p.shape[2:] != most for p in phases.taps)
    oc, count, *rest = stacked.shape
    dense = stacked.reshape(oc * count, *rest)
    packed = block_conv_weights(dense, x.channels, Channels.of(block, oc * count))
    weights = blocking.constant(packed, w, f"{w.name}_blocked")
    sparse = phases.sparse or filled
    lanes = blocking.call(ConvBlocked(stride=unit, dilation=unit, sparse=sparse), x.value, weights)
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


def _phase_images(blocking: Blocking, node: Node, x: Blocked, phases: _Phases) -> Value:
    """The images of all phases: [n, phases * ob, *spatial, oc].

    Phases of as many taps are computed together; those that have fewer do not multiply with zeros
    instead, which would make infinity NaN, and one that has none is zeros.
    """
    most, w = phases.taps[0].shape[2:], node.inputs[1]
    parts: list[Value] = []
    for taps, found in groupby(phases.taps, key=lambda phase: phase.shape[2:]):
        group = list(found)
        if 0 in taps:
            n, _, *spatial, _ = parts[0].type.shape
            blocks = len(group) * phases.outputs.blocks
            shape = as_sizes((n, blocks, *spatial, blocking.block))
            parts.append(blocking.call(Expand(shape=shape), blocking.zero(node.output)))
            continue
        less = [m - t for m, t in zip(most, taps, strict=True)]
        form = replace(x, value=_without_first(blocking, x.value, less))
        parts += _convs(blocking, form, group, phases, w)
    return blocking.call(Concat(axis=1), *parts) if len(parts) > 1 else parts[0]


def _without_first(blocking: Blocking, image: Value, count: Sequence[int]) -> Value:
    """A blocked image without the first pixels of each spatial dimension."""
    if not any(count):
        return image
    n, blocks, *spatial, block = image.type.shape
    kept = (size - less for size, less in zip(spatial, count, strict=True))
    op = Slice(starts=as_sizes((0, 0, *count, 0)), sizes=as_sizes((n, blocks, *kept, block)))
    return blocking.call(op, image, hint=f"{image.name}_part")


def _convs(
    blocking: Blocking, x: Blocked, taps: list[Array], phases: _Phases, w: Value
) -> list[Value]:
    """The images of phases of as many taps: by one convolution, or by one each where groups are."""
    unit = (1,) * (taps[0].ndim - 2)
    if phases.depthwise:
        op: Op = DepthwiseBlocked(stride=unit, dilation=unit)
        packed = [depthwise_weights(p, x.channels) for p in taps]
    else:
        op = ConvBlocked(stride=unit, dilation=unit, groups=phases.groups, sparse=phases.sparse)
        alone = phases.groups == 1
        inputs = x.channels if alone else Channels.of(blocking.block, taps[0].shape[1])
        packed = [block_conv_weights(p, inputs, phases.outputs) for p in taps]
        packed = [np.concatenate(packed)] if alone else packed
    weights = [blocking.constant(p, w, f"{w.name}_blocked") for p in packed]
    return [blocking.call(op, x.value, v) for v in weights]


def _phase(w: Array, start: tuple[int, ...], stride: tuple[int, ...]) -> Array:
    """The taps of one phase, last first; none where the kernel ends before it.

    Shapes:
        w: [oc, c, *k] -> [oc, c, *taps]
    """
    steps = (slice(r, None, s) for r, s in zip(start, stride, strict=True))
    return np.flip(w[(slice(None), slice(None), *steps)], tuple(range(2, w.ndim)))


def _filled(phase: Array, taps: tuple[int, ...]) -> Array:
    """A phase with as many taps as others; those that it does not have are absent."""
    missing = [(t - n, 0) for t, n in zip(taps, phase.shape[2:], strict=True)]
    widths = [(0, 0), (0, 0), *missing]
    return np.pad(phase, widths, constant_values=ABSENT)
