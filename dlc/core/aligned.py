"""Arrays that begin where a line of a cache does, as the rows that kernels read in vectors do."""

from __future__ import annotations

from typing import Any

import numpy as np

CACHE_LINE = 64  # bytes


def aligned_zeros(like: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Zeros of the type and shape of an array, from the beginning of a cache line on."""
    raw = np.zeros(like.nbytes + CACHE_LINE, np.uint8)
    first = -raw.ctypes.data % CACHE_LINE
    zeros: np.ndarray[Any, Any] = raw[first : first + like.nbytes].view(like.dtype)
    return zeros.reshape(like.shape)
