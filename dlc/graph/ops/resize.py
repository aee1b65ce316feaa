"""Resizing by interpolation.

Where a result lies in the operand is an exact fraction `num / den` of integers: scales are taken
as the simplest fraction near them. So no position depends on how floats are rounded.
"""

from __future__ import annotations

import functools
import math
import operator
from fractions import Fraction

import numpy as np

from dlc.core.types import FLOATS, DType
from dlc.graph.assume import assume, is_below
from dlc.graph.op import Array, Fuse, Op, as_f64, op
from dlc.graph.ops.attributes import constants, set_sizes
from dlc.graph.ops.elementwise import ANY, check_dtype
from dlc.graph.ops.precision import wide, widen
from dlc.te import tensor as te
from dlc.te.expr import Const, Expr, both, cast, const, either, index, maximum, minimum, select
from dlc.te.simplify import canonical, surely_less
from dlc.te.types import TensorType, is_const

MODES = ("nearest", "linear", "cubic")
COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "tf_half_pixel_for_nn",
    "align_corners", "asymmetric",
)  # fmt: skip
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
SCALE_UNIT = 1441440
"""Scales known only from data are whole multiples of 1 / this: it has all divisors up to 16."""
_SIMPLE = 1 << 10
"""Scales written as float32 are read as fractions with denominators up to this."""


