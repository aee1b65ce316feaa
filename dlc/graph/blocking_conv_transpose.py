"""Transposed convolutions in blocked form: convolutions, one for each phase of the stride."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import prod

import numpy as np

from dlc.core.types import DType
from dlc.graph.blocking import Blocked, Blocking
from dlc.graph.blocking_border import enters
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
from dlc.graph.transformed import moving_cycles, multiply_cycles
from dlc.te.expr import Const, Expr, maximum
from dlc.te.simplify import canonical, surely_equal
from dlc.te.types import TensorType, const_size, is_const

CROPPED = 1.1
"""How many times as much as is kept a convolution may compute before it is one of its own."""

FEWER = 0.8
"""The share of the multiplications that phases side by side in lanes may take of those apart."""


@dataclass(frozen=True, slots=True)
class _Phase:
    """The convolution that gives one phase of the results.

    Shapes:
        taps: [oc, c / groups, *taps]; 0 taps where the kernel ends before the phase
    """

    taps: Array
    start: tuple[int, ...]  # the pixel of the image with zeros around that it reads first

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many taps there are along each dimension."""
        return self.taps.shape[2:]


@dataclass(frozen=True, slots=True)
class _Phases:
    """A transposed convolution as convolutions, one for each phase of the stride."""

    each: tuple[_Phase, ...]
    most: tuple[int, ...]  # taps of a phase
    size: tuple[Expr, ...]  # pixels of the image of a phase
    begin: tuple[int, ...]  # the first pixel of all images together that is one of the result
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
    phases = _phases(blocking, node, dense, form, layout)
    if _fits_lanes(blocking, node, phases):
        whole = _phases(blocking, node, dense, form, layout, together=True)
        form, whole = _with_zeros(blocking, form, whole)
        blocking.set_planar(node.output, _pixels_of_lanes(blocking, form, whole, node))
        return True
    form, phases = _with_zeros(blocking, form, phases)
    parts = _phase_images(blocking, node, form, phases)
    strided = any(s > 1 for s in op.stride)
    result = blocking.call(Interleave(stride=op.stride), parts) if strided else parts
    sizes = (x.type.shape[0], phases.outputs.blocks, *node.output.type.shape[2:], blocking.block)
    crop = Slice(starts=as_sizes((0, 0, *phases.begin, 0)), sizes=as_sizes(sizes))
    result = blocking.call(crop, result)
    if not phases.depthwise:
        result = blocking.without_idle(result, phases.outputs)
    blocking.set_blocked(node.output, Blocked(result, phases.outputs))
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


