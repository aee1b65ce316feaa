"""Element types as NumPy knows them, and rounding of float64 results back to an element type."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from dlc.core.types import DType
from dlc.graph.op import Array

NUMPY_DTYPES: dict[DType, np.dtype[Any]] = {
    DType.BOOL: np.dtype(np.bool_),
    DType.I8: np.dtype(np.int8),
    DType.I16: np.dtype(np.int16),
    DType.I32: np.dtype(np.int32),
    DType.I64: np.dtype(np.int64),
    DType.INDEX: np.dtype(np.int64),
    DType.U8: np.dtype(np.uint8),
    DType.U16: np.dtype(np.uint16),
    DType.U32: np.dtype(np.uint32),
    DType.U64: np.dtype(np.uint64),
    DType.F16: np.dtype(np.float16),
    DType.BF16: np.dtype(ml_dtypes.bfloat16),
    DType.F32: np.dtype(np.float32),
    DType.F64: np.dtype(np.float64),
}


def round_to(array: Array, dtype: DType) -> Array:
    """The elements in `dtype`; floats round to the nearest, what is too large becomes infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(array).astype(NUMPY_DTYPES[dtype], copy=False)
