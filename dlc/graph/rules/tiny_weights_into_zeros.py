"""conv(x, w) -> conv(x, w') and conv(x, w) + b -> conv(x, w) + b', where w' and b' have zeros for
elements too small to be normal numbers; matrix products likewise.

Pruned channels of trained models hold such elements, and a multiply-add that meets one takes a
hundred times as long. What is left out is below 2**-126 times the operand (2**-1022 in float64),
which no sum of normal numbers can tell from zero.

Source: Intel 64 and IA-32 Optimization Reference Manual, "Floating-point exceptions" (microcode
assists for denormal operands).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dlc.graph.graph import Value
from dlc.graph.op import Array
from dlc.graph.ops.binary import Add
from dlc.graph.ops.conv import Conv, ConvTranspose
from dlc.graph.ops.matmul import MatMul
from dlc.graph.rewrite import Match, Pattern, Refusal, Weight, rule

_PART = 1 << 15
_PRODUCTS = (Conv, ConvTranspose, MatMul)


@rule(Pattern(_PRODUCTS, ("x", Weight("w"))))
def tiny_weights_into_zeros(match: Match) -> Value | Refusal:
    """Leave weights out that only cost time."""
    zeroed = _without_tiny(match.stored("w"))
    if zeroed is None:
        return Refusal("no weight is too small")
    weights = match.constant(zeroed, match["w"], f"{match['w'].name}_normal")
    return match.call(match.root.op, match["x"], weights)


@rule(Pattern(Add, (Pattern(_PRODUCTS, name="y"), Weight("b")), either_order=True))
def tiny_bias_into_zeros(match: Match) -> Value | Refusal:
    """Leave what is added to a product out where it only makes later products slow."""
    zeroed = _without_tiny(match.stored("b"))
    if zeroed is None:
        return Refusal("no bias is too small")
    bias = match.constant(zeroed, match["b"], f"{match['b'].name}_normal")
    return match.call(Add(), match["y"], bias)


def _without_tiny(array: Array) -> Array | None:
    """The array with zeros for denormal elements; None where there are none."""
    if array.dtype not in (np.float32, np.float64):
        return None
    if not any(_is_tiny(part).any() for part in _parts(array)):
        return None
    return np.where(_is_tiny(array), 0, array)


def _is_tiny(array: Array) -> Array:
    found: Array = (array != 0) & (np.abs(array) < np.finfo(array.dtype).tiny)
    return found


def _parts(array: Array) -> Iterator[Array]:
    """The elements in parts that stay in a cache with what is computed from them."""
    flat = array.reshape(-1)
    return (flat[start : start + _PART] for start in range(0, flat.size, _PART))
