"""A transposed convolution of few results -> a convolution that makes the results of all phases of
the stride, which are then put between each other: a phase by itself would fill few lanes of a
vector.

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

from math import prod

import numpy as np

from dlc.graph.graph import Value
from dlc.graph.ops.attributes import as_sizes
from dlc.graph.ops.binary import Mul
from dlc.graph.ops.conv import Conv, ConvTranspose
from dlc.graph.ops.norm import BatchNorm
from dlc.graph.ops.shape import Reshape, Slice, Transpose
from dlc.graph.rewrite import Match, Pattern, Refusal, Weight, rule

FEW = 4  # results that leave at least half of a vector of 8 floats idle


@rule(Pattern(ConvTranspose, ("x", Weight("w"))))
def conv_transpose_into_conv(match: Match) -> Value | Refusal:
    """The results of all phases as channels of one convolution."""
    op, x, w = match.op(ConvTranspose), match["x"], match.stored("w")
    if match.context.target.gpu is not None:
        return Refusal("what it gains on a GPU has not been measured")
    stride, rank = op.stride, len(op.stride)
    channels, few, *kernel = w.shape
    if not 0 < few <= FEW or not channels:
        return Refusal("the results of a phase fill vectors")
    if op.groups > 1:
        return Refusal("channels lie in groups")
    if prod(stride) == 1:
        return Refusal("there is one phase")
    if any(d != 1 for d in op.dilation):
        return Refusal("the taps of a phase are apart")
    if any(k % s or not k for k, s in zip(kernel, stride, strict=True)):
        return Refusal("some phases have fewer taps than others")
    if any(op.output_padding):
        return Refusal("the result may reach beyond the image")
    if any(isinstance(u.op, Mul | BatchNorm) for u in match.editor.users(match.root.output)):
        return Refusal("the weights may be scaled by what reads the result")
    taps = [k // s for k, s in zip(kernel, stride, strict=True)]
    parts = w.reshape(channels, few, *(n for pair in zip(taps, stride, strict=True) for n in pair))
    order = (1, *range(3, 3 + 2 * rank, 2), 0, *range(2, 2 + 2 * rank, 2))
    turned = np.flip(parts.transpose(order), tuple(range(2 + rank, 2 + 2 * rank)))
    phases = match.constant(
        turned.reshape(few * prod(stride), channels, *taps), match["w"], f"{match['w'].name}_phases"
    )
    pads = tuple(t - 1 for t in taps)
    unit = (1,) * rank
    image = match.call(Conv(stride=unit, pads=(*pads, *pads), dilation=unit), x, phases)
    n, _, *sizes = image.type.shape
    apart = match.call(Reshape(shape=as_sizes((n, few, *stride, *sizes))), image)
    pairs = (d for axis in range(rank) for d in (2 + rank + axis, 2 + axis))
    mixed = match.call(Transpose(perm=(0, 1, *pairs)), apart)
    wide = [size * step for size, step in zip(sizes, stride, strict=True)]
    whole = match.call(Reshape(shape=as_sizes((n, few, *wide))), mixed)
    kept = as_sizes(match.root.output.type.shape)
    return match.call(Slice(starts=as_sizes((0, 0, *op.pads[:rank])), sizes=kept), whole)
