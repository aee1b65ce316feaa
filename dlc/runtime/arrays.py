"""What a caller passes for an input becomes an array the runtime can read without a copy.

Nothing is cast: a wrong element type is an error with the cast as its hint. The exception is a
Python number for a 0-d input, which has no element type of its own.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dlc.core.errors import InputError
from dlc.core.manifest import TensorSpec
from dlc.core.types import NARROW, DType

Array = np.ndarray[Any, Any]


_POINTERS = np.dtype([("data", np.uint64), ("bytes", np.uint64)])
"""A dlc_text of dlc/runtime.h."""


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """NumPy's type for ours, as the runtime reads it."""
    if dtype is DType.STR:
        return _POINTERS
    if dtype is DType.BF16 or dtype in NARROW:
        import ml_dtypes  # noqa: F401  # only models with such types at their edge need it
    return np.dtype(dtype.numpy_name)


def has_texts(array: Array) -> bool:
    """Whether the elements are texts, of any length or, as in files of NumPy's, of a fixed one."""
    return array.dtype.kind in "OUT"


def as_input(value: object, spec: TensorSpec, dtype: np.dtype[Any]) -> Array:
    """The array for an input, of the very dtype object `dtype`, C-contiguous and aligned.

    Raises:
        InputError: the value is no array, or of another element type or shape.
    """
    if spec.dtype is DType.STR:
        value = _as_texts(value, spec)
    array = _as_array(value, spec, dtype)
    if array.dtype != dtype:
        raise InputError(
            name=spec.name,
            reason=f"expected {dtype}, got {array.dtype}",
            hint=f"pass {spec.name}.astype('{dtype}')",
        )
    check_shape(array.shape, spec)
    if not (array.flags.c_contiguous and array.flags.aligned):
        array = array.copy(order="C")
    return array if array.dtype is dtype else array.view(dtype)


def _as_texts(value: object, spec: TensorSpec) -> Array:
    """Where each text is, in an array whose memory also holds the texts."""
    given = np.asarray(value, np.object_) if isinstance(value, str | list) else value
    if not isinstance(given, np.ndarray) or given.dtype.kind not in "OUSTV":
        kind = given.dtype if isinstance(given, np.ndarray) else type(given).__name__
        raise InputError(name=spec.name, reason=f"expected texts, got {kind}")
    if given.dtype == _POINTERS:
        return given
    texts = [_as_bytes(text, spec) for text in given.reshape(-1).tolist()]
    edge = _POINTERS.itemsize * len(texts)
    memory = np.empty(edge + sum(map(len, texts)), np.uint8)
    memory[edge:] = np.frombuffer(b"".join(texts), np.uint8)
    pointers = memory[:edge].view(_POINTERS)
    pointers["bytes"] = [len(text) for text in texts]
    ends = np.cumsum(pointers["bytes"], dtype=np.uint64)
    pointers["data"] = np.uint64(memory.ctypes.data + edge) + ends - pointers["bytes"]
    return pointers.reshape(given.shape)


def _as_bytes(text: object, spec: TensorSpec) -> bytes:
    if isinstance(text, str):
        return text.encode("utf-8", "surrogateescape")
    if isinstance(text, bytes):
        return text
    raise InputError(name=spec.name, reason=f"expected texts, got a {type(text).__name__}")


def check_shape(shape: Sequence[int], spec: TensorSpec) -> None:
    """Refuse a shape that surely does not fit; the values of size variables are not compared.

    Raises:
        InputError: another rank, or another constant dimension.
    """
    pairs = zip(shape, spec.shape, strict=False)
    if len(shape) == len(spec.shape) and all(isinstance(w, str) or g == w for g, w in pairs):
        return
    hint = ""
    if len(shape) + 1 == len(spec.shape):
        hint = f"add the first dimension: {spec.name}[None]"
    elif sorted(map(str, shape)) == sorted(map(str, spec.shape)):
        hint = "the dimensions are in another order; transpose them"
    expected = print_shape(spec.shape)
    raise InputError(
        name=spec.name, reason=f"expected shape {expected}, got {print_shape(shape)}", hint=hint
    )


def print_shape(shape: Sequence[int | str]) -> str:
    """`(batch, 3, 224)`, `(8,)`."""
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def _as_array(value: object, spec: TensorSpec, dtype: np.dtype[Any]) -> Array:
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, np.generic):
        return np.asarray(value)
    if isinstance(value, bool | int | float):
        return as_scalar(value, spec, dtype)
    if value is None:
        raise InputError(
            name=spec.name,
            reason="expected an array, got None",
            hint=f"an optional input is left out when the model is compiled: "
            f"shapes={{'{spec.name}': None}}",
        )
    if isinstance(value, list | tuple):
        raise InputError(
            name=spec.name,
            reason=f"expected an array, got a {type(value).__name__}",
            hint=f"pass np.array({spec.name}, '{dtype}')",
        )
    if isinstance(value, Mapping):
        raise InputError(
            name=spec.name,
            reason=f"expected an array, got a {type(value).__name__}",
            hint="inputs by name are for run: model.run({name: array})",
        )
    try:
        if hasattr(value, "__dlpack__"):
            return np.from_dlpack(value)
        if any(hasattr(value, name) for name in ("__array_interface__", "__array__")):
            return np.asarray(value)
        return np.asarray(memoryview(value))  # type: ignore[arg-type]
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(
            name=spec.name,
            reason=f"a {type(value).__name__} cannot be read as an array: {error}",
            hint="pass a NumPy array, or anything with __dlpack__ or __array__, in CPU memory",
        ) from error


def as_scalar(value: bool | int | float, spec: TensorSpec, dtype: np.dtype[Any]) -> Array:
    """A number as a 0-d array of the element type of an input.

    Raises:
        InputError: the type does not hold it, as an int no float, a u8 no 300 and a f16 no 1e6.
    """
    natural = "b" if isinstance(value, bool) else "i" if isinstance(value, int) else "f"
    kind = "f" if spec.dtype.is_float else "b" if spec.dtype is DType.BOOL else "i"
    if "bif".index(natural) > "bif".index(kind):
        raise InputError(name=spec.name, reason=f"expected {dtype}, got the number {value}")
    found: Array | None = None
    with contextlib.suppress(OverflowError), np.errstate(over="ignore"):
        found = np.array(value, dtype)
    if found is None or (math.isfinite(value) and not np.isfinite(found)):
        raise InputError(name=spec.name, reason=f"{value} does not fit in {dtype}")
    return found
