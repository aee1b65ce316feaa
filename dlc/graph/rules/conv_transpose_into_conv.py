"""A transposed convolution of few results -> a convolution that makes the results of all phases of
the stride, which are then put between each other: a phase by itself would fill few lanes of a
vector. One of a single phase is a convolution by the kernel turned round.

Before:
    y: f32[n, 1, 8, 8] = conv_transpose(x, w, stride=(2, 2), pads=(1, 1, 1, 1))

After:
    p: f32[n, 4, 5, 5] = conv(x, w_phases, pads=(1, 1, 1, 1))
    r: f32[n, 1, 2, 2, 5, 5] = reshape(p, shape=(n, 1, 2, 2, 5, 5))
    t: f32[n, 1, 5, 2, 5, 2] = transpose(r, perm=(0, 1, 4, 2, 5, 3))
    v: f32[n, 1, 10, 10] = reshape(t, shape=(n, 1, 10, 10))
    y: f32[n, 1, 8, 8] = slice(v, starts=(0, 0, 1, 1), sizes=(n, 1, 8, 8))

Source: Shi et al., "Is the deconvolution layer the same as a convolutional layer?",
arXiv 1609.07009, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from dlc.graph.graph import Value
from dlc.graph.integers import is_kept_whole
from dlc.graph.op import Array
from dlc.graph.ops.attributes import as_sizes
from dlc.graph.ops.binary import Mul
from dlc.graph.ops.conv import Conv, ConvTranspose
from dlc.graph.ops.norm import BatchNorm
from dlc.graph.ops.shape import Reshape
from dlc.graph.rewrite import Match, Pattern, Refusal, Weight, rule
from dlc.graph.rules.phases import pixels_of_phases

FEW = 4  # results that leave at least half of a vector of 8 floats idle


@rule(Pattern(ConvTranspose, ("x", Weight("w"))))
def conv_transpose_into_conv(match: Match) -> Value | Refusal:
    """The results of all phases as channels of one convolution."""
    op, x, w = match.op(ConvTranspose), match["x"], match.stored("w")
    if match.context.target.gpu is not None:
        return Refusal("what it gains on a GPU has not been measured")
    stride, rank = op.stride, len(op.stride)
    if 0 in w.shape:
        return Refusal("there are no products")
    _, results, *kernel = w.shape
    if prod(stride) > 1:
        if results > FEW:
            return Refusal("the results of a phase fill vectors")
        if op.groups > 1:
            return Refusal("channels lie in groups")
        if not are_alike(op, kernel):
            return Refusal("some phases have fewer taps than others")
        lanes = match.context.target.lanes(4)
        if tuple(kernel) == tuple(stride) and results * prod(stride) <= lanes:
            return Refusal("a vector holds the results of all phases, which are of a tap each")
    if may_scale(match):
        return Refusal("the weights may be scaled by what reads the result")
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, op.dilation, strict=True)]
    taps = [r // s - 1 for r, s in zip(reach, stride, strict=True)]  # before the one at the pixel
    skipped = [min(p // s, t) for p, s, t in zip(op.pads, stride, taps, strict=False)]
    ends = zip(reach, op.output_padding, op.pads[rank:], stride, strict=True)
    before = (t - n for t, n in zip(taps, skipped, strict=True))
    after = (max(0, -((end - r - extra) // s) - 1) for r, extra, end, s in ends)
    phases = match.constant(_phases(w, stride, op.groups), match["w"], f"{match['w'].name}_phases")
    unit, pads = (1,) * rank, (*before, *after)
    conv = Conv(stride=unit, pads=pads, dilation=op.dilation, groups=op.groups)
    begin = [p - n * s for p, n, s in zip(op.pads, skipped, stride, strict=False)]
    image, kept = match.call(conv, x, phases), match.root.output.type.shape[2:]
    n, all_phases, *sizes = image.type.shape
    results = all_phases // prod(stride)
    apart = match.call(Reshape(shape=as_sizes((n, results, *stride, *sizes))), image)
    return pixels_of_phases(match, apart, stride, begin, kept)


def are_alike(op: ConvTranspose, kernel: Sequence[int]) -> bool:
    """Whether each phase of the stride has as many taps as every other, one beside the next."""
    if any(d != 1 for d in op.dilation):
        return False
    return all(k % s == 0 for k, s in zip(kernel, op.stride, strict=True))


def may_scale(match: Match) -> bool:
    """Whether what reads the result may become a factor of the weights."""
    if is_kept_whole(match.context, match.stored("w")):
        return False
    return any(isinstance(u.op, Mul | BatchNorm) for u in match.editor.users(match.root.output))


def _phases(w: Array, stride: tuple[int, ...], groups: int) -> Array:
    """The weights of the convolution of all phases.

    Shapes:
        w: [c, oc / groups, *kernel] -> [oc * prod(stride), c / groups, *(kernel / stride)]
    """
    c, per_group, *kernel = w.shape
    rank, phases = len(stride), prod(stride)
    taps = [k // s for k, s in zip(kernel, stride, strict=True)]
    pairs = (n for pair in zip(taps, stride, strict=True) for n in pair)
    parts = w.reshape(groups, c // groups, per_group, *pairs)
    order = (0, 2, *range(4, 4 + 2 * rank, 2), 1, *range(3, 3 + 2 * rank, 2))
    turned = np.flip(parts.transpose(order), tuple(range(3 + rank, 3 + 2 * rank)))
    return turned.reshape(groups * per_group * phases, c // groups, *taps)
