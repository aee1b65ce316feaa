"""Element types as NumPy knows them, and rounding of float64 results back to an element type."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes  # noqa: F401 - gives NumPy the names of narrow types
import numpy as np

from dlc.core.machine import usable_cores
from dlc.core.types import DType
from dlc.graph.op import Array

_WORTH_THREADS = 1 << 18  # elements: below, starting threads takes longer than it saves
NUMPY_DTYPES: dict[DType, np.dtype[Any]] = {dtype: np.dtype(dtype.numpy_name) for dtype in DType}


def round_to(array: Array, dtype: DType) -> Array:
    """The elements in `dtype`; floats round to the nearest, what is too large becomes infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(array).astype(NUMPY_DTYPES[dtype], copy=False)


def for_each(work: Callable[[int], None], items: Iterable[int], elements: int) -> None:
    """Call `work` for each item, on several threads where so many elements are worth it.

    NumPy computes without Python's lock. What `work` raises is raised here.
    """
    if elements < _WORTH_THREADS:
        for item in items:
            work(item)
        return
    with ThreadPoolExecutor(usable_cores()) as pool:
        for _ in pool.map(work, items):
            pass
