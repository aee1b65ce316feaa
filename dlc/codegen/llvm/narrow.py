"""Elements of a byte or less: how they lie in memory, and as what they are computed with.

Source: OCP 8-bit Floating Point Specification 1.0; OCP Microscaling Formats 1.0;
https://onnx.ai/onnx/technical/float8.html for the `fnuz` formats
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dlc.codegen.llvm.ir import Val, constant
from dlc.core.types import DType

if TYPE_CHECKING:
    from dlc.codegen.llvm.arith import Arith


@dataclass(frozen=True, slots=True)
class Format:
    """A float of at most 8 bits with a sign: its fields, and codes without the sign."""

    fraction: int
    """Bits of the fraction."""
    bias: int
    sign: int
    """The bit of the sign, as a number."""
    largest: int
    """The code of the largest finite value."""
    beyond: int
    """The code of what is larger: infinity, NaN, or the largest value itself."""
    nan: int
    zero_has_no_sign: bool = False
    """Then the sign alone is NaN."""


FORMATS = {
    DType.F4E2M1: Format(1, 1, 0x08, 0x07, 0x07, 0x08),
    DType.F6E2M3: Format(3, 1, 0x20, 0x1F, 0x1F, 0x20),
    DType.F6E3M2: Format(2, 3, 0x20, 0x1F, 0x1F, 0x20),
    DType.F8E4M3FN: Format(3, 7, 0x80, 0x7E, 0x7F, 0x7F),
    DType.F8E5M2: Format(2, 15, 0x80, 0x7B, 0x7C, 0x7E),
    DType.F8E4M3FNUZ: Format(3, 8, 0x80, 0x7F, 0x80, 0x80, zero_has_no_sign=True),
    DType.F8E5M2FNUZ: Format(2, 16, 0x80, 0x7F, 0x80, 0x80, zero_has_no_sign=True),
}
_NAN = 0x7FC00000  # of a float32
_INF = 0x7F800000


def extended(arith: Arith, a: Val, dtype: DType) -> Val:
    """The low bits of a byte as a number of that many bits."""
    if not dtype.is_signed:
        return arith.op("and", a, arith.const((1 << dtype.bits) - 1, a))
    unused = arith.const(8 - dtype.bits, a)
    return arith.op("ashr", arith.op("shl", a, unused), unused)


def decoded(arith: Arith, a: Val, dtype: DType) -> Val:
    """The float32 of a code."""
    code = arith.convert("zext", a, "i32")
    if dtype is DType.F8E8M0:
        return _power_of_two(arith, code)
    form = FORMATS[dtype]

    def c(value: int) -> Val:
        return arith.const(value, code)

    size = arith.op("and", code, c(form.sign - 1))
    sign = arith.op("and", code, c(form.sign))
    # Times a power of two moves the exponent's bias, and makes denormals normal.
    shifted = arith.op("shl", size, c(23 - form.fraction))
    scale = constant(2.0 ** (127 - form.bias), "float", a.lanes)
    scaled = arith.op("fmul", arith.convert("bitcast", shifted, "float"), scale)
    bits = arith.convert("bitcast", scaled, "i32")
    if form.zero_has_no_sign:
        bits = arith.select(arith.test("icmp eq", code, c(form.nan)), c(_NAN), bits)
    elif form.beyond > form.largest:
        if form.beyond != form.nan:
            bits = arith.select(arith.test("icmp eq", size, c(form.beyond)), c(_INF), bits)
        least_nan = form.beyond + (form.beyond != form.nan)
        bits = arith.select(arith.test("icmp uge", size, c(least_nan)), c(_NAN), bits)
    moved = arith.op("shl", sign, c(32 - form.sign.bit_length()))
    return arith.convert("bitcast", arith.op("or", bits, moved), "float")


def encoded(arith: Arith, a: Val, dtype: DType) -> Val:
    """The code of a float32, rounded to the nearest, half to even."""
    bits = arith.convert("bitcast", a, "i32")
    if dtype is DType.F8E8M0:
        return _exponent(arith, bits)
    form = FORMATS[dtype]

    def c(value: int) -> Val:
        return arith.const(value, bits)

    size = arith.op("and", bits, c(0x7FFFFFFF))
    dropped = 23 - form.fraction
    odd = arith.op("and", arith.op("lshr", size, c(dropped)), c(1))
    half = (1 << (dropped - 1)) - 1
    rounded = arith.op("add", arith.op("add", size, c(half - ((127 - form.bias) << 23))), odd)
    normal = arith.op("lshr", rounded, c(dropped))
    # Adding the number whose last place is the smallest denormal lets the FPU round to that.
    magic = (127 + 24 - form.bias - form.fraction) << 23
    whole = arith.op(
        "fadd", arith.convert("bitcast", size, "float"), arith.convert("bitcast", c(magic), "float")
    )
    denormal = arith.op("sub", arith.convert("bitcast", whole, "i32"), c(magic))
    tiny = arith.test("icmp ult", size, c((128 - form.bias) << 23))
    code = arith.select(tiny, denormal, normal)
    code = arith.select(arith.test("icmp ugt", code, c(form.largest)), c(form.beyond), code)
    is_nan = arith.test("icmp ugt", size, c(_INF))
    sign = arith.op("and", arith.op("lshr", bits, c(32 - form.sign.bit_length())), c(form.sign))
    if form.zero_has_no_sign:
        code = arith.select(is_nan, c(form.nan), code)
        sign = arith.select(arith.test("icmp eq", code, c(0)), c(0), sign)
        code = arith.op("or", code, sign)
    elif form.nan == form.sign:  # there is no NaN: minus zero
        code = arith.select(is_nan, c(form.nan), arith.op("or", code, sign))
    else:
        code = arith.op("or", arith.select(is_nan, c(form.nan), code), sign)
    return arith.convert("trunc", code, "i8")


def _power_of_two(arith: Arith, code: Val) -> Val:
    """2 to the power of code - 127; code 255 is NaN."""
    exponent = arith.op("shl", code, arith.const(23, code))
    smallest, is_zero = 0x00400000, arith.test("icmp eq", code, arith.const(0, code))
    bits = arith.select(is_zero, arith.const(smallest, code), exponent)
    is_nan = arith.test("icmp eq", code, arith.const(255, code))
    return arith.convert("bitcast", arith.select(is_nan, arith.const(_NAN, code), bits), "float")


def _exponent(arith: Arith, bits: Val) -> Val:
    """The code of the nearest power of two, the larger one of two; NaN unless above zero."""

    def c(value: int) -> Val:
        return arith.const(value, bits)

    up = arith.op("lshr", arith.op("add", bits, c(0x00400000)), c(23))
    tiny = arith.test("icmp ult", bits, c(0x00600000))  # nearer to 2**-127 than to 2**-126
    code = arith.select(tiny, c(0), up)
    off = arith.op("sub", bits, c(1))  # neither zero nor infinite, nor with a sign
    code = arith.select(arith.test("icmp uge", off, c(_INF - 1)), c(255), code)
    return arith.convert("trunc", code, "i8")


def flushed(arith: Arith, a: Val) -> Val:
    """A float, or a zero of its sign where it is denormal."""
    least = 2.0**-126 if a.elem == "float" else 2.0**-1022
    zero = arith.call("copysign", arith.const(0.0, a), a)
    is_tiny = arith.test("fcmp olt", arith.call("fabs", a), arith.const(least, a))
    return arith.select(is_tiny, zero, a)


def tf32(arith: Arith, a: Val) -> Val:
    """A float rounded to 11 significant bits, ties away from 0; NaN as it is."""
    if a.elem == "double":
        return arith.convert("fpext", tf32(arith, arith.convert("fptrunc", a, "float")), "double")
    bits = arith.convert("bitcast", a, "i32")
    near = arith.op("add", bits, arith.const(0x1000, bits))
    cut = arith.op("and", near, arith.const(0xFFFFE000, bits))
    rounded = arith.convert("bitcast", cut, "float")
    return arith.select(arith.test("fcmp uno", a, a), a, rounded)


def flushed_bfloat(arith: Arith, a: Val) -> Val:
    """`flushed` rounded to the nearest bf16, as VCVTNEPS2BF16 does at once.

    Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, VCVTNEPS2BF16.
    """
    raw = arith.convert("bitcast", arith.convert("fptrunc", a, "bfloat"), "i16")
    return arith.from_memory(raw, DType.BF16)