def _phases(
    blocking: Blocking,
    node: Node,
    w: Array,
    x: Blocked,
    layout: GroupLayout | None,
    together: bool = False,
) -> _Phases:
    """The convolutions of all phases, of weights in the order of a convolution's.

    They begin where the result does if that is worth it, unless all are to read the same pixels.
    """
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
    image, rank = x.value.type.shape[2:-1], len(op.stride)
    most = tuple(blocks_for(k, s) for k, s in zip(w.shape[2:], op.stride, strict=True))
    # Output padding may reach beyond what the image reaches.
    ends = zip(w.shape[2:], op.pads[rank:], op.output_padding, most, op.stride, strict=True)
    more = (max(0, blocks_for(k - end + extra - t * s, s)) for k, end, extra, t, s in ends)
    whole = tuple(n + t - 1 + e for n, t, e in zip(image, most, more, strict=True))
    kept = node.output.type.shape[2:]
    cropped = tuple((n + s - 1) // s for n, s in zip(kept, op.stride, strict=True))
    if not together and _is_worth_cropping(whole, cropped):
        begin, skipped, size = (0,) * rank, op.pads[:rank], cropped
    else:
        begin, skipped, size = op.pads[:rank], (0,) * rank, whole
    each = tuple(_phase(w, at, op.stride, skipped, most) for at in np.ndindex(*op.stride))
    return _Phases(each, most, size, begin, outputs, groups, sparse, depthwise)


def _is_worth_cropping(whole: Sequence[Expr], cropped: Sequence[Expr]) -> bool:
    """Whether convolutions that begin and end with the result compute much less."""
    if not all(isinstance(n, Const) for n in (*whole, *cropped)):
        return False
    return prod(map(const_size, whole)) > CROPPED * prod(map(const_size, cropped))


def _phase(
    w: Array,
    at: tuple[int, ...],
    stride: tuple[int, ...],
    skipped: tuple[int, ...],
    most: tuple[int, ...],
) -> _Phase:
    """The phase of the results `at` of each stride, without the results that are skipped."""
    starts = [(a + p) % s for a, p, s in zip(at, skipped, stride, strict=True)]
    steps = (slice(r, None, s) for r, s in zip(starts, stride, strict=True))
    taps = np.flip(w[(slice(None), slice(None), *steps)], tuple(range(2, w.ndim)))
    each = zip(at, skipped, stride, most, taps.shape[2:], strict=True)
    return _Phase(taps, tuple((a + p) // s + t - n for a, p, s, t, n in each))


def _with_zeros(blocking: Blocking, x: Blocked, phases: _Phases) -> tuple[Blocked, _Phases]:
    """A blocked image with the zeros around it that the phases read, and where these then begin."""
    read = [phase for phase in phases.each if 0 not in phase.sizes]
    before, after = [], []
    for d, (n, most) in enumerate(zip(x.value.type.shape[2:-1], phases.most, strict=True)):
        before.append(max(0, most - 1 - min(phase.start[d] for phase in read)))
        last = max(phase.start[d] + phase.sizes[d] for phase in read)
        after.append(maximum(canonical(phases.size[d] + (last - most) - n), 0))
    less = [most - 1 - b for most, b in zip(phases.most, before, strict=True)]
    each = (
        replace(p, start=tuple(a - b for a, b in zip(p.start, less, strict=True)))
        for p in phases.each
    )
    moved = replace(phases, each=tuple(each))
    if all(is_const(n, 0) for n in (*as_sizes(before), *as_sizes(after))):
        return x, moved
    pad = Pad(before=as_sizes((0, 0, *before, 0)), after=as_sizes((0, 0, *after, 0)))
    image = blocking.call(pad, x.value, hint=f"{x.value.name}_halo")
    return replace(x, value=image), moved


def _fits_lanes(blocking: Blocking, node: Node, phases: _Phases) -> bool:
    """Whether all phases are lanes of few blocks that take less than images of their own.

    They multiply less, but their pixels are planar, and have to be put elsewhere where somebody
    reads blocks.
    """
    assert isinstance(node.op, ConvTranspose)
    count, block = prod(node.op.stride), blocking.block
    if phases.depthwise or phases.groups > 1 or count == 1 or block % count:
        return False
    results, channels = phases.each[0].taps.shape[:2]
    lanes = results * count
    if lanes <= block:
        return True
    apart = sum(prod(phase.sizes) for phase in phases.each) * phases.outputs.blocks
    together = blocks_for(lanes, block) * prod(phases.most)
    if together > FEWER * apart:
        return False
    saved = multiply_cycles((apart - together) * channels, blocking.context.target)
    moved = moving_cycles(TensorType(as_sizes((lanes,)), DType.F32))
    return saved > moved or not enters(blocking, node.output)


def _pixels_of_lanes(blocking: Blocking, x: Blocked, phases: _Phases, node: Node) -> Value:
    """All phases as lanes of one convolution, whose pixels then become several, planar ones.

    Blocks for each phase would be idle but for few lanes, where there are few results.
    """
    assert isinstance(node.op, ConvTranspose)
    stride, w = node.op.stride, node.inputs[1]
    rank, block = len(stride), blocking.block
    unit = (1,) * rank
    stacked = np.stack([_filled(phase.taps, phases.most) for phase in phases.each], axis=1)
    filled = any(phase.sizes != phases.most for phase in phases.each)
    oc, count, *rest = stacked.shape
    dense = stacked.reshape(oc * count, *rest)
    packed = block_conv_weights(dense, x.channels, Channels.of(block, oc * count))
    weights = blocking.constant(packed, w, f"{w.name}_blocked")
    sparse = phases.sparse or filled
    lanes = blocking.call(ConvBlocked(stride=unit, dilation=unit, sparse=sparse), x.value, weights)
    n, blocks, *sizes, _ = lanes.type.shape
    per_block = block // count
    parted = Reshape(shape=as_sizes((n, blocks, *sizes, per_block, *stride)))
    apart = blocking.call(parted, lanes)
    if oc < per_block:  # a block with idle lanes, which nobody is to move
        per_block = oc
        used = Slice(
            starts=as_sizes((0,) * (3 + 2 * rank)),
            sizes=as_sizes((n, blocks, *sizes, oc, *stride)),
        )
        apart = blocking.call(used, apart)
    channels, pairs = 2 + rank, [d for axis in range(rank) for d in (2 + axis, 3 + rank + axis)]
    turned = blocking.call(Transpose(perm=(0, 1, channels, *pairs)), apart)
    wide = [size * step for size, step in zip(sizes, stride, strict=True)]
    image = blocking.call(Reshape(shape=as_sizes((n, blocks * per_block, *wide))), turned)
    kept = as_sizes(node.output.type.shape)
    crop = Slice(starts=as_sizes((0, 0, *phases.begin)), sizes=kept)
    return blocking.call_as(crop, image, old=node.output)


def _phase_images(blocking: Blocking, node: Node, x: Blocked, phases: _Phases) -> Value:
    """The images of all phases: [n, phases * ob, *spatial, oc].

    Phases of as many taps, that begin at one pixel, are computed together; those that have fewer
    do not multiply with zeros instead, which would make infinity NaN, and one that has none is
    zeros.
    """
    w = node.inputs[1]
    parts: list[Value] = []
    for (start, taps), found in groupby(phases.each, key=lambda phase: (phase.start, phase.sizes)):
        group = [phase.taps for phase in found]
        if 0 in taps:
            blocks = len(group) * phases.outputs.blocks
            shape = as_sizes((x.value.type.shape[0], blocks, *phases.size, blocking.block))
            parts.append(blocking.call(Expand(shape=shape), blocking.zero(node.output)))
            continue
        sizes = [size + t - 1 for size, t in zip(phases.size, taps, strict=True)]
        form = replace(x, value=_window(blocking, x.value, start, sizes))
        parts += _convs(blocking, form, group, phases, w)
    return blocking.call(Concat(axis=1), *parts) if len(parts) > 1 else parts[0]


def _window(blocking: Blocking, image: Value, start: Sequence[int], sizes: Sequence[Expr]) -> Value:
    """Some pixels of a blocked image."""
    n, blocks, *spatial, block = image.type.shape
    if not any(start) and all(surely_equal(a, b) for a, b in zip(spatial, sizes, strict=True)):
        return image
    op = Slice(starts=as_sizes((0, 0, *start, 0)), sizes=as_sizes((n, blocks, *sizes, block)))
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


def _filled(phase: Array, taps: tuple[int, ...]) -> Array:
    """A phase with as many taps as others; those that it does not have are absent."""
    missing = [(t - n, 0) for t, n in zip(taps, phase.shape[2:], strict=True)]
    widths = [(0, 0), (0, 0), *missing]
    return np.pad(phase, widths, constant_values=ABSENT)
