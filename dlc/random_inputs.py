"""Random inputs of a compiled model, and sizes for what is open of their shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dlc.core.manifest import SizeSpec, TensorSpec
from dlc.core.types import DType
from dlc.runtime.arrays import numpy_dtype

Array = np.ndarray[Any, Any]

_BATCH_NAMES = ("batch", "batch_size", "n", "b")
_TEXTS = ("", "a", "Tokyo", "12.5", "Straße 9", "two words", "ÅÉ")


def random_feeds(
    inputs: Sequence[TensorSpec], sizes: Mapping[str, int], rng: np.random.Generator
) -> dict[str, Array]:
    """Normal floats, bytes of any value, other integers and booleans 0 or 1, a few texts."""
    return {
        spec.name: random_array(spec.dtype, bind_shape(spec, sizes), rng, "normal")
        for spec in inputs
    }


def random_array(
    dtype: DType, shape: tuple[int, ...], rng: np.random.Generator, kind: str
) -> Array:
    """Random values; `kind` is `normal` or `uniform` (from 0 to 1) and concerns floats only."""
    if dtype is DType.STR:
        return rng.choice(np.array(_TEXTS, np.object_), shape)
    to = numpy_dtype(dtype)
    if dtype.is_float:
        draw = rng.standard_normal if kind == "normal" else rng.random
        return np.asarray(draw(shape), to)
    if dtype in (DType.U8, DType.I8):
        info = np.iinfo(to)
        return rng.integers(info.min, info.max, shape, to, endpoint=True)
    return np.asarray(rng.integers(0, 2, shape), to)  # as indices they are in any range


def bind_shape(spec: TensorSpec, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of an input with its open sizes replaced."""
    return tuple(sizes[d] if isinstance(d, str) else d for d in spec.shape)


def default_sizes(sizes: Sequence[SizeSpec], other: int, batch: int = 1) -> dict[str, int]:
    """A value for each open size: `batch` for batches, `other` for the rest, within the bounds."""
    found = {}
    for size in sizes:
        wanted = batch if size.name.lower() in _BATCH_NAMES else other
        wanted = max(wanted, size.min)
        found[size.name] = wanted if size.max is None else min(wanted, size.max)
    return found
