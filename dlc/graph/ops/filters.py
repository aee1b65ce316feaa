"""Minimal filters: transforms along one axis, between which a convolution has fewer products.

Two kinds: of floats, and of whole numbers, whose transforms have no fractions. What those multiply
results by is divided out at the end, without a rest.

Source: Lavin, Gray, "Fast Algorithms for Convolutional Neural Networks", arXiv 1509.09308,
section 4.1, for the matrices of F(2x2, 3x3), and of F(4x4, 3x3) for the points 0, 1, -1, 2, -2 and
infinity, whose multiples those of whole numbers are. Those of floats are of Toom and Cook for the
points 0, 1, -1, 2, -1/2 and infinity, which round less: Barabasz, Anderson, Soodhalter, Gregg,
"Error Analysis and Improving the Accuracy of Winograd Convolution for Deep Neural Networks", arXiv
1803.10986.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from dlc.graph.op import Array
from dlc.te.expr import Expr

LANES = 2  # axes of weights behind those of the kernel

Out = tuple[int, ...]  # results of a tile, along columns and rows, or along a line
Line = Callable[[Sequence[Expr]], list[Expr]]


@dataclass(frozen=True, slots=True)
class Filter:
    """The transforms along one axis: of pixels, of sums, and of weights, as a matrix."""

    pixels: Line
    sums: Line
    weights: Array
    scale: int = 1  # that results are multiplied by


def _pixels_of_two(d: Sequence[Expr]) -> list[Expr]:
    return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]


def _sums_of_two(m: Sequence[Expr]) -> list[Expr]:
    return [m[0] + m[1] + m[2], m[1] - m[2] - m[3]]


def _pixels_of_four(d: Sequence[Expr]) -> list[Expr]:
    """Each row of B' has the coefficients of the product of (x - p) over all other points p.

    Those of 0 are 1, 3/2, -2, -3/2, 1, 0; infinity has all points: 0, 1, 3/2, -2, -3/2, 1.
    """
    odd, even = d[3] - d[1], d[4] - d[2]
    low, high = odd - d[2] * 1.5, even - d[3] * 1.5
    return [
        even - odd * 1.5 - (d[2] - d[0]),
        high + low,
        high - low,
        even + odd * 0.5,
        even - odd * 2.0,
        (d[5] - d[3]) - even * 1.5 - odd,
    ]


def _whole_pixels_of_four(d: Sequence[Expr]) -> list[Expr]:
    """For -2 in the place of -1/2, which makes the coefficients whole."""
    odd, even = d[3] - d[1], d[4] - d[2]
    low, high = d[3] - d[1] * 4, d[4] - d[2] * 4
    return [
        even + (d[0] - d[2]) * 4,
        high + low,
        high - low,
        even + odd * 2,
        even - odd * 2,
        d[5] - d[3] - odd * 4,
    ]


def _sums_of_three_pairs(m: Sequence[Expr]) -> list[Expr]:
    """Three results of a kernel of two, of the points of two results of a kernel of three."""
    even = m[1] + m[2]
    return [m[0] + even, m[1] - m[2], even - m[3]]


def _sums_of_three(m: Sequence[Expr]) -> list[Expr]:
    """Three results of a kernel of four, of the points of four results of a kernel of three."""
    even, odd = m[1] + m[2], m[1] - m[2]
    return [
        m[0] + even + (m[3] + m[4]),
        odd + m[3] * 2.0 - m[4] * 0.5,
        even + m[3] * 4.0 + m[4] * 0.25 + m[5],
    ]


def _sums_of_four(m: Sequence[Expr]) -> list[Expr]:
    """The rows of A' are the powers 0 to 3 of the points; infinity adds to the highest alone."""
    even, odd = m[1] + m[2], m[1] - m[2]
    return [
        m[0] + even + (m[3] + m[4]),
        odd + m[3] * 2.0 - m[4] * 0.5,
        even + m[3] * 4.0 + m[4] * 0.25,
        odd + m[3] * 8.0 - m[4] * 0.125 + m[5],
    ]


def _whole_sums_of_four(m: Sequence[Expr]) -> list[Expr]:
    """As of floats, by powers of 2 and -2."""
    even, odd = (m[1] + m[2]) * 2, (m[1] - m[2]) * 2
    high, low = m[3] + m[4], m[3] - m[4]
    return [m[0] + even + high, odd + low * 2, even + high * 4, odd + low * 8 + m[5] * 4]


