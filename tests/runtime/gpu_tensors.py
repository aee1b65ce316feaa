"""Tensors in the memory of the stub's GPU, as another library would have them."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

CUDA = ctypes.CDLL("libcuda.so.1")
CUDA.cuMemAlloc_v2.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FLOAT = 2


class _Tensor(ctypes.Structure):
    """A DLManagedTensor. Source: DLPack 1.x."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


def capsule(address: int, shape: tuple[int, ...], device: tuple[int, int]) -> tuple[Any, Any]:
    """A DLPack capsule of float32, and what it needs kept."""
    sizes = (ctypes.c_int64 * len(shape))(*shape)
    tensor = _Tensor(
        address, *device, len(shape), _FLOAT, 32, 1, ctypes.addressof(sizes), None, 0, None, None
    )
    make = ctypes.pythonapi.PyCapsule_New
    make.restype = ctypes.py_object
    make.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return make(ctypes.addressof(tensor), b"dltensor", None), (sizes, tensor)


def address_of(made: Any) -> int:
    """The address in a DLPack capsule."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype = ctypes.c_void_p
    get.argtypes = [ctypes.py_object, ctypes.c_char_p]
    return int(_Tensor.from_address(get(made, b"dltensor")).data)


class GpuTensor:
    """Some float32 on a GPU; `array` is the same memory, which the stub has on the CPU."""

    def __init__(self, data: np.ndarray, offset: int = 0, device: tuple[int, int] = (2, 0)) -> None:
        pointer = ctypes.c_uint64()
        assert CUDA.cuMemAlloc_v2(ctypes.byref(pointer), data.nbytes + offset) == 0
        self.address, self.device = pointer.value + offset, device
        memory: Any = (ctypes.c_float * data.size).from_address(self.address)
        self.array = np.ctypeslib.as_array(memory).reshape(data.shape)
        self.array[...] = data
        self.streams: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        self.streams.append(stream)
        made, self.kept = capsule(self.address, self.array.shape, self.device)
        return made


def stream() -> int:
    """A stream of the caller's."""
    made = ctypes.c_void_p()
    assert CUDA.cuStreamCreate(ctypes.byref(made), 0) == 0
    assert made.value
    return made.value
