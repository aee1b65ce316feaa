"""Element types: ONNX's numbers, ours and NumPy's.

Source: TensorProto.DataType in https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
"""

from __future__ import annotations

from onnx import TensorProto

from dlc.core.types import DType
from dlc.graph.arrays import NUMPY_DTYPES
from dlc.graph.op import Array

DTYPES: dict[int, DType] = {
    TensorProto.FLOAT: DType.F32,
    TensorProto.UINT8: DType.U8,
    TensorProto.INT8: DType.I8,
    TensorProto.UINT16: DType.U16,
    TensorProto.INT16: DType.I16,
    TensorProto.INT32: DType.I32,
    TensorProto.INT64: DType.I64,
    TensorProto.BOOL: DType.BOOL,
    TensorProto.FLOAT16: DType.F16,
    TensorProto.DOUBLE: DType.F64,
    TensorProto.UINT32: DType.U32,
    TensorProto.UINT64: DType.U64,
    TensorProto.BFLOAT16: DType.BF16,
    TensorProto.FLOAT8E4M3FN: DType.F8E4M3FN,
    TensorProto.FLOAT8E4M3FNUZ: DType.F8E4M3FNUZ,
    TensorProto.FLOAT8E5M2: DType.F8E5M2,
    TensorProto.FLOAT8E5M2FNUZ: DType.F8E5M2FNUZ,
    TensorProto.FLOAT8E8M0: DType.F8E8M0,
    TensorProto.FLOAT6E2M3: DType.F6E2M3,
    TensorProto.FLOAT6E3M2: DType.F6E3M2,
    TensorProto.FLOAT4E2M1: DType.F4E2M1,
    TensorProto.UINT4: DType.U4,
    TensorProto.INT4: DType.I4,
    TensorProto.UINT2: DType.U2,
    TensorProto.INT2: DType.I2,
    TensorProto.STRING: DType.STR,
}
ELEM_TYPES: dict[DType, int] = {dtype: number for number, dtype in DTYPES.items()}
_FROM_NUMPY = {array: dtype for dtype, array in NUMPY_DTYPES.items() if dtype is not DType.INDEX}


def dtype_of(array: Array) -> DType:
    """The element type of a NumPy array."""
    return _FROM_NUMPY[array.dtype]


def elem_type_name(number: int) -> str:
    """ONNX's name of an element type."""
    try:
        return str(TensorProto.DataType.Name(number))
    except ValueError:
        return f"number {number}"
