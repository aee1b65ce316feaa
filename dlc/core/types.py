"""Element types. `DType` values are their spelling in IR text."""

from __future__ import annotations

import enum


class DType(enum.StrEnum):
    """The type of one element of a tensor, or of a scalar expression."""

    BOOL = "bool"
    I8 = "i8"
    I16 = "i16"
    I32 = "i32"
    I64 = "i64"
    U8 = "u8"
    U16 = "u16"
    U32 = "u32"
    U64 = "u64"
    F16 = "f16"
    BF16 = "bf16"
    F32 = "f32"
    F64 = "f64"
    INDEX = "index"  # sizes, loop variables and subscripts: a signed 64-bit integer

    @property
    def bits(self) -> int:
        """Width in memory; a bool takes one byte."""
        match self:
            case DType.BOOL:
                return 8
            case DType.INDEX:
                return 64
            case _:
                return int(self.value.lstrip("uibf"))

    @property
    def size_bytes(self) -> int:
        """Bytes of one element in memory."""
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        """Whether the type is a floating-point type."""
        return self in FLOATS

    @property
    def is_int(self) -> bool:
        """Whether the type is an integer type; bool is not."""
        return self not in FLOATS and self is not DType.BOOL

    @property
    def is_signed(self) -> bool:
        """Whether the type has negative values."""
        return self not in UNSIGNED


FLOATS = frozenset({DType.F16, DType.BF16, DType.F32, DType.F64})
UNSIGNED = frozenset({DType.BOOL, DType.U8, DType.U16, DType.U32, DType.U64})
INDEX = DType.INDEX
