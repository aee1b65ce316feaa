"""Which taps of a kernel read pixels, rather than the zeros around an image.

Of a kernel dilated by 12, on 33 x 33 pixels, every fourth row of taps, and every fourth column, is
of zeros. Results side by side that have the same taps are computed together, without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import prod

from dlc.core.target import Target

LIVE_SHARE = 0.9  # of the taps along an axis, from which on zeros are summands like others
LEAST_RESULTS = 4  # of a tile: fewer take as long
LATENCY = 4  # cycles that a multiply-add waits for the one before it in its sum
TOGETHER = 2  # vectors of results of a pixel in a tile, where there are as many


def live_share(
    sizes: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    zeros: Sequence[int],
) -> float:
    """Of all taps of the results, those that read none of the zeros."""
    axes = range(len(sizes))
    return prod(
        _share(_taps(sizes, kernel, stride, dilation, zeros, axis), kernel[axis]) for axis in axes
    )


def worth_leaving_out(
    sizes: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    pads: Sequence[int],
    blocks: int,
    target: Target,
) -> tuple[int, ...]:
    """The zeros around `sizes` pixels, without those that few taps of an axis read; () for none.

    Tiles are cut where the taps of the last axis change, and have one row. Results have `blocks`
    vectors each: in a short row of one, multiply-adds wait for those before them.
    """
    least = max(LEAST_RESULTS, LATENCY * target.multiply_adds // min(blocks, TOGETHER))  # of a row
    rank = len(sizes)
    kept = [0] * (2 * rank)
    for axis in range(rank):
        taps = _taps(sizes, kernel, stride, dilation, pads, axis)
        if axis == rank - 1:
            runs = ([*run] for _, run in groupby(taps))
            cost = sum(len(run[0]) * max(len(run), LEAST_RESULTS) for run in runs)
        else:
            cost = sum(map(len, taps)) * max(sizes[-1], least) // max(1, sizes[-1])
        if cost < LIVE_SHARE * len(taps) * kernel[axis]:
            kept[axis], kept[axis + rank] = pads[axis], pads[axis + rank]
    return tuple(kept) if any(kept) else ()


def _taps(
    sizes: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    zeros: Sequence[int],
    axis: int,
) -> list[list[int]]:
    """For each result along an axis the taps that read a pixel."""
    before, size, behind = zeros[axis], sizes[axis], zeros[axis + len(sizes)]
    reach = (kernel[axis] - 1) * dilation[axis] + 1
    return [
        [k for k in range(kernel[axis]) if before <= at + k * dilation[axis] < before + size]
        for at in range(0, before + size + behind - reach + 1, stride[axis])
    ]


def _share(taps: Sequence[Sequence[int]], kernel: int) -> float:
    return sum(map(len, taps)) / max(1, len(taps) * kernel)
