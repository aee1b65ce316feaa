"""Convolutions of one pixel, which change places with what treats each channel alike."""

from __future__ import annotations

from dlc.graph.graph import Value
from dlc.graph.ops.conv import Conv
from dlc.graph.pass_ import PassContext
from dlc.te.types import is_const

TILE_RATE = {"highest": 2.5, "high": 5.0, "tf32": 5.0, "medium": 15.0}
"""Products of a matrix engine for each of multiply-adds, by the precision: the ratio of peaks."""
PAIR_RATE = 2.0  # and of pairs of bf16 in vectors; measured on Zen 4
MARGIN = 0.8  # of the time as it is, that another order may take: estimates are within 30 %


def reads_one_pixel(conv: Conv, w: Value) -> bool:
    """Whether each pixel of the result is made of the one at its place."""
    is_one = all(is_const(k, 1) for k in w.type.shape[2:])
    return is_one and not any(conv.pads) and set(conv.stride) == {1}


def is_pointwise(conv: Conv, w: Value) -> bool:
    """Whether each result is made of all channels of the pixel at its place."""
    return conv.groups == 1 and reads_one_pixel(conv, w)


def product_rate(context: PassContext) -> float:
    """Products in the time of a multiply-add."""
    if context.has_matrix_engine:
        return TILE_RATE[context.precision]
    return PAIR_RATE if context.multiplies_pairs else 1.0
