"""A transposed convolution of images of one pixel -> a matrix product: each channel of the pixel
weighs a whole kernel, as in the first layer of a generator.

Before:
    y: f32[n, 8, 4, 4] = conv_transpose(x, w)

After:
    r: f32[n, 3] = reshape(x, shape=(n, 3))
    v: f32[3, 128] = reshape(w, shape=(3, 128))
    p: f32[n, 128] = matmul(r, v)
    y: f32[n, 8, 4, 4] = reshape(p, shape=(n, 8, 4, 4))
"""

from __future__ import annotations

from math import prod

from dlc.graph.graph import Value
from dlc.graph.ops.attributes import as_sizes
from dlc.graph.ops.conv import ConvTranspose
from dlc.graph.ops.matmul import MatMul
from dlc.graph.ops.shape import Reshape
from dlc.graph.rewrite import Match, Pattern, Refusal, rule
from dlc.te.types import const_size, is_const


@rule(Pattern(ConvTranspose, ("x", "w")))
def conv_transpose_of_a_pixel(match: Match) -> Value | Refusal:
    """Kernels weighed by the channels of a pixel."""
    conv, x, w = match.root.op, match["x"], match["w"]
    assert isinstance(conv, ConvTranspose)
    if not all(is_const(size, 1) for size in x.type.shape[2:]):
        return Refusal("the images are no pixels, or may be none")
    if conv.groups != 1 or any(d != 1 for d in conv.dilation):
        return Refusal("a channel weighs more or less than one whole kernel")
    if any(conv.pads) or any(conv.output_padding):
        return Refusal("the result is no whole kernel")
    if not w.type.is_static:
        return Refusal("the weights have an open size")
    channels, *kernel = map(const_size, w.type.shape)
    rows = match.call(Reshape(shape=as_sizes((x.type.shape[0], channels))), x)
    columns = match.call(Reshape(shape=as_sizes((channels, prod(kernel)))), w)
    product = match.call(MatMul(), rows, columns)
    return match.call(Reshape(shape=match.root.output.type.shape), product)
