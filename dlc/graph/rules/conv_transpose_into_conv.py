"""conv_transpose(x, w, stride=s) -> depth_to_space(conv(x, w')): each of the s * s positions that a
result pixel can have within a block is a plain convolution of its own.

With y + pad = s * q + r, the sum over kernel positions k = r + s * m reads x at q - m: for fixed r
that is a correlation with the kernel's elements r, r + s, ... in reverse order.

This is for groups of several channels; choose_layouts takes the others apart in blocked form.

Source: Shi et al., "Is the deconvolution layer the same as a convolutional layer?" (2016).
"""

from __future__ import annotations

import numpy as np

from dlc.graph.graph import Value
from dlc.graph.op import Array
from dlc.graph.ops.conv import Conv, ConvTranspose
from dlc.graph.ops.layout import DepthToSpace
from dlc.graph.ops.shape import Slice
from dlc.graph.rewrite import Match, Pattern, Refusal, Weight, rule
from dlc.te.expr import Const


@rule(Pattern(ConvTranspose, ("x", Weight("w")), name="y"))
def conv_transpose_into_conv(match: Match) -> Value | Refusal:
    """Turn the transposed convolution of images into one that register tiles fit."""
    op, x, y = match.op(ConvTranspose), match["x"], match["y"]
    w = match.array("w")
    if w.ndim != 4 or op.dilation != (1, 1):
        return Refusal("only undilated kernels over images are taken apart")
    if op.groups == 1 or w.shape[:2] == (op.groups, 1):
        return Refusal("choose_layouts takes it apart in blocked form")
    if op.stride[0] != op.stride[1]:
        return Refusal("the strides differ, so the blocks are not square")
    s = op.stride[0]
    if min(w.shape[2:]) < s:
        return Refusal("a kernel below the stride leaves pixels that are zero")
    taps = tuple(-(-k // s) for k in w.shape[2:])
    # Output padding may reach beyond the blocks that the inputs reach.
    reach = zip(w.shape[2:], op.output_padding, op.pads[2:], taps, strict=True)
    more = [int(k + extra - end > m * s) for k, extra, end, m in reach]
    pads = tuple(m - 1 for m in taps) + tuple(m - 1 + e for m, e in zip(taps, more, strict=True))
    weights = match.constant(
        _phases(w, op.groups, s, taps), match["w"], f"{match['w'].name}_phases"
    )
    blocks = match.call(Conv(pads=pads, groups=op.groups), x, weights)
    image = blocks if s == 1 else match.call(DepthToSpace(blocksize=s, mode="CRD"), blocks)
    if image.type == y.type and not any(op.pads):
        return image
    starts = tuple(Const(p, y.type.shape[0].dtype) for p in (0, 0, *op.pads[:2]))
    return match.call(Slice(starts=starts, sizes=y.type.shape), image)


def _phases(w: Array, groups: int, s: int, taps: tuple[int, ...]) -> Array:
    """The weights of all phases as one convolution's: [oc * s * s, c / groups, *taps]."""
    c, oc, kh, kw = w.shape
    padded = np.zeros((c, oc, taps[0] * s, taps[1] * s), w.dtype)
    padded[:, :, :kh, :kw] = w
    parts = padded.reshape(groups, c // groups, oc, taps[0], s, taps[1], s)[:, :, :, ::-1, :, ::-1]
    # to group, oc, phase y, phase x, channel, tap y, tap x
    return parts.transpose(0, 2, 4, 6, 1, 3, 5).reshape(groups * oc * s * s, c // groups, *taps)
