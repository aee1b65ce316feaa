"""Converters of Resize and Upsample.

Source: https://onnx.ai/onnx/operators/onnx__Resize.html, onnx__Upsample.html
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from dlc.core.types import INDEX, DType
from dlc.frontend.onnx.cast import cast_to
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.elementwise import axes_of
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.resample import Sampling, cropped, positions, resample
from dlc.graph.graph import Value
from dlc.graph.ops.binary import Mul
from dlc.graph.ops.elementwise import Floor, Round
from dlc.graph.ops.resize import COORDINATES, ROUNDINGS, SCALE_UNIT, Resize, simple_fraction
from dlc.te.expr import Const, Expr, select
from dlc.te.simplify import canonical
from dlc.te.transform import loads
from dlc.te.types import const_size

_TAPS = {"nearest": 1, "linear": 2, "cubic": 4}
_MOST_TAPS = 16
"""Elements that a result may be made of where only data tells which axes are resized."""
_MODES = {"nearest": "nearest", "linear": "linear", "bilinear": "linear", "cubic": "cubic"}


@converter("Resize", since=11)
def convert_resize(
    ctx: Context,
    x: Value,
    roi: Value | None = None,
    scales: Value | None = None,
    sizes: Value | None = None,
    *,
    antialias: int = 0,
    axes: Sequence[int] = (),
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Value:
    """Interpolate. `roi` and `extrapolation_value` concern only tf_crop_and_resize."""
    crops = coordinate_transformation_mode == "tf_crop_and_resize"
    if not crops and coordinate_transformation_mode not in COORDINATES:
        ctx.refuse(f"coordinate_transformation_mode = '{coordinate_transformation_mode}'")
    if mode not in _MODES or nearest_mode not in ROUNDINGS:
        ctx.refuse(f"mode = '{mode}' with nearest_mode = '{nearest_mode}'")
    where = axes_of(ctx, axes or range(x.type.rank), x.type.rank)
    result, factors = _scales(ctx, x, scales, sizes, where, keep_aspect_ratio_policy)
    smaller = any(not isinstance(s, int | float) or s < 1 for s in factors)
    if crops or (antialias and smaller and mode != "nearest"):
        if not x.type.is_static or not all(isinstance(s, Const) for s in result):
            hint = "fix them with dims= or shapes="
            given = next((v for v in (sizes, scales) if v is not None and not _is_empty(v)), None)
            needs = "" if given is None or ctx.array(given) is not None else given.name
            ctx.refuse("a region, or antialias = 1, needs fixed sizes", hint, needs)
        counts = [const_size(s) for s in result]
        ratios = [
            s if isinstance(s, int | float) else m / n
            for s, n, m in zip(factors, x.type.static_shape, counts, strict=True)
        ]
        sampling = Sampling(
            _MODES[mode], nearest_mode, cubic_coeff_a, bool(exclude_outside), bool(antialias)
        )
        if crops:
            region = _region(ctx, roi, where, x.type.rank)
            return cropped(ctx, x, sampling, region, ratios, counts, extrapolation_value)
        return _antialiased(ctx, x, sampling, coordinate_transformation_mode, ratios, counts)
    _check_taps(ctx, mode, sum(not isinstance(s, int | float | None) for s in factors), scales)
    pairs = zip(x.type.shape, result, strict=True)
    _check_taps(ctx, mode, sum(n != m and ctx.data.reads_any(m) for n, m in pairs), sizes)
    op = Resize(
        sizes=result,
        mode=_MODES[mode],
        coordinates=coordinate_transformation_mode,
        rounding=nearest_mode,
        scales=() if None in factors else tuple(s for s in factors if s is not None),
        cubic_coeff_a=cubic_coeff_a,
        exclude_outside=bool(exclude_outside),
    )
    return _resized(ctx, x, op)


def _check_taps(ctx: Context, mode: str, from_data: int, told_by: Value | None) -> None:
    """Refuse to interpolate along axes that a run will hardly ever find to be resized."""
    if told_by is not None and _TAPS[_MODES[mode]] ** from_data > _MOST_TAPS:
        reason = f"which of {from_data} axes are resized must be known to interpolate"
        ctx.refuse(reason, needs=told_by.name)


def _region(
    ctx: Context, roi: Value | None, axes: Sequence[int], rank: int
) -> list[tuple[float, float]]:
    """Start and end of each axis, as fractions of it."""
    if roi is None:
        ctx.refuse("tf_crop_and_resize has no roi")
    numbers = ctx.floats(roi, "roi")
    _check_length(ctx, "starts and ends", numbers, [*axes, *axes])
    found = [(0.0, 1.0)] * rank
    for axis, start, end in zip(axes, numbers, numbers[len(axes) :], strict=False):
        found[axis] = (start, end)
    return found


def _antialiased(
    ctx: Context,
    x: Value,
    sampling: Sampling,
    coordinates: str,
    scales: Sequence[float],
    counts: Sequence[int],
) -> Value:
    """Every axis by itself: each result is a mean of all elements it stands for."""
    for axis, (size, count) in enumerate(zip(x.type.static_shape, counts, strict=True)):
        if scales[axis] != 1.0 or count != size:
            places = positions(coordinates, size, count, scales[axis])
            x = resample(ctx, x, axis, *sampling.band(size, places, scales[axis]))
    return x


def _resized(ctx: Context, x: Value, op: Resize) -> Value:
    """Integers are interpolated as floats, and cut off, as ONNX's reference and onnxruntime do.

    A hair is added, more than the floats may be off: what is a whole number stays that number.
    """
    dtype = x.type.dtype
    if op.sizes == x.type.shape and all(s == 1.0 for s in op.scales):
        return x
    if op.mode == "nearest" or not dtype.is_int:
        return ctx.call(op, x)
    wide, hair = (DType.F32, 2.0**-20) if dtype.bits <= 8 else (DType.F64, 2.0**-44)
    y = ctx.call(op, cast_to(ctx, x, wide))
    return cast_to(ctx, ctx.call(Mul(), y, ctx.scalar(1 + hair, wide)), dtype)


Axes = tuple[tuple[Expr, ...], list[float | Expr | None]]
"""For each axis the size of the result, and its scale or None for the ratio of the sizes."""


def _scales(
    ctx: Context,
    x: Value,
    scales: Value | None,
    sizes: Value | None,
    axes: Sequence[int],
    policy: str,
) -> Axes:
    result = list(x.type.shape)
    factors: list[float | Expr | None] = [1.0] * x.type.rank
    if sizes is not None and not _is_empty(sizes):
        wanted = ctx.need_sizes(sizes, "the sizes")
        _check_length(ctx, "sizes", wanted, axes)
        if policy != "stretch":
            return _keep_aspect_ratio(ctx, x, wanted, axes, policy)
        for axis, size in zip(axes, wanted, strict=True):
            result[axis] = size
            factors[axis] = 1.0 if size == x.type.shape[axis] else None
        # Ratios of sizes are exact; a scale beside them would have to be a rounded number.
        return tuple(result), factors if None not in factors else [None] * x.type.rank
    if scales is None or _is_empty(scales):
        ctx.refuse("it has neither scales nor sizes")
    if ctx.array(scales) is None:
        return _scales_of_data(ctx, x, scales, axes)
    numbers = ctx.floats(scales, "scales")
    _check_length(ctx, "scales", numbers, axes)
    for axis, scale in zip(axes, numbers, strict=True):
        result[axis] = scaled_size(ctx, x.type.shape[axis], scale)
        factors[axis] = scale
    return tuple(result), factors


def _scales_of_data(ctx: Context, x: Value, scales: Value, axes: Sequence[int]) -> Axes:
    """Scales that a kernel turns into sizes, rounded as for fixed ones, and into whole numbers."""
    shape = np.array([x.type.shape[axis] for axis in axes], np.object_)
    sizes = cast_to(ctx, ctx.size_tensor(shape), DType.F32)
    if scales.type.rank != 1:
        ctx.refuse(f"scales are {scales.type}, no list")
    _check_length(ctx, "scales", ctx.need_sizes(scales, "scales"), axes)
    scaled = ctx.call(Mul(), sizes, cast_to(ctx, scales, DType.F32))
    wanted = ctx.need_sizes(ctx.call(Floor(), scaled), "scales")
    exact = ctx.call(Mul(), cast_to(ctx, scales, DType.F64), ctx.scalar(SCALE_UNIT, DType.F64))
    units = ctx.need_sizes(ctx.call(Round(), exact), "scales")
    result = list(x.type.shape)
    factors: list[float | Expr | None] = [1.0] * x.type.rank
    for axis, size, unit in zip(axes, wanted, units, strict=True):
        result[axis] = ctx.data.size(size)
        factors[axis] = ctx.data.size(unit)
    return tuple(result), factors


def _ratio_of_data(
    ctx: Context, x: Value, wanted: Sequence[Expr], axes: Sequence[int], policy: str
) -> Axes:
    """The smallest or largest ratio of sizes, by comparing products; see `_keep_aspect_ratio`."""
    top, bottom = wanted[0], x.type.shape[axes[0]]
    for axis, size in zip(axes[1:], wanted[1:], strict=True):
        have = x.type.shape[axis]
        left, right = size * bottom, top * have
        better = left < right if policy == "not_larger" else right < left
        top, bottom = select(better, size, top), select(better, have, bottom)
    result = list(x.type.shape)
    factors: list[float | Expr | None] = [1.0] * x.type.rank
    unit = ctx.data.size((top * (2 * SCALE_UNIT) + bottom) // (bottom * 2))
    for axis in axes:
        result[axis] = ctx.data.size((top * x.type.shape[axis] * 2 + bottom) // (bottom * 2))
        factors[axis] = unit
    return tuple(result), factors


def _check_length(ctx: Context, what: str, values: Sequence[object], axes: Sequence[int]) -> None:
    if len(values) != len(axes):
        ctx.refuse(f"{len(values)} {what} for {len(axes)} axes")


def _is_empty(value: Value) -> bool:
    return value.type.shape == (Const(0, INDEX),)


def _keep_aspect_ratio(
    ctx: Context, x: Value, wanted: Sequence[Expr], axes: Sequence[int], policy: str
) -> Axes:
    """One scale for all axes: the smallest or the largest that the wanted sizes ask for."""
    if policy not in ("not_larger", "not_smaller"):
        ctx.refuse(f"keep_aspect_ratio_policy = '{policy}' is not known")
    if any(map(loads, wanted)):
        return _ratio_of_data(ctx, x, wanted, axes, policy)
    if not x.type.is_static or not all(isinstance(s, Const) for s in wanted):
        ctx.refuse("keep_aspect_ratio_policy needs fixed sizes", "fix them with dims= or shapes=")
    have = x.type.static_shape
    if 0 in have:
        ctx.refuse(f"there is nothing to sample in {x.type}")
    ratios = [
        Fraction(int(s.value), have[a])
        for a, s in zip(axes, wanted, strict=True)
        if isinstance(s, Const)
    ]
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    result = list(x.type.shape)
    factors: list[float | Expr | None] = [1.0] * x.type.rank
    for axis in axes:
        rounded = int(scale * have[axis] + Fraction(1, 2))
        result[axis] = Const(rounded, INDEX)
        factors[axis] = float(scale)
    return tuple(result), factors


def scaled_size(ctx: Context, size: Expr, scale: float) -> Expr:
    """floor(size * scale); of a fixed size in float32, as onnxruntime computes it."""
    if not 0 < scale < math.inf:
        ctx.refuse(f"scale {scale} is not positive and finite")
    if isinstance(size, Const):
        return Const(int(np.float32(scale) * np.float32(int(size.value))), INDEX)
    ratio = simple_fraction(scale)
    if abs(float(ratio) - scale) > 1e-6 * scale:
        ctx.refuse(
            f"{size} times {scale} is no size known before the run", "fix it with dims= or shapes="
        )
    return canonical(size * ratio.numerator // ratio.denominator)


@converter("Resize", since=10)
@converter("Upsample", since=9)
def convert_upsample(ctx: Context, x: Value, scales: Value, *, mode: str = "nearest") -> Value:
    """Enlarge; the first Resize had no coordinate modes, either."""
    return _upsample_by(ctx, x, scales, mode)


def _upsample_by(ctx: Context, x: Value, scales: Value, mode: str) -> Value:
    if ctx.array(scales) is not None:
        return _upsample(ctx, x, ctx.floats(scales, "scales"), mode)
    if mode not in _MODES:
        ctx.refuse(f"mode = '{mode}' is not known")
    sizes, factors = _scales_of_data(ctx, x, scales, range(x.type.rank))
    op = Resize(
        sizes=sizes,
        mode=_MODES[mode],
        coordinates="asymmetric",
        rounding="floor",
        scales=tuple(s for s in factors if s is not None),
    )
    return _resized(ctx, x, op)


@converter("Upsample", since=7)
def convert_upsample_7(
    ctx: Context, x: Value, *, scales: Sequence[float], mode: str = "nearest"
) -> Value:
    """Enlarge; the scales as an attribute."""
    return _upsample(ctx, x, scales, mode)


@converter("Upsample", since=1)
def convert_upsample_1(
    ctx: Context, x: Value, *, height_scale: float, width_scale: float, mode: str = "nearest"
) -> Value:
    """Enlarge images."""
    return _upsample(ctx, x, (1.0, 1.0, height_scale, width_scale), mode)


def _upsample(ctx: Context, x: Value, scales: Sequence[float], mode: str) -> Value:
    """What Resize-11 calls asymmetric; the nearest element is the one before, or behind if smaller.

    Source: onnxruntime/core/providers/cpu/tensor/upsamplebase.h, `NearestMode::SIMPLE`
    """
    if mode not in ("nearest", "linear", "bilinear"):
        ctx.refuse(f"mode = '{mode}' is not known")
    _check_length(ctx, "scales", scales, range(x.type.rank))
    enlarges, shrinks = max(scales, default=1) > 1, min(scales, default=1) < 1
    if mode == "nearest" and enlarges and shrinks:
        ctx.refuse(f"scales {list(scales)} make one axis larger and another smaller")
    sizes = tuple(scaled_size(ctx, n, s) for n, s in zip(x.type.shape, scales, strict=True))
    op = Resize(
        sizes=sizes,
        mode=_MODES[mode],
        coordinates="asymmetric",
        rounding="ceil" if shrinks else "floor",
        scales=tuple(scales),
    )
    return _resized(ctx, x, op)