@op("resize", fuse=Fuse.REDUCTION)
class Resize(Op):
    """x sampled at `sizes` positions along each axis, as ONNX `Resize` defines it.

    `scales` are result sizes over operand sizes, one for each axis; none: the ratios of the
    sizes. One that is a size expression counts in units of 1 / SCALE_UNIT. `coordinates` maps a
    position of the result to one of the operand, `rounding` turns it into an index for `nearest`;
    `cubic_coeff_a` and `exclude_outside` belong to `cubic`.

    Source: https://onnx.ai/onnx/operators/onnx__Resize.html
    """

    sizes: tuple[Expr, ...]
    mode: str = "nearest"
    coordinates: str = "half_pixel"
    rounding: str = "round_prefer_floor"
    scales: tuple[float | Expr, ...] = ()
    cubic_coeff_a: float = -0.75
    exclude_outside: bool = False

    def __post_init__(self) -> None:
        set_sizes(self, "sizes")

    def infer(self, x: TensorType) -> TensorType:
        check_dtype(self, ANY if self.mode == "nearest" else FLOATS, x)
        for name, known in (
            ("mode", MODES), ("coordinates", COORDINATES), ("rounding", ROUNDINGS),
        ):  # fmt: skip
            if getattr(self, name) not in known:
                raise self.reject(f"there is no {name} '{getattr(self, name)}'", x)
        if len(self.sizes) != x.rank or len(self.scales) not in (0, x.rank):
            raise self.reject("needs a size, and a scale or none, for each axis", x)
        for scale in self.scales:
            if isinstance(scale, int | float):
                if scale <= 0:
                    raise self.reject("a scale is not positive", x)
            elif is_below(scale, 1):
                raise self.reject(f"scale {scale} is not positive", x)
        for n, m in zip(x.shape, self.sizes, strict=True):
            if is_const(n, 0) and surely_less(0, m):
                raise self.reject("there is nothing to sample", x)
            assume(either(m <= 0, n > 0))
        return TensorType(self.sizes, x.dtype)

    def repeats_rows(self, x: TensorType) -> bool:
        """Whether each element is one of the operand's, and neighbours stay side by side.

        Where it lies is found with little: no axis has a scale that only a run knows.
        """
        if self.mode != "nearest" or not x.rank or not self._is_copied(x.rank - 1, x.shape[-1]):
            return False
        axes = [d for d, n in enumerate(x.shape) if not self._is_copied(d, n)]
        steps = [self._position(index(0), d, x.shape[d])[1] for d in axes]
        return all(isinstance(canonical(step), Const) for step in steps)

    def compute(self, x: te.Tensor) -> te.Tensor:
        axes = [d for d, n in enumerate(x.shape) if not self._is_copied(d, n)]

        def element(*i: Expr) -> Expr:
            return cast(x.dtype, sampled(i, axes, None))

        def sampled(at: tuple[Expr, ...], left: list[int], weight: Expr | None) -> Expr:
            """The operand at `at`, whose indices along `left` are still those of the result.

            Axis by axis, so that a sum is no deeper than the taps of all axes one after the other.
            """
            if not left:
                return x[at] if weight is None else widen(x[at]) * weight
            d = left[0]
            terms = [
                sampled((*at[:d], place, *at[d + 1 :]), left[1:], _times(weight, factor))
                for place, factor in self._taps(at[d], d, x.shape[d], wide(x.dtype))
            ]
            return functools.reduce(operator.add, terms)

        return te.compute(self.name, self.sizes, element, inputs=(x,))

    def _is_copied(self, d: int, size: Expr) -> bool:
        same_scale = not self.scales or self.scales[d] == 1.0
        return size == self.sizes[d] and same_scale

    def _taps(self, i: Expr, d: int, size: Expr, dtype: DType) -> list[tuple[Expr, Expr | None]]:
        """The indices that position `i` reads along axis `d`, with their weights."""
        num, den = self._position(i, d, size)
        last = size - 1
        if self.mode == "nearest":
            return [(_clamped(self._rounded(num, den), last), None)]
        low = num // den
        part = cast(dtype, num - low * den) / cast(dtype, den)
        if self.mode == "linear":
            return [
                (_clamped(low, last), 1.0 - part),
                (_clamped(low + 1, last), part),
            ]
        weights = cubic_weights(part, self.cubic_coeff_a)
        places = [low + k for k in range(-1, 3)]
        if self.exclude_outside:
            weights = [
                select(both(p >= 0, p < size), w, const(0.0, dtype))
                for p, w in zip(places, weights, strict=True)
            ]
            total = weights[0] + weights[1] + weights[2] + weights[3]
            weights = [w / total for w in weights]
        return [(_clamped(p, last), w) for p, w in zip(places, weights, strict=True)]

    def _position(self, i: Expr, d: int, size: Expr) -> tuple[Expr, Expr]:
        """Where position `i` of the result lies in the operand: numerator, denominator."""
        result = self.sizes[d]
        top, bottom = size, result  # one step in the result is top / bottom in the operand
        if self.scales:
            scale = self.scales[d]
            if isinstance(scale, int | float):
                ratio = simple_fraction(scale)
                top, bottom = index(ratio.denominator), index(ratio.numerator)
            else:
                top, bottom = index(SCALE_UNIT), scale
        match self.coordinates:
            case "asymmetric":
                return i * top, bottom
            case "align_corners":
                return i * (size - 1), maximum(result - 1, 1)
            case "tf_half_pixel_for_nn":  # of an older Resize: the middle of a pixel is not 0
                return (i * 2 + 1) * top, bottom * 2
            case "half_pixel_symmetric":
                # size / 2 * (1 - result * top / (bottom * size)) more than half_pixel
                return (i * 2 + 1) * top - bottom + (size * bottom - result * top), bottom * 2
        num, den = (i * 2 + 1) * top - bottom, bottom * 2
        if self.coordinates == "pytorch_half_pixel":
            num = select(result > 1, num, 0) if not surely_less(1, result) else num
        return num, den

    def _rounded(self, num: Expr, den: Expr) -> Expr:
        match self.rounding:
            case "floor":
                return num // den
            case "ceil":
                return -((-num) // den)
            case "round_prefer_ceil":
                return (num * 2 + den) // (den * 2)
        return -((den - num * 2) // (den * 2))

    def reference(self, x: Array) -> Array:
        dtype = x.dtype
        (result,) = as_f64(x)
        for d, size in enumerate(constants(self.sizes)):
            if not (size == x.shape[d] and (not self.scales or self.scales[d] == 1.0)):
                matrix = self._matrix(d, x.shape[d], size)
                result = np.moveaxis(np.tensordot(matrix, result, (1, d)), 0, d)
        return result if dtype.kind in "fV" else result.astype(dtype)

    def _matrix(self, d: int, size: int, count: int) -> Array:
        """The weight of each element of axis `d` for each position of the result."""
        matrix = np.zeros((count, size))
        scale = self._exact_scale(d) if self.scales else Fraction(count, size)
        for i in range(count):
            at = self._exact_position(i, scale, size, count)
            low = math.floor(at)
            part = float(at - low)
            if self.mode == "nearest":
                taps = [(_exact_rounded(at, self.rounding), 1.0)]
            elif self.mode == "linear":
                taps = [(low, 1 - part), (low + 1, part)]
            else:
                taps = [
                    (low + k, _exact_cubic(abs(part - k), self.cubic_coeff_a)) for k in range(-1, 3)
                ]
                if self.exclude_outside:
                    taps = [(p, w) for p, w in taps if 0 <= p < size]
                    total = sum(w for _, w in taps)
                    taps = [(p, w / total) for p, w in taps]
            for place, weight in taps:
                matrix[i, min(max(place, 0), size - 1)] += weight
        return matrix

    def _exact_scale(self, d: int) -> Fraction:
        scale = self.scales[d]
        if isinstance(scale, int | float):
            return simple_fraction(scale)
        (units,) = constants((scale,))
        return Fraction(units, SCALE_UNIT)

    def _exact_position(self, i: int, scale: Fraction, size: int, count: int) -> Fraction:
        half = Fraction(1, 2)
        match self.coordinates:
            case "asymmetric":
                return i / scale
            case "align_corners":
                return Fraction(i * (size - 1), max(count - 1, 1))
            case "pytorch_half_pixel" if count <= 1:
                return Fraction(0)
            case "tf_half_pixel_for_nn":
                return (i + half) / scale
            case "half_pixel_symmetric":
                offset = Fraction(size, 2) * (1 - count / (scale * size))
                return offset + (i + half) / scale - half
        return (i + half) / scale - half


def simple_fraction(scale: float) -> Fraction:
    """The fraction that is meant by a scale: the nearest of a small denominator."""
    return Fraction(scale).limit_denominator(_SIMPLE)


def _times(weight: Expr | None, factor: Expr | None) -> Expr | None:
    """The product of weights, of which one that is None is 1."""
    if weight is None:
        return factor
    return weight if factor is None else weight * factor


def _clamped(at: Expr, last: Expr) -> Expr:
    return maximum(minimum(at, last), 0)


def _cubic(t: Expr, a: float, *, far: bool = False) -> Expr:
    """The weight of an element at distance t: up to 1, or from 1 to 2 where it is far.

    Source: R. Keys, "Cubic convolution interpolation for digital image processing", 1981, eq. 15
    """
    if far:
        return ((t * a - 5 * a) * t + 8 * a) * t - 4 * a
    return (t * (a + 2) - (a + 3)) * t * t + 1.0


def cubic_weights(part: Expr, a: float) -> list[Expr]:
    """The weights of the elements at floor - 1 ... floor + 2, for a position floor + part."""
    return [
        _cubic(part + 1.0, a, far=True),
        _cubic(part, a),
        _cubic(1.0 - part, a),
        _cubic(2.0 - part, a, far=True),
    ]


def _exact_cubic(t: float, a: float) -> float:
    if t <= 1:
        return (a + 2) * t**3 - (a + 3) * t**2 + 1
    return a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a


def _exact_rounded(at: Fraction, rounding: str) -> int:
    half = Fraction(1, 2)
    match rounding:
        case "floor":
            return math.floor(at)
        case "ceil":
            return math.ceil(at)
        case "round_prefer_ceil":
            return math.floor(at + half)
    return math.ceil(at - half)
