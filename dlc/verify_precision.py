"""What a build with a precision below "highest" promises, and whether it is kept.

The factors of float32 products have 16, 11 or 8 significant bits then, the sums are float32. An
output keeps the promise if its error is within a few units of those bits, or, where the model
magnifies errors, no larger than a few times that of the reference on factors rounded so. Integers
(a class, a position) may differ where those of that reference do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

BITS = {"high": 16, "tf32": 11, "medium": 8}
"""Significant bits of a factor. Two planes of bf16, TF32, or one plane."""
FACTOR = 4.0
"""Units, or times the error of rounded factors: roundings also differ in their order."""


def keeps_promise(
    found: Array, wanted: Array, precision: str, rounded: Callable[[], Array]
) -> bool:
    """Whether an output is as near to what is wanted as its precision promises.

    Args:
        found: the output.
        wanted: the same with far smaller errors.
        precision: a key of `BITS`.
        rounded: gives the reference's on rounded factors; called only if the answer hangs on it.
    """
    error = _error(found, wanted)
    if found.dtype.kind not in "biu" and error <= FACTOR * 2.0 ** -BITS[precision]:
        return True
    return error <= FACTOR * _error(rounded(), wanted)


def _error(found: Array, wanted: Array) -> float:
    """Root mean square of the differences over that of what is wanted; of integers, their share.

    Infinite where shapes differ, or only one of two elements is finite.
    """
    ours, theirs = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    if ours.shape != theirs.shape or not np.array_equal(np.isfinite(ours), np.isfinite(theirs)):
        return np.inf
    finite = np.isfinite(theirs)
    ours, theirs = ours[finite], theirs[finite]
    if not ours.size:
        return 0.0
    if found.dtype.kind in "biu":
        return float(np.mean(ours != theirs))
    size = float(np.sqrt(np.mean(theirs**2)))
    return float(np.sqrt(np.mean((ours - theirs) ** 2))) / (size or 1.0)


def round_factor(array: Array, precision: str) -> Array:
    """Floats rounded to the bits of a precision, ties to even."""
    fraction, exponent = np.frexp(np.asarray(array, np.float64))
    scale = 2.0 ** BITS[precision]
    rounded: Array = np.ldexp(np.round(fraction * scale) / scale, exponent)
    return rounded
