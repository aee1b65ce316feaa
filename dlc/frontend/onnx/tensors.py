"""Constants: TensorProto to NumPy, without a Python list in between."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from onnx import SparseTensorProto, TensorProto

from dlc.core.errors import LimitError, ModelError
from dlc.core.types import NARROW, DType
from dlc.frontend.onnx.dtypes import DTYPES, elem_type_name
from dlc.frontend.onnx.external import ExternalData, ExternalDataError
from dlc.frontend.onnx.limits import Limits
from dlc.frontend.onnx.model import Unreadable
from dlc.graph.arrays import NUMPY_DTYPES
from dlc.graph.op import Array

_FIELDS: dict[DType, str] = {
    DType.F32: "float_data",
    DType.F64: "double_data",
    DType.I64: "int64_data",
    DType.U64: "uint64_data",
    DType.U32: "uint64_data",
}  # every other type is in int32_data
_BITS = {DType.F16: np.uint16, DType.BF16: np.uint16}  # stored as their bit patterns


class TensorReader:
    """Reads the tensors of one model."""

    def __init__(self, label: str, external: ExternalData, limits: Limits) -> None:
        self.label = label
        self._external = external
        self._limits = limits
        self._sparse_left = limits.sparse_bytes

    def read(self, tensor: TensorProto, raw: Array | None = None) -> Array | Unreadable:
        """The elements of a tensor, read-only; `raw` are the bytes that were left in the file.

        Raises:
            ModelError: the data does not fit type and shape, or its external file is refused.
            LimitError: rank or size beyond the limits.
        """
        dtype = DTYPES.get(tensor.data_type)
        if dtype is None:
            return Unreadable(f"element type {elem_type_name(tensor.data_type)}")
        shape = self._shape(tensor, dtype, self._limits.tensor_bytes)
        count = math.prod(shape)
        if tensor.HasField("segment"):
            raise self._bad(tensor, "its data is cut into segments, which ONNX never defined")
        if dtype is DType.STR:
            flat = self._texts(tensor, count)
        elif tensor.data_location == TensorProto.EXTERNAL:
            flat = _unpacked(self._outside(tensor, _stored_bytes(dtype, count)), dtype, count)
        elif raw is not None or tensor.HasField("raw_data"):
            flat = self._raw(tensor, raw, dtype, count)
        else:
            flat = self._typed(tensor, dtype, count)
        return flat.reshape(shape)

    def read_sparse(self, tensor: SparseTensorProto) -> Array | Unreadable:
        """All elements of a tensor of which only those that are not 0 are stored, with positions.

        A position is one number, or one for each axis. They have to ascend; of those that do not,
        only what has two values is refused.

        Raises:
            ModelError: as `read`; positions that do not fit the shape or the values, or are equal.
            LimitError: as `read`.

        Source: SparseTensorProto in https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
        """
        values, at = self.read(tensor.values), self.read(tensor.indices)
        if isinstance(values, Unreadable):
            return values
        dtype = DTYPES[tensor.values.data_type]
        if dtype is DType.STR:
            return Unreadable("a sparse tensor of texts")
        whole = TensorProto(name=tensor.values.name, dims=tensor.dims)
        shape = self._shape(whole, dtype, self._sparse_left)
        self._sparse_left -= math.prod(shape) * dtype.size_bytes
        shapes = [(values.size,), (values.size, len(shape))][: 1 + bool(shape)]
        if isinstance(at, Unreadable) or at.dtype != np.int64 or at.shape not in shapes:
            raise self._bad(whole, f"its {values.size} values have no such number of positions")
        ends = np.array(shape if at.ndim == 2 else [math.prod(shape)], np.int64)
        rows = at.reshape(-1, len(ends))
        if values.ndim != 1 or (rows < 0).any() or (rows >= ends).any():
            raise self._bad(whole, f"a value lies outside of its shape {list(shape)}")
        places = np.ravel_multi_index(tuple(rows.T), tuple(ends))
        if np.unique(places).size < values.size:
            raise self._bad(whole, "an element has two values")
        flat = np.zeros(math.prod(shape), values.dtype)
        flat[places] = values
        flat.flags.writeable = False
        return flat.reshape(shape)

    def _shape(self, tensor: TensorProto, dtype: DType, most_bytes: int) -> tuple[int, ...]:
        shape = tuple(int(d) for d in tensor.dims)
        if len(shape) > self._limits.rank:
            reason = f"constant '{tensor.name}' has rank {len(shape)}, above {self._limits.rank}"
            raise LimitError(what=self.label, reason=reason)
        if any(d < 0 for d in shape):
            raise self._bad(tensor, f"its shape {list(shape)} has a negative size")
        size_bytes = dtype.size_bytes
        for dim in shape:  # one of 0 does not make the others any smaller
            size_bytes *= max(1, dim)
        if size_bytes > most_bytes:
            reason = f"constant '{tensor.name}' of shape {list(shape)} takes {size_bytes} bytes"
            raise LimitError(what=self.label, reason=reason)
        return shape

    def _outside(self, tensor: TensorProto, size_bytes: int) -> Array:
        keys = {entry.key: entry.value for entry in tensor.external_data}
        try:
            return self._external.read(keys, size_bytes)
        except ExternalDataError as error:
            raise self._bad(tensor, f"external data: {error}") from error

    def _raw(self, tensor: TensorProto, raw: Array | None, dtype: DType, count: int) -> Array:
        data = tensor.raw_data if raw is None else raw
        needed = _stored_bytes(dtype, count)
        if len(data) != needed:
            reason = f"{len(data)} bytes are stored, its shape needs {needed}"
            raise self._bad(tensor, reason)
        return _unpacked(np.frombuffer(data, np.uint8), dtype, count)

    def _typed(self, tensor: TensorProto, dtype: DType, count: int) -> Array:
        stored: Sequence[float] = getattr(tensor, _FIELDS.get(dtype, "int32_data"))
        packed = dtype.bits in (2, 4)  # of 6 bits there is one to a number
        needed = _stored_bytes(dtype, count) if packed else count
        if len(stored) != needed:
            raise self._bad(tensor, f"{len(stored)} elements are stored, its shape needs {needed}")
        if dtype in (DType.F32, DType.F64):
            flat = np.fromiter(stored, NUMPY_DTYPES[dtype], count)
        else:
            wide = np.fromiter(stored, np.uint64 if dtype is DType.U64 else np.int64, needed)
            if packed:
                flat = _unpacked(wide.astype(np.uint8), dtype, count)
            elif dtype in NARROW:
                flat = wide.astype(np.uint8).view(NUMPY_DTYPES[dtype])
            else:
                flat = wide.astype(_BITS.get(dtype, NUMPY_DTYPES[dtype])).view(NUMPY_DTYPES[dtype])
        flat.flags.writeable = False
        return flat

    def _texts(self, tensor: TensorProto, count: int) -> Array:
        stored = tensor.string_data
        if len(stored) != count:
            raise self._bad(tensor, f"{len(stored)} elements are stored, its shape needs {count}")
        flat = np.empty(count, np.object_)
        flat[:] = [text.decode("utf-8", "surrogateescape") for text in stored]
        flat.flags.writeable = False
        return flat

    def _bad(self, tensor: TensorProto, reason: str) -> ModelError:
        return ModelError(model=self.label, reason=f"constant '{tensor.name}': {reason}")


def _stored_bytes(dtype: DType, count: int) -> int:
    """How many bytes of a file hold so many elements: those of fewer than 8 bits are packed."""
    return (count * dtype.bits + 7) // 8


def _unpacked(data: Array, dtype: DType, count: int) -> Array:
    """Bytes as elements, the first one in the lowest bits of a byte; each then has a byte."""
    if dtype.bits < 8:
        bits = np.unpackbits(data, count=count * dtype.bits, bitorder="little")
        data = np.packbits(bits.reshape(count, dtype.bits), axis=1, bitorder="little").reshape(-1)
    found = data.view(NUMPY_DTYPES[dtype])
    found.flags.writeable = False
    return found