Filters = Mapping[tuple[int, int], Filter]  # by the results of one tile, and the taps of a kernel
FILTERS: Filters = {
    (2, 3): Filter(
        _pixels_of_two,
        _sums_of_two,
        np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]]),
    ),
    (3, 2): Filter(
        _pixels_of_two,
        _sums_of_three_pairs,
        np.array([[1, 0], [0.5, 0.5], [0.5, -0.5], [0, 1]]),
    ),
    (3, 4): Filter(
        _pixels_of_four,
        _sums_of_three,
        np.array(
            [[15, 0, 0, 0], [-5, -5, -5, -5], [5, -5, 5, -5], [1, 2, 4, 8], [-16, 8, -4, 2],
             [0, 0, 0, 15]]
        )
        / 15,
    ),
    (4, 3): Filter(
        _pixels_of_four,
        _sums_of_four,
        np.array(
            [[15, 0, 0], [-5, -5, -5], [5, -5, 5], [1, 2, 4], [-16, 8, -4], [0, 0, 15]]
        )
        / 15,
    ),
}  # fmt: skip
WHOLE_FILTERS: Filters = {
    (2, 3): Filter(
        _pixels_of_two,
        _sums_of_two,
        np.array([[2, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, 2]]),
        scale=2,
    ),
    (4, 3): Filter(
        _whole_pixels_of_four,
        _whole_sums_of_four,
        np.array([[6, 0, 0], [-2, -2, -2], [-2, 2, -2], [1, 2, 4], [1, -2, 4], [0, 0, 6]]),
        scale=24,
    ),
}
WHOLE_TAPS = 3  # of all kernels that have transforms of whole numbers


def taps_of(out: Out, kernel: Sequence[int]) -> tuple[int, ...]:
    """The small kernel by which tiles of `out` results compute another, along each axis.

    The smallest that it fits, or the largest, of several of which it is the sum then.
    """
    found = []
    for results, size in zip(out, kernel, strict=True):
        known = sorted(taps for each, taps in FILTERS if each == results)
        found.append(next((taps for taps in known if taps >= size), known[-1]))
    return tuple(found)


def filters_of(out: Out, kernel: Sequence[int], filters: Filters = FILTERS) -> tuple[Filter, ...]:
    """The transforms along each axis of a tile."""
    return tuple(filters[key] for key in zip(out, taps_of(out, kernel), strict=True))


def positions(out: Out, kernel: Sequence[int]) -> tuple[int, ...]:
    """How many products a tile of `out` results has along each axis: as many as pixels."""
    return tuple(len(each.weights) for each in filters_of(out, kernel))


def parts_of(kernel: Sequence[int], out: Out) -> tuple[int, ...]:
    """Of how many kernels one is made along each axis; nothing where it is one of them."""
    counts = tuple(-(-k // taps) for k, taps in zip(kernel, taps_of(out, kernel), strict=True))
    return counts if max(counts) > 1 else ()


def _whole(out: Out) -> tuple[Filter, ...]:
    return filters_of(out, (WHOLE_TAPS,) * len(out), WHOLE_FILTERS)


def scale_of(out: Out) -> int:
    """What tiles of whole numbers multiply results by."""
    return prod(each.scale for each in _whole(out))


def growth(out: Out) -> int:
    """How many times the largest magnitude of pixels transformed ones may have, whole numbers."""
    each = ((f.pixels, len(f.weights)) for f in _whole(out))
    units = (np.array([pixels(list(row)) for row in np.eye(n)]) for pixels, n in each)
    return prod(int(np.abs(unit).sum(axis=0).max()) for unit in units)


def inverse_of(scale: int) -> tuple[int, int]:
    """What undoes the factor `scale` of an i32: another factor, and a shift to the right.

    Multiplication modulo 2^32 by an odd number has an inverse; what a power of 2 multiplied must
    not have left the 32 bits.
    """
    shift = (scale & -scale).bit_length() - 1
    inverse = pow(scale >> shift, -1, 1 << 32)
    return inverse - (1 << 32) * (inverse >> 31), shift


def transform_weights(w: Array, out: Out, filters: Filters = FILTERS) -> Array:
    """The weights of each product of a tile of `out` results, in float64.

    Shapes:
        w: [ob, cb, *outer, *kernel, c, oc] -> [*positions, ob, cb, *outer, *parts, c, oc]
    """
    axes, place = len(out), w.ndim - LANES - len(out)
    kernel = w.shape[place:-LANES]
    taps = taps_of(out, kernel)
    counts = [-(-k // n) for k, n in zip(kernel, taps, strict=True)]
    pads = [(0, -k % n) for k, n in zip(kernel, taps, strict=True)]
    found = np.pad(w.astype(np.float64), [(0, 0)] * place + pads + [(0, 0)] * LANES)
    cut = [size for pair in zip(counts, taps, strict=True) for size in pair]
    found = found.reshape(*w.shape[:place], *cut, *w.shape[-LANES:])
    found = np.moveaxis(found, range(place, place + 2 * axes, 2), range(place, place + axes))
    found = found.reshape(*w.shape[:place], *parts_of(kernel, out), *taps, *w.shape[-LANES:])
    for each in reversed(filters_of(out, kernel, filters)):
        found = np.tensordot(each.weights, found, axes=(1, found.ndim - LANES - 1))
    return found
