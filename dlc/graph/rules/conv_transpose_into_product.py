"""A transposed convolution of few results, whose phases differ in their taps -> one product for
every tap, and the sum of these patches where they lie: each phase by itself would fill few lanes of
a vector, and all together multiply with zeros, which makes infinity NaN.

Before:
    y: f32[n, 1, 9, 9] = conv_transpose(x, w, stride=(2, 2))

After:
    c: f32[n, 3, 16] = reshape(x, shape=(n, 3, 16))
    p: f32[n, 9, 16] = matmul(w_taps, c)
    y: f32[n, 1, 9, 9] = col2im(p, image=(9, 9), kernel=(3, 3), stride=(2, 2))
"""

from __future__ import annotations

from math import prod

import numpy as np

from dlc.graph.graph import Value
from dlc.graph.integers import is_kept_whole
from dlc.graph.layout import blocks_for
from dlc.graph.ops.attributes import as_sizes
from dlc.graph.ops.columns import Col2Im
from dlc.graph.ops.conv import ConvTranspose
from dlc.graph.ops.matmul import MatMul
from dlc.graph.ops.shape import Reshape
from dlc.graph.rewrite import Match, Pattern, Refusal, Weight, rule
from dlc.graph.rules.conv_transpose_into_conv import are_alike, may_scale

FULL = 0.75
"""The share of the lanes of vectors that results of a phase by itself fill, or they take longer.

Source: measured on Zen 3, 64 channels: 5 and 6 of 8 take 0.57 to 0.77 of the time, 8 0.93 and 0.99.
"""


@rule(Pattern(ConvTranspose, ("x", Weight("w"))))
def conv_transpose_into_product(match: Match) -> Value | Refusal:
    """Patches of the result by one product."""
    op, x, w = match.op(ConvTranspose), match["x"], match.stored("w")
    if match.context.target.gpu is not None:
        return Refusal("what it gains on a GPU has not been measured")
    if 0 in w.shape:
        return Refusal("there are no products")
    channels, results, *kernel = w.shape
    if prod(op.stride) == 1:
        return Refusal("it is a convolution")
    if op.groups > 1:
        return Refusal("channels lie in groups")
    lanes = match.context.target.lanes(4)
    if results > FULL * blocks_for(results, lanes) * lanes:
        return Refusal("the results of a phase fill vectors")
    if are_alike(op, kernel):
        return Refusal("all phases have as many taps")
    if any(n >= s for n, s in zip(op.output_padding, op.stride, strict=True)):
        return Refusal("the image has room for patches that there are not")
    if match["w"].type.dtype.bits < 32:
        return Refusal("patches would be rounded before they are added up")
    if (refusal := _about_scales(match)) is not None:
        return refusal
    n, _, *sizes = x.type.shape
    taps = np.ascontiguousarray(w.reshape(channels, -1).T)
    rows = match.constant(taps, match["w"], f"{match['w'].name}_taps")
    count = prod(sizes, start=as_sizes((1,))[0])
    pixels = match.call(Reshape(shape=as_sizes((n, channels, count))), x)
    patches = match.call(MatMul(), rows, pixels)
    image = match.root.output.type.shape[2:]
    lay = Col2Im(
        image=image, kernel=tuple(kernel), stride=op.stride, pads=op.pads, dilation=op.dilation
    )
    return match.call(lay, patches)


def _about_scales(match: Match) -> Refusal | None:
    if is_kept_whole(match.context, match.stored("w")):
        return Refusal("the target multiplies such whole numbers faster on the other side")
    if may_scale(match):
        return Refusal("the weights may be scaled by what reads the result")
    return None
