"""Element types as NumPy knows them, and rounding of float64 results back to an element type."""

from __future__ import annotations

from typing import Any

import ml_dtypes  # noqa: F401 - gives NumPy the names of narrow types
import numpy as np

from dlc.core.types import DType
from dlc.graph.op import Array

NUMPY_DTYPES: dict[DType, np.dtype[Any]] = {dtype: np.dtype(dtype.numpy_name) for dtype in DType}


def round_to(array: Array, dtype: DType) -> Array:
    """The elements in `dtype`; floats round to the nearest, what is too large becomes infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(array).astype(NUMPY_DTYPES[dtype], copy=False)
