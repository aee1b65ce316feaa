"""Tensors in the memory of a GPU, by DLPack: those of PyTorch, CuPy or JAX, without a copy.

Source: Python array API standard 2024.12, "__dlpack__" and "Data interchange mechanisms".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dlc.core.errors import InputError
from dlc.core.manifest import TensorSpec
from dlc.runtime.arrays import as_input

CUDA = 2  # kDLCUDA
DEFAULT_STREAM = 1  # DLPack's name for the legacy default stream, and CUDA's


def stream_number(stream: int | None) -> int:
    """A stream by its address; None and 0 are the default one."""
    return stream or DEFAULT_STREAM


def is_on_gpu(value: object) -> bool:
    """Whether a tensor says that it lies in the memory of a GPU."""
    device = getattr(value, "__dlpack_device__", None)
    return device is not None and int(device()[0]) == CUDA


def as_device_input(value: object, spec: TensorSpec, dtype: np.dtype[Any], stream: int) -> object:
    """A capsule for a tensor of the GPU, ready in the stream; an array for any other value.

    Raises:
        InputError: as `as_input`; the tensor cannot be exported.
    """
    return capsule(value, spec, stream) if is_on_gpu(value) else as_input(value, spec, dtype)


def capsule(value: Any, spec: TensorSpec, stream: int) -> object:
    """What DLPack exports of a tensor of the GPU.

    Raises:
        InputError: it lies elsewhere, or refuses.
    """
    if not is_on_gpu(value):
        kind = type(value).__name__
        hint = "pass a tensor with __dlpack__ on the first GPU"
        raise InputError(name=spec.name, reason=f"a {kind} is not on a GPU", hint=hint)
    try:
        return value.__dlpack__(stream=stream)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        reason = f"a {type(value).__name__} cannot be exported: {error}"
        raise InputError(name=spec.name, reason=reason, hint="detach it") from error
