"""Channel-blocked tensors: [n, c, *s] stored as [n, blocks, *s, block].

The channels stand in *segments*; each segment begins a new block, and what its last block has
left over is idle. A tensor made by one operator has one segment. A concatenation of blocked tensors
simply has the segments of its parts one after the other, so no channel ever has to move. Nor has
one where channels are shuffled: only who reads them knows which lane is which channel then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dlc.graph.arrays import for_each
from dlc.graph.op import Array
from dlc.graph.ops.absent import ABSENT, present


@dataclass(frozen=True, slots=True)
class Channels:
    """Where the channels of a blocked tensor stand.

    `order` says for each channel which of those in the segments it is; none: they stand in order.
    """

    block: int
    segments: tuple[int, ...]
    order: tuple[int, ...] = ()

    @staticmethod
    def of(block: int, *segments: int) -> Channels:
        """Channels in canonical form: a segment that ends at the end of a block is no border."""
        merged: list[int] = []
        for size in segments:
            if merged and merged[-1] % block == 0:
                merged[-1] += size
            else:
                merged.append(size)
        return Channels(block, tuple(merged))

    @staticmethod
    def evenly(block: int, count: int) -> Channels:
        """Channels of which all blocks have as many, or one more: no block is nearly idle."""
        blocks = blocks_for(count, block)
        most = count % blocks  # blocks that have one more
        return Channels.of(block, *(count // blocks + (b < most) for b in range(blocks)))

    @staticmethod
    def join(block: int, parts: Sequence[Channels]) -> Channels:
        """The channels of a concatenation."""
        order: list[int] = []
        for part in parts:
            start = len(order)
            order += (start + i for i in part.order or range(part.count))
        found = Channels.of(block, *(s for p in parts for s in p.segments))
        return found.ordered(order) if any(p.order for p in parts) else found

    def ordered(self, order: Sequence[int]) -> Channels:
        """The same lanes, of which channel i has that of what is channel `order[i]` now."""
        now = self.order or range(self.count)
        return replace(self, order=tuple(now[i] for i in order))

    @property
    def count(self) -> int:
        """The number of channels."""
        return sum(self.segments)

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return sum(blocks_for(s, self.block) for s in self.segments)

    @property
    def is_contiguous(self) -> bool:
        """Whether channel i stands at lane i."""
        return len(self.segments) == 1 and not self.order

    @property
    def has_idle_lanes(self) -> bool:
        """Whether some lanes hold no channel."""
        return self.count != self.blocks * self.block

    @property
    def used(self) -> int:
        """How many lanes of a block hold channels, in the block that has most."""
        return int((self.lanes % self.block).max(initial=-1)) + 1

    @property
    def lanes(self) -> Array:
        """The lane of each channel, counted through all blocks."""
        found: list[Array] = []
        start = 0
        for size in self.segments:
            found.append(np.arange(start, start + size))
            start += blocks_for(size, self.block) * self.block
        lanes = np.concatenate(found)
        return lanes[list(self.order)] if self.order else lanes

    def part(self, start: int, size: int) -> tuple[int, Channels] | None:
        """The first block and the channels of a range of channels, where it is whole blocks.

        None where the range begins within a block, or ends before other channels of its block, or
        where the channels do not stand in order.
        """
        if size < 1 or start < 0 or start + size > self.count or self.order:
            return None
        lanes = self.lanes
        first, last = int(lanes[start]), int(lanes[start + size - 1])
        begins = first % self.block == 0
        ends = start + size == self.count or int(lanes[start + size]) // self.block > (
            last // self.block
        )
        if not (begins and ends):
            return None
        segments: list[int] = []
        at = 0
        for length in self.segments:
            low, high = max(at, start), min(at + length, start + size)
            if low < high:
                segments.append(high - low)
            at += length
        return first // self.block, Channels.of(self.block, *segments)


def blocks_for(count: int, block: int) -> int:
    """How many blocks hold that many channels."""
    return -(-count // block)


def spread(array: Array, axis: int, channels: Channels, fill: float = 0) -> Array:
    """Put the entries of a channel axis where the channels stand; idle lanes get `fill`."""
    if channels.count == channels.blocks * channels.block and not channels.order:
        return array  # no lane is idle
    shape = list(array.shape)
    shape[axis] = channels.blocks * channels.block
    result = np.full(shape, fill, array.dtype)
    np.moveaxis(result, axis, 0)[channels.lanes] = np.moveaxis(array, axis, 0)
    return result


def split_axis(array: Array, axis: int, block: int) -> Array:
    """Split an axis into (blocks, block): one more axis, right behind it."""
    shape = array.shape
    return array.reshape(*shape[:axis], shape[axis] // block, block, *shape[axis + 1 :])


def block_constant(array: Array, rank: int, channels: Channels, fill: float = 0) -> Array | None:
    """A constant that broadcasts with [n, c, *s], for the blocked tensor; None if it cannot.

    Shapes:
        array: up to `rank` dimensions, 1 or all channels at axis 1 -> `rank` + 1 dimensions.
    """
    if array.ndim > rank:
        return None
    full = array.reshape((1,) * (rank - array.ndim) + array.shape)
    if full.shape[1] == 1:
        return full[..., np.newaxis]
    if full.shape[1] != channels.count:
        return None
    blocked = split_axis(spread(full, 1, channels, fill), 1, channels.block)
    return np.moveaxis(blocked, 2, -1)


def block_conv_weights(w: Array, inputs: Channels, outputs: Channels) -> Array:
    """Weights of a convolution without groups.

    Shapes:
        w: [oc, c, *k] -> [ob, cb, *k, ci, oc]
    """
    lanes = spread(spread(w, 0, outputs), 1, inputs)
    split = split_axis(split_axis(lanes, 1, inputs.block), 0, outputs.block)
    # [ob, oc, cb, ci, *k]
    kernel = range(4, split.ndim)
    return split.transpose(0, 2, *kernel, 3, 1)


def depthwise_weights(w: Array, channels: Channels) -> Array:
    """Weights of a depthwise convolution.

    Shapes:
        w: [c, 1, *k] -> [cb, *k, c]
    """
    return lane_weights(w[:, 0], channels)


def lane_weights(w: Array, channels: Channels) -> Array:
    """Weights of a convolution that reads unblocked channels, or whose groups lie within blocks.

    Shapes:
        w: [oc, c, *k] -> [ob, c, *k, oc]
    """
    split = split_axis(spread(w, 0, channels), 0, channels.block)
    return np.moveaxis(split, 1, -1)


def join_groups(w: Array, groups: int, joined: int) -> Array:
    """Weights of a grouped convolution with `joined` neighbouring groups made into one.

    The new group is block-diagonal: an output channel has no weights for channels of other groups.

    Shapes:
        w: [oc, c / groups, *k] -> [oc, c / groups * joined, *k]
    """
    oc, per_group = w.shape[:2]
    result = np.full((oc, per_group * joined, *w.shape[2:]), ABSENT, w.dtype)
    w = present(w)
    for channel in range(oc):
        at = channel // (oc // groups) % joined * per_group
        result[channel, at : at + per_group] = w[channel]
    return result


def groups_to_join(per_group: int, outputs_per_group: int, groups: int, block: int) -> int:
    """The least number of neighbouring groups whose channels fill whole blocks; else all."""
    for joined in range(1, groups):
        whole = joined * per_group % block == 0 and joined * outputs_per_group % block == 0
        if groups % joined == 0 and whole:
            return joined
    return groups


@dataclass(frozen=True, slots=True)
class GroupLayout:
    """How a grouped convolution is computed in blocks: the channels it reads and writes.

    `groups` convolutions without groups stand side by side, each on blocks of its own; each is
    `joined` of the original groups.
    """

    inputs: Channels
    outputs: Channels
    groups: int
    joined: int
    cost: int  # pairs of an input and an output block


def group_layout(per_group: int, outputs_per_group: int, groups: int, block: int) -> GroupLayout:
    """The layout that costs least: each group filled up to whole blocks, or groups joined."""
    joined = groups_to_join(per_group, outputs_per_group, groups, block)
    found: list[GroupLayout] = []
    for size in (joined, 1):
        c, oc, count = per_group * size, outputs_per_group * size, groups // size
        inputs = Channels.of(block, *(c,) * count)
        outputs = Channels.of(block, *(oc,) * count)
        cost = count * blocks_for(c, block) * blocks_for(oc, block)
        found.append(GroupLayout(inputs, outputs, count, size, cost))
    return min(found, key=lambda layout: layout.cost)


def pack_columns(w: Array, lanes: int) -> Array:
    """The constant operand of a matrix product in panels of `lanes` columns, filled with zeros.

    Shapes:
        w: [*stack, k, n] -> [*stack, ceil(n / lanes), k, lanes]
    """
    *stack, k, n = w.shape
    panels = blocks_for(n, lanes)
    matrices = w.reshape(-1, k, n)
    packed = np.empty((len(matrices) * panels, k, lanes), w.dtype)

    def pack(number: int) -> None:
        matrix, panel = divmod(number, panels)
        columns = matrices[matrix, :, panel * lanes : (panel + 1) * lanes]
        packed[number, :, : columns.shape[1]] = columns
        packed[number, :, columns.shape[1] :] = 0

    # One panel at a time: it stays in the cache whatever the order of `w`.
    for_each(pack, range(len(packed)), packed.size)
    return packed.reshape(*stack, panels, k, lanes)
