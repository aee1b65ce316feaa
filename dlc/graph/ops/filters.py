"""Minimal filters: transforms along one axis, between which a convolution has fewer products.

Two kinds: of floats, and of whole numbers, whose transforms have no fractions. What those multiply
results by is divided out at the end, without a rest.

Source: Lavin, Gray, "Fast Algorithms for Convolutional Neural Networks", arXiv 1509.09308,
section 4.1, for the matrices of F(2x2, 3x3), and of F(4x4, 3x3) for the points 0, 1, -1, 2, -2 and
infinity, whose multiples those of whole numbers are. Those of floats are of Toom and Cook for the
points 0, 1, -1, 2, -1/2 and infinity, which round less: Barabasz, Anderson, Soodhalter, Gregg,
"Error Analysis and Improving the Accuracy of Winograd Convolution for Deep Neural Networks", arXiv
1803.10986. Those of kernels of two are made likewise: three results for 0, 1, -1 and infinity, two
for 0, 1 and infinity.
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


def _pixels_of_pairs(d: Sequence[Expr]) -> list[Expr]:
    return [d[0] - d[1], d[1], d[1] - d[2]]


def _sums_of_pairs(m: Sequence[Expr]) -> list[Expr]:
    """Two results of a kernel of two, of the points 0, 1 and infinity."""
    return [m[0] + m[1], m[1] - m[2]]


def _of_phases(first: Filter, second: Filter) -> Filter:
    """One in steps of two: what each phase of the pixels gives to the results is added up."""
    count = len(first.weights)
    taps = first.weights.shape[1] + second.weights.shape[1]
    weights = np.zeros((count + len(second.weights), taps))
    weights[:count, ::2], weights[count:, 1::2] = first.weights, second.weights

    def pixels(d: Sequence[Expr]) -> list[Expr]:
        return first.pixels(d[::2]) + second.pixels(d[1::2])

    def sums(m: Sequence[Expr]) -> list[Expr]:
        parts = zip(first.sums(m[:count]), second.sums(m[count:]), strict=True)
        return [a + b for a, b in parts]

    return Filter(pixels, sums, weights)


_OF_TWO = Filter(
    _pixels_of_two,
    _sums_of_two,
    np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]]),
)
_OF_THREE_PAIRS = Filter(
    _pixels_of_two, _sums_of_three_pairs, np.array([[1, 0], [0.5, 0.5], [0.5, -0.5], [0, 1]])
)
_OF_PAIRS = Filter(_pixels_of_pairs, _sums_of_pairs, np.array([[1, 0], [1, 1], [0, 1]]))
_OF_PIXELS = Filter(list, list, np.ones((3, 1)))  # three results of one tap, nothing saved
Filters = Mapping[tuple[int, int, int], Filter]
"""By the results of a tile, the taps of a kernel, and its step."""
FILTERS: Filters = {
    (2, 3, 1): _OF_TWO,
    (3, 2, 1): _OF_THREE_PAIRS,
    (3, 4, 1): Filter(
        _pixels_of_four,
        _sums_of_three,
        np.array(
            [[15, 0, 0, 0], [-5, -5, -5, -5], [5, -5, 5, -5], [1, 2, 4, 8], [-16, 8, -4, 2],
             [0, 0, 0, 15]]
        )
        / 15,
    ),
    (4, 3, 1): Filter(
        _pixels_of_four,
        _sums_of_four,
        np.array(
            [[15, 0, 0], [-5, -5, -5], [5, -5, 5], [1, 2, 4], [-16, 8, -4], [0, 0, 15]]
        )
        / 15,
    ),
    (3, 3, 2): _of_phases(_OF_THREE_PAIRS, _OF_PIXELS),
    (3, 4, 2): _of_phases(_OF_THREE_PAIRS, _OF_THREE_PAIRS),
    (2, 5, 2): _of_phases(_OF_TWO, _OF_PAIRS),
}  # fmt: skip
WHOLE_FILTERS: Filters = {
    (2, 3, 1): Filter(
        _pixels_of_two,
        _sums_of_two,
        np.array([[2, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, 2]]),
        scale=2,
    ),
    (4, 3, 1): Filter(
        _whole_pixels_of_four,
        _whole_sums_of_four,
        np.array([[6, 0, 0], [-2, -2, -2], [-2, 2, -2], [1, 2, 4], [1, -2, 4], [0, 0, 6]]),
        scale=24,
    ),
}
WHOLE_TAPS = 3  # of all kernels that have transforms of whole numbers


@dataclass(frozen=True, slots=True)
class Tile:
    """Some results along each axis that is transformed, of a kernel."""

    out: Out
    kernel: tuple[int, ...]
    steps: tuple[int, ...] = ()  # (): of one
    is_whole: bool = False

    @staticmethod
    def of_whole(out: Out) -> Tile:
        """A tile of whole numbers."""
        return Tile(out, (WHOLE_TAPS,) * len(out), is_whole=True)

    @property
    def strides(self) -> tuple[int, ...]:
        """The steps of the kernel along each axis."""
        return self.steps or (1,) * len(self.out)

    @property
    def taps(self) -> tuple[int, ...]:
        """The small kernel that computes this one, along each axis.

        The smallest that it fits, or the largest, of several of which it is the sum then.
        """
        found = []
        for results, size, step in zip(self.out, self.kernel, self.strides, strict=True):
            known = sorted(k for n, k, s in self._known if (n, s) == (results, step))
            found.append(next((taps for taps in known if taps >= size), known[-1]))
        return tuple(found)

    @property
    def filters(self) -> tuple[Filter, ...]:
        """The transforms along each axis."""
        keys = zip(self.out, self.taps, self.strides, strict=True)
        return tuple(self._known[key] for key in keys)

    @property
    def positions(self) -> tuple[int, ...]:
        """How many products it has along each axis: as many as pixels."""
        return tuple(len(each.weights) for each in self.filters)

    @property
    def parts(self) -> tuple[int, ...]:
        """Of how many kernels one is made along each axis; nothing where it is one of them."""
        counts = tuple(-(-k // taps) for k, taps in zip(self.kernel, self.taps, strict=True))
        return counts if max(counts) > 1 else ()

    @property
    def has_filters(self) -> bool:
        """Whether there are such results in such steps."""
        known = {(n, s) for n, _, s in self._known}
        return known >= set(zip(self.out, self.strides, strict=True))

    @property
    def _known(self) -> Filters:
        return WHOLE_FILTERS if self.is_whole else FILTERS


def scale_of(out: Out) -> int:
    """What tiles of whole numbers multiply results by."""
    return prod(each.scale for each in Tile.of_whole(out).filters)


def growth(out: Out) -> int:
    """How many times the largest magnitude of pixels transformed ones may have, whole numbers."""
    each = ((f.pixels, len(f.weights)) for f in Tile.of_whole(out).filters)
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


def transform_weights(w: Array, out: Out, steps: Sequence[int] = ()) -> Array:
    """The weights of each product of a tile of `out` results, in float64.

    Shapes:
        w: [ob, cb, *outer, *kernel, c, oc] -> [*positions, ob, cb, *outer, *parts, c, oc]
    """
    axes, place = len(out), w.ndim - LANES - len(out)
    tile = Tile(out, w.shape[place:-LANES], tuple(steps))
    each = list(zip(tile.kernel, tile.taps, strict=True))
    pads = [(0, -k % taps) for k, taps in each]
    found = np.pad(w.astype(np.float64), [(0, 0)] * place + pads + [(0, 0)] * LANES)
    cut = [size for k, taps in each for size in (-(-k // taps), taps)]
    found = found.reshape(*w.shape[:place], *cut, *w.shape[-LANES:])
    found = np.moveaxis(found, range(place, place + 2 * axes, 2), range(place, place + axes))
    found = found.reshape(*w.shape[:place], *tile.parts, *tile.taps, *w.shape[-LANES:])
    for of_axis in reversed(tile.filters):
        found = np.tensordot(of_axis.weights, found, axes=(1, found.ndim - LANES - 1))
    return found
