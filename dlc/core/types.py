"""Element types. `DType` values are their spelling in IR text."""

from __future__ import annotations

import enum


class DType(enum.StrEnum):
    """The type of one element of a tensor, or of a scalar expression."""

    BOOL = "bool"
    I2 = "i2"
    I4 = "i4"
    I8 = "i8"
    I16 = "i16"
    I32 = "i32"
    I64 = "i64"
    U2 = "u2"
    U4 = "u4"
    U8 = "u8"
    U16 = "u16"
    U32 = "u32"
    U64 = "u64"
    F4E2M1 = "f4e2m1"  # sign, 2 bits of exponent, 1 of fraction; no inf, no NaN
    F6E2M3 = "f6e2m3"
    F6E3M2 = "f6e3m2"
    F8E4M3FN = "f8e4m3fn"  # no inf, one NaN
    F8E4M3FNUZ = "f8e4m3fnuz"  # no inf, one NaN, which is where -0 would be
    F8E5M2 = "f8e5m2"  # as IEEE would have it
    F8E5M2FNUZ = "f8e5m2fnuz"
    F8E8M0 = "f8e8m0"  # powers of two: no sign, no zero, no inf, one NaN
    F16 = "f16"
    BF16 = "bf16"
    F32 = "f32"
    F64 = "f64"
    STR = "str"  # a text: an address and a number of bytes; inside of a program, its number
    INDEX = "index"  # sizes, loop variables and subscripts: a signed 64-bit integer

    bits: int
    """How many bits a value has; of a bool, how many it takes."""
    size_bytes: int
    """Bytes of one element in memory: at least one."""
    is_float: bool
    """Whether the type is a floating-point type."""

    def __init__(self, text: str) -> None:
        known = {"bool": 8, "index": 64, "str": 128}
        self.bits = known.get(text) or int(text.lstrip("uibf").partition("e")[0])
        self.size_bytes = max(self.bits // 8, 1)
        self.is_float = text.startswith(("f", "bf"))

    __hash__ = str.__hash__  # that of `Enum` is a function of Python's; nodes are hashed often

    @property
    def numpy_name(self) -> str:
        """What NumPy calls the type; of some only once `ml_dtypes` is imported."""
        match self:
            case DType.BOOL | DType.INDEX:
                return "bool" if self is DType.BOOL else "int64"
            case DType.BF16:
                return "bfloat16"
            case DType.STR:
                return "object"
            case _ if self in NARROW_FLOATS:
                fields = self.value.removeprefix(f"f{self.bits}")
                finite = "fn" if self.bits < 8 else "fnu" if self is DType.F8E8M0 else ""
                return f"float{self.bits}_{fields}{finite}"
            case _:
                word = "float" if self.is_float else "int" if self.is_signed else "uint"
                return f"{word}{self.bits}"

    @property
    def is_int(self) -> bool:
        """Whether the type is an integer type; bool is not."""
        return not self.is_float and self not in (DType.BOOL, DType.STR)

    @property
    def is_signed(self) -> bool:
        """Whether the type has negative values."""
        return self not in UNSIGNED


FLOATS = frozenset({DType.F16, DType.BF16, DType.F32, DType.F64})
"""Types that operators compute in."""
NARROW_FLOATS = frozenset({
    DType.F4E2M1, DType.F6E2M3, DType.F6E3M2, DType.F8E4M3FN, DType.F8E4M3FNUZ, DType.F8E5M2,
    DType.F8E5M2FNUZ, DType.F8E8M0,
})  # fmt: skip
NARROW_INTS = frozenset({DType.I2, DType.I4, DType.U2, DType.U4})
NARROW = NARROW_FLOATS | NARROW_INTS
"""Types for storage: their elements take a byte each, and are moved or converted, no more."""
UNSIGNED = frozenset({
    DType.BOOL, DType.U2, DType.U4, DType.U8, DType.U16, DType.U32, DType.U64, DType.F8E8M0,
    DType.STR,
})  # fmt: skip
INDEX = DType.INDEX
LARGEST_INDEX = 2**63 - 1
