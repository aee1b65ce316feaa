"""How far two arrays are apart, and whether that is within tolerances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dlc.runtime.arrays import has_texts

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Error:
    """The largest difference of two arrays, and that over the largest magnitude of the second."""

    max_abs: float
    max_rel: float


def measure_error(found: Array, wanted: Array) -> Error:
    """The largest difference; infinite where shapes or the places of NaN and infinities differ."""
    if np.shape(found) != np.shape(wanted):
        return Error(np.inf, np.inf)
    apart, scale = _difference(found, wanted), largest_finite(wanted)
    largest = float(apart.max(initial=0.0))
    return Error(largest, largest / scale if scale else largest)


def why_not_close(found: Array, wanted: Array, who: str, rtol: float, atol: float) -> str:
    """Why two arrays differ by more than the tolerances, or an empty text. Integers must agree."""
    if np.shape(found) != np.shape(wanted):
        return f"has shape {np.shape(found)}, {who} has {np.shape(wanted)}"
    if has_texts(found) != has_texts(wanted):
        return f"is {found.dtype}, {who} has {wanted.dtype}"
    apart = _difference(found, wanted)
    if has_texts(found):
        if not apart.any():
            return ""
        at = tuple(map(int, np.argwhere(apart)[0]))
        return f"differs from {who}: '{found[at]}' at {[*at]}, not '{wanted[at]}'"
    if found.dtype.kind in "biu":
        allowed = np.zeros(apart.shape)
    else:
        magnitude = np.abs(np.asarray(wanted, np.float64))
        allowed = atol + rtol * np.where(np.isfinite(magnitude), magnitude, 0.0)
    bad = ~(apart <= allowed)
    if not bad.any():
        return ""
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(apart)), apart.shape))
    largest = f"max abs {float(apart[at]):.1e} at {[*at]}"
    if not np.isfinite(apart[at]):  # NaN or an infinity, on one side
        largest = f"{float(found[at]):g} at {[*at]}, not {float(wanted[at]):g}"
    return (
        f"differs from {who}: {largest}, "
        f"{100 * bad.mean():.3g} % of the elements are outside rtol {rtol:g}/atol {atol:g}"
    )


def largest_finite(array: Array) -> float:
    """The largest finite magnitude."""
    if has_texts(array):
        return 0.0
    magnitude = np.abs(np.asarray(array, np.float64))
    return float(magnitude[np.isfinite(magnitude)].max(initial=0.0))


def _difference(found: Array, wanted: Array) -> Array:
    """Absolute differences; equal infinities and two NaN are no difference. Of texts 0 or 1."""
    if has_texts(found) != has_texts(wanted):
        return np.full(np.shape(found), np.inf)
    if has_texts(found):
        return np.asarray(found != wanted, np.float64)
    first, second = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(first - second)
    if found.dtype.kind in "biu" and wanted.dtype.kind in "biu":  # may be beyond 2^53
        return np.where(found == wanted, 0.0, np.maximum(apart, 1.0))
    same = (first == second) | (np.isnan(first) & np.isnan(second))
    return np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart))
