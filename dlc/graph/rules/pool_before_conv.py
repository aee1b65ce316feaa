"""average_pool(conv(x, w) + b) -> conv(average_pool(x), w) + b, for kernels of one pixel: a mean
of pixels is in proportion to them, as a sum over channels is to these, so both may change places.
Fewer pixels are left to multiply.

Source: the transition layers of DenseNet, Huang, Liu, van der Maaten, Weinberger, "Densely
Connected Convolutional Networks", arXiv 1608.06993, section 3.
"""

from __future__ import annotations

from math import prod

from dlc.graph.broadcast import along_axis
from dlc.graph.graph import Value
from dlc.graph.ops.binary import Add
from dlc.graph.ops.conv import Conv
from dlc.graph.ops.pool import AveragePool
from dlc.graph.pointwise import MARGIN, is_pointwise, product_rate
from dlc.graph.rewrite import Match, Pattern, Refusal, Rule, Weight
from dlc.te.types import const_size

POOL = 2.0  # cycles to load a vector of a window, and to add it; see ADR 51

_CONV = Pattern(Conv, ("x", Weight("w")), name="product")
_BIASED = Pattern(Add, (_CONV, Weight("b")), either_order=True)


def _build(match: Match) -> Value | Refusal:
    """Pool what the convolution reads, if that leaves enough products out."""
    pool, conv = match.op(AveragePool), match.op(Conv)
    if match.context.target.gpu is not None:
        return Refusal("what it gains on a GPU has not been measured")
    if not is_pointwise(conv, match["w"]):
        return Refusal("the kernel has more than a pixel, or moves by more")
    bias, rank = match.values.get("b"), match["product"].type.rank
    results = match.stored("w").shape[0]
    if bias is not None and along_axis(match.stored("b"), rank, 1, results) is None:
        return Refusal("what is added differs within a channel")
    if bias is not None and pool.count_include_pad and any(pool.pads):
        return Refusal("nothing is added to pads, which the average counts")
    if not _pays(match, pool):
        return Refusal("pooling other channels takes longer than multiplying all pixels")
    result = match.call(conv, match.call(pool, match["x"]), match["w"])
    return result if bias is None else match.call(Add(), result, bias)


def _pays(match: Match, pool: AveragePool) -> bool:
    """Whether there are so many fewer pixels to multiply."""
    results, channels = (const_size(n) for n in match["w"].type.shape[:2])
    moved = prod(pool.stride)
    each = POOL * prod(pool.kernel) / moved  # cycles of a vector that is pooled
    products = results * channels / product_rate(match.context)
    before, after = products + results * each, products / moved + channels * each
    return after < MARGIN * before


POOL_BEFORE_CONV = tuple(
    Rule("pool_before_conv", Pattern(AveragePool, (operand,)), _build)
    for operand in (_CONV, _BIASED)
)
