"""Arrays between pages that nobody may touch, filled with data that makes results comparable."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np

from dlc.core.aligned import CACHE_LINE
from dlc.runtime.arrays import numpy_dtype
from dlc.schedule.loop import Buffer

Array = np.ndarray[Any, Any]
FILL = 0x5B  # what surrounds an array, and what a result holds before it is computed
_NOTHING, _READ = 0, mmap.PROT_READ
_libc = ctypes.CDLL(None, use_errno=True)


class Guarded:
    """An array that ends where a page begins that cannot be touched; another lies before it.

    The bytes between the front page and the array hold `FILL`, which `was_overrun` looks at.
    With `shared`, children of this process write to the same memory.
    """

    def __init__(self, buffer: Buffer, *, shared: bool = False) -> None:
        dtype = numpy_dtype(buffer.type.dtype)
        shape = buffer.type.static_shape
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        pages = -(-(size + CACHE_LINE) // mmap.PAGESIZE)
        flags = mmap.MAP_ANONYMOUS | (mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE)
        self._map = mmap.mmap(-1, (pages + 2) * mmap.PAGESIZE, flags=flags)
        self._raw = np.frombuffer(self._map, np.uint8)
        for page in (0, pages + 1):
            _protect(self._raw.ctypes.data + page * mmap.PAGESIZE, mmap.PAGESIZE, _NOTHING)
        self._first = (pages + 1) * mmap.PAGESIZE - size
        self._pages = pages
        self._raw[mmap.PAGESIZE : self._first] = FILL
        self.array: Array = self._raw[self._first : self._first + size].view(dtype).reshape(shape)

    def seal(self) -> None:
        """Let nobody write to the array from now on."""
        _protect(self._raw.ctypes.data + mmap.PAGESIZE, self._pages * mmap.PAGESIZE, _READ)

    def was_overrun(self) -> bool:
        """Whether bytes before the array were written."""
        return bool((self._raw[mmap.PAGESIZE : self._first] != FILL).any())

    def fill(self) -> None:
        """Make the content a pattern that no result has everywhere."""
        self.array.reshape(-1).view(np.uint8)[:] = FILL


def aligned(array: Array) -> Array:
    """The array itself if it begins at a cache line, else a copy that does: for timing.

    The copy can only be read, and is shared with children: to fork costs nothing for it.
    """
    if array.ctypes.data % CACHE_LINE == 0:
        return array
    memory = mmap.mmap(-1, max(1, array.nbytes))
    raw = np.frombuffer(memory, np.uint8, array.nbytes)
    copy: Array = raw.view(array.dtype).reshape(array.shape)
    copy[...] = array
    copy.flags.writeable = False
    _protect(raw.ctypes.data, len(memory), _READ)
    return copy


def fill_input(array: Array, seed: int) -> None:
    """Small integers, so that sums are exact in any order; 0 and 1 where the type is an integer.

    Wide integers may be positions in other arrays, so they are small enough for any.
    """
    rng = np.random.default_rng(seed)
    kind, width = array.dtype.kind, array.dtype.itemsize
    if kind in "fV":
        array[...] = rng.integers(-4, 5, array.shape, np.int8)
    elif kind == "b" or width > 2:
        array[...] = rng.integers(0, 2, array.shape, np.int8).astype(array.dtype)
    else:
        array[...] = rng.integers(0, 5, array.shape, np.int8).astype(array.dtype)


def why_different(got: Array, expected: Array) -> str:
    """Why a result is not the reference's, or an empty text.

    Rounding is allowed 64 units in the last place of the largest element: operands are small
    integers, so only functions such as exp round at all.
    """
    if np.array_equal(got, expected):
        return ""  # as it mostly is; what follows takes several times as long
    if got.dtype.kind not in "fV":
        return _first_difference(got != expected, got, expected)
    a, b = got.astype(np.float64), expected.astype(np.float64)
    with np.errstate(all="ignore"):
        finite = np.isfinite(b)
        scale = float(np.abs(b[finite]).max()) if finite.any() else 0.0
        allowed = 64 * _epsilon(expected.dtype) * (np.abs(b) + scale)
        same = (a == b) | (np.isnan(a) & np.isnan(b)) | (finite & (np.abs(a - b) <= allowed))
    return _first_difference(~same, got, expected)


def _first_difference(different: Array, got: Array, expected: Array) -> str:
    count = int(different.sum())
    if not count:
        return ""
    where = tuple(int(i) for i in np.argwhere(different)[0])
    return f"{count} of {got.size} elements: {got[where]} instead of {expected[where]} at {where}"


def _epsilon(dtype: np.dtype[Any]) -> float:
    if dtype.kind == "V" or dtype.name == "bfloat16":
        return 2.0**-8
    return float(np.finfo(dtype).eps)


def _protect(address: int, size: int, allowed: int) -> None:
    if _libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), allowed):
        raise OSError(ctypes.get_errno(), "mprotect")
