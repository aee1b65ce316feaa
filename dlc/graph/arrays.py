"""Element types as NumPy knows them, and rounding of float64 results back to an element type."""

from __future__ import annotations

import mmap
import tempfile
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


_HEAVY_BYTES = 1 << 30  # constants of a graph: below, memory holds them twice
_SPILLED_BYTES = 1 << 26  # an array: below, a file is not worth it


def is_heavy(arrays: Iterable[Array]) -> bool:
    """Whether memory should not be asked to hold a second copy of these constants."""
    return sum(array.nbytes for array in arrays) >= _HEAVY_BYTES


def spilled(array: Array) -> Array:
    """A large array in a file without a name, so that memory need not hold what nobody reads."""
    if array.nbytes < _SPILLED_BYTES or array.dtype.hasobject:
        return array
    try:
        with tempfile.TemporaryFile() as file:
            np.ascontiguousarray(array).reshape(-1).view(np.uint8).tofile(file)
            file.flush()
            memory = mmap.mmap(file.fileno(), array.nbytes, prot=mmap.PROT_READ)
    except OSError:  # no room: memory it is
        return array
    return np.frombuffer(memory, array.dtype).reshape(array.shape)


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
