"""Arithmetic on values, the same for scalars and vectors, with the meaning te/expr.py gives it."""

from __future__ import annotations

import math

from dlc.codegen.llvm import half, narrow
from dlc.codegen.llvm.ir import (
    BITS,
    MEMORY_TYPES,
    VALUE_TYPES,
    Builder,
    Val,
    constant,
    mangled,
    type_of,
)
from dlc.codegen.llvm.long_integers import as_long
from dlc.codegen.llvm.whole_quotient import divide_as_floats, divides_as_floats
from dlc.core.target import Target
from dlc.core.types import NARROW_FLOATS, NARROW_INTS, DType
from dlc.te.expr import BinOp

_FLOAT_OPS = {BinOp.ADD: "fadd", BinOp.SUB: "fsub", BinOp.MUL: "fmul", BinOp.DIV: "fdiv"}
_INT_OPS = {
    BinOp.ADD: "add", BinOp.SUB: "sub", BinOp.MUL: "mul", BinOp.BITAND: "and", BinOp.AND: "and",
    BinOp.BITOR: "or", BinOp.OR: "or", BinOp.BITXOR: "xor",
}  # fmt: skip
REMAINDERS = 6  # a quotient of float32s is less than 2**277
_FLOAT_TESTS = {BinOp.LT: "olt", BinOp.LE: "ole", BinOp.EQ: "oeq", BinOp.NE: "une"}
_INT_TESTS = {BinOp.LT: "lt", BinOp.LE: "le", BinOp.EQ: "eq", BinOp.NE: "ne"}


class Arith:
    """Operations that emit through a builder; operands have equal types and lanes."""

    def __init__(self, builder: Builder, target: Target) -> None:
        self.builder = builder
        self.target = target
        self.is_x86 = target.arch == "x86_64"
        self.has_wide_lanes = "avx2" in target.features or not self.is_x86  # of 64-bit integers
        self.truncates_apart = self.is_x86 and "avx512dq" not in target.features  # to 64 bits
        self.has_fma = "fma" in target.features or not self.is_x86
        self.has_rounding = "sse4.1" in target.features or not self.is_x86
        self.has_bf16 = "avx512bf16" in target.features
        self.looks_up = "avx512f" in target.features
        self.has_f16 = "f16c" in target.features or not self.is_x86

    # Plain operations.

    def op(self, name: str, a: Val, b: Val) -> Val:
        """A two-operand instruction whose result has the operands' type."""
        return self.builder.op(f"{name} {a}, {b.ref}", a.elem, a.lanes)

    def const(self, value: int | float | bool, like: Val) -> Val:
        """A constant of the type of `like`."""
        return constant(value, like.elem, like.lanes)

    def call(self, name: str, *operands: Val) -> Val:
        """An intrinsic whose result has the type of its operands: `llvm.<name>.<type>`."""
        a = operands[0]
        return self.builder.call(f"llvm.{name}.{mangled(a.elem, a.lanes)}", a, *operands)

    def convert(self, name: str, a: Val, elem: str) -> Val:
        """A conversion instruction to another element type."""
        if a.elem == elem:
            return a
        return self.builder.op(f"{name} {a} to {type_of(elem, a.lanes)}", elem, a.lanes)

    def test(self, name: str, a: Val, b: Val) -> Val:
        """A comparison, such as `fcmp olt`."""
        return self.builder.op(f"{name} {a}, {b.ref}", "i1", a.lanes)

    def select(self, cond: Val, then: Val, other: Val) -> Val:
        """`then` where `cond` holds, else `other`; both are already computed."""
        if then.ref == other.ref:
            return then
        return self.builder.op(f"select {cond}, {then}, {other}", then.elem, then.lanes)

    def fma(self, a: Val, b: Val, c: Val) -> Val:
        """`a * b + c`, in one rounding where the target has it."""
        if self.has_fma:
            return self.call("fma", a, b, c)
        return self.op("fadd contract", self.op("fmul contract", a, b), c)

    def neg(self, a: Val) -> Val:
        """`-a` for floats."""
        return self.builder.op(f"fneg {a}", a.elem, a.lanes)

    def with_sign(self, size: Val, x: Val) -> Val:
        """A number of at least 0 with the sign of `x`."""
        if not self.is_x86 or self.looks_up:  # an instruction of three operands
            return self.call("copysign", size, x)
        kind = "i32" if x.elem == "float" else "i64"
        bits, own = self.convert("bitcast", x, kind), self.convert("bitcast", size, kind)
        sign = self.op("and", bits, self.const(-(1 << BITS[kind] - 1), bits))
        return self.convert("bitcast", self.op("or", own, sign), x.elem)

    # Rounding to whole numbers.

    def round_even(self, a: Val) -> Val:
        """The nearest whole number, half to even."""
        if self.has_rounding:
            return self.call("roundeven", a)
        # Above 2**23 (f64: 2**52) every float is whole; below, adding that much rounds.
        limit = self.const(2.0 ** (23 if a.elem == "float" else 52), a)
        size = self.call("fabs", a)
        near = self.op("fsub", self.op("fadd", size, limit), limit)
        found = self.select(self.test("fcmp olt", size, limit), near, size)
        return self.call("copysign", found, a)

    def floor(self, a: Val) -> Val:
        """The largest whole number that is not above `a`."""
        if self.has_rounding:
            return self.call("floor", a)
        near = self.round_even(a)
        one, zero = self.const(1.0, a), self.const(0.0, a)
        step = self.select(self.test("fcmp ogt", near, a), one, zero)
        return self.call("copysign", self.op("fsub", near, step), a)

    def trunc(self, a: Val) -> Val:
        """`a` without its fraction."""
        if self.has_rounding:
            return self.call("trunc", a)
        return self.call("copysign", self.floor(self.call("fabs", a)), a)

    # Operators of expressions.

    def binary(self, op: BinOp, a: Val, b: Val, dtype: DType) -> Val:
        """`a op b` on operands of type `dtype`, except `**` and fused operations."""
        if op in _INT_TESTS:
            return self.compare(op, a, b, dtype)
        if op in (BinOp.MIN, BinOp.MAX):
            return self.extreme(op, a, b, dtype)
        if op in (BinOp.FLOORDIV, BinOp.MOD):
            floor = self.float_floor if dtype.is_float else self.int_floor
            return floor(op, a, b, dtype)
        if dtype.is_float:
            return self.op(f"{_FLOAT_OPS[op]} contract", a, b)
        if op in (BinOp.SHL, BinOp.SHR):
            return self.shift(op, a, b, dtype)
        if op is BinOp.DIV:  # integers divide as ONNX does: toward zero
            return self.divide("div", a, b, dtype)
        return self.op(_INT_OPS[op], a, b)

    def compare(self, op: BinOp, a: Val, b: Val, dtype: DType) -> Val:
        """A comparison."""
        if dtype.is_float:
            return self.test(f"fcmp {_FLOAT_TESTS[op]}", a, b)
        name = _INT_TESTS[op]
        if op in (BinOp.LT, BinOp.LE):
            name = ("s" if dtype.is_signed else "u") + name
        return self.test(f"icmp {name}", a, b)

    def extreme(
        self,
        op: BinOp,
        a: Val,
        b: Val,
        dtype: DType,
        *,
        never_nan: tuple[bool, bool] = (False,) * 2,
    ) -> Val:
        """Minimum or maximum; NaN if either is. `never_nan` tells which operands surely are not."""
        if not dtype.is_float:
            if dtype is DType.BOOL:
                return self.op("and" if op is BinOp.MIN else "or", a, b)
            return self.call(("s" if dtype.is_signed else "u") + op.value, a, b)
        if not self.is_x86:
            return self.call("minimum" if op is BinOp.MIN else "maximum", a, b)
        start = self.const(math.inf if op is BinOp.MIN else -math.inf, a)
        if start in (a, b):  # what a reduction begins with
            return b if start == a else a
        # x86's vmaxps(b, a) is `b > a ? b : a`: it gives a when either is NaN. Whether b is, the
        # next term of a reduction, needs not wait for a; AVX-512 then skips lanes by a mask.
        if never_nan[0] and not never_nan[1]:
            a, b, never_nan = b, a, (False, True)
        test = "fcmp olt" if op is BinOp.MIN else "fcmp ogt"
        result = self.select(self.test(test, b, a), b, a)
        if never_nan[1]:
            return result
        return self.select(self.test("fcmp ord", b, b), result, b)

    def is_nan(self, a: Val) -> Val:
        """Whether a float is NaN."""
        return self.test("fcmp uno", a, a)

    def shift(self, op: BinOp, a: Val, b: Val, dtype: DType) -> Val:
        """A shift; by the width or more it gives 0, or the sign of a signed number."""
        width = BITS[a.elem]
        most = self.const(width - 1, a)
        beyond = self.test("icmp ugt", b, most)
        if op is BinOp.SHR and dtype.is_signed:
            return self.op("ashr", a, self.select(beyond, most, b))
        name = "shl" if op is BinOp.SHL else "lshr"
        shifted = self.op(name, a, self.select(beyond, most, b))
        return self.select(beyond, self.const(0, a), shifted)

    def divide(self, name: str, a: Val, b: Val, dtype: DType) -> Val:
        """Truncating `div` or `rem`; by 0 it counts as by 1, and the lowest by -1 wraps around."""
        divide = divide_as_floats if divides_as_floats(a, b) else Arith.op
        if not dtype.is_signed:
            return divide(self, f"u{name}", a, self._nonzero(b))
        divisor = self._nonzero(b)
        # sdiv traps on lowest / -1; x / -1 is 0 - x, which wraps as it should.
        minus = self.test("icmp eq", divisor, self.const(-1, b))
        quotient = divide(self, f"s{name}", a, self.select(minus, self.const(1, b), divisor))
        if name == "rem":
            return self.select(minus, self.const(0, a), quotient)
        return self.select(minus, self.op("sub", self.const(0, a), a), quotient)

    def _nonzero(self, b: Val) -> Val:
        return self.select(self.test("icmp eq", b, self.const(0, b)), self.const(1, b), b)

    def int_floor(self, op: BinOp, a: Val, b: Val, dtype: DType) -> Val:
        """`//` and `%` of integers, rounded down."""
        if not dtype.is_signed:
            return self.divide("div" if op is BinOp.FLOORDIV else "rem", a, b, dtype)
        rest = self.divide("rem", a, b, dtype)
        zero = self.const(0, a)
        differ = self.test("icmp slt", self.op("xor", a, b), zero)
        inexact = self.op("and", self.test("icmp ne", rest, zero), differ)
        if op is BinOp.MOD:
            return self.op("add", rest, self.select(inexact, b, zero))
        quotient = self.divide("div", a, b, dtype)
        return self.op("add", quotient, self.convert("sext", inexact, a.elem))

    def float_floor(self, op: BinOp, a: Val, b: Val, dtype: DType) -> Val:
        """`//` and `%` of floats; the remainder is exact, with the sign of the divisor."""
        rest = self.float_remainder(a, b)
        zero = self.const(0.0, a)
        wrong_sign = self.test("fcmp olt", self.op("fmul", self.sign(rest), self.sign(b)), zero)
        nonzero = self.test("fcmp one", rest, zero)
        off = self.op("and", wrong_sign, nonzero)
        if op is BinOp.MOD:
            return self.select(off, self.op("fadd", rest, b), rest)
        whole = self.round_even(self.op("fdiv", self.op("fsub", a, rest), b))
        return self.select(off, self.op("fsub", whole, self.const(1.0, a)), whole)

    def sign(self, a: Val) -> Val:
        """1 or -1 with the sign of `a`."""
        return self.call("copysign", self.const(1.0, a), a)

    def float_remainder(self, a: Val, b: Val) -> Val:
        """The remainder of a division truncated toward zero, exact for quotients up to 2**300.

        A float32 is divided in float64, where `a - trunc(a / b) * b` is exact by FMA, but for
        large quotients only the next of several remainders: each has 52 bits less.
        """
        wide_a, wide_b = self.convert("fpext", a, "double"), self.convert("fpext", b, "double")
        rest = wide_a
        for _ in range(REMAINDERS):
            whole = self.trunc(self.op("fdiv", rest, wide_b))
            rest = self.fma(self.neg(whole), wide_b, rest)
        # The division may have rounded up to the next whole number: then the sign is wrong.
        zero = self.const(0.0, rest)
        signs = self.op("fmul", self.sign(rest), self.sign(wide_a))
        over = self.op("and", self.test("fcmp olt", signs, zero), self.test("fcmp one", rest, zero))
        step = self.call("copysign", self.call("fabs", wide_b), wide_a)
        rest = self.select(over, self.op("fadd", rest, step), rest)
        infinite = self.test("fcmp oeq", self.call("fabs", wide_b), self.const(math.inf, wide_b))
        finite = self.test("fcmp olt", self.call("fabs", wide_a), self.const(math.inf, wide_a))
        rest = self.select(self.op("and", infinite, finite), wide_a, rest)
        return self.convert("fptrunc", rest, a.elem)

    # Conversions between types, and between registers and memory.

    def cast(self, a: Val, source: DType, result: DType) -> Val:
        """A value of type `source` as type `result`: floats to integers saturate, NaN gives 0."""
        elem = VALUE_TYPES[result]
        if result is DType.BOOL:
            if source.is_float:
                return self.test("fcmp une", a, self.const(0.0, a))
            return a if source is DType.BOOL else self.test("icmp ne", a, self.const(0, a))
        if source.is_float and result.is_float:
            wider = BITS[elem] > BITS[a.elem]
            found = self.convert("fpext" if wider else "fptrunc", a, elem)
            return found if source is result else self.rounded(found, result)
        if source.is_float:
            if self.truncates_apart and a.lanes > 1 and elem == "i64" and result.is_signed:
                return as_long(self, a, lambda: self.saturate(a, result))
            return self.saturate(a, result)
        if result.is_float:
            found = self.convert("sitofp" if source.is_signed else "uitofp", a, elem)
            return self.rounded(found, result)
        if result in NARROW_INTS and source is not DType.BOOL:
            return narrow.extended(self, self.convert("trunc", a, elem), result)
        if BITS[elem] < BITS[a.elem]:
            return self.convert("trunc", a, elem)
        return self.convert("sext" if source.is_signed else "zext", a, elem)

    def rounded(self, a: Val, dtype: DType) -> Val:
        """A computed value as the nearest one that `dtype` has."""
        if dtype not in (DType.F16, DType.BF16) and dtype not in NARROW_FLOATS:
            return a
        return self.from_memory(self.to_memory(a, dtype), dtype)

    def saturate(self, a: Val, result: DType, *, nearest: bool = False) -> Val:
        """A float as an integer, clamped to the range: toward zero, or the nearest; NaN as 0."""
        bits = 64 if result is DType.INDEX else result.bits
        signed = result.is_signed
        low = -(2 ** (bits - 1)) if signed else 0
        high = 2 ** (bits - 1) - 1 if signed else 2**bits - 1
        # The largest float that is not above the range.
        digits = 24 if a.elem == "float" else 53
        exact = high.bit_length() <= digits
        top = (
            float(high)
            if exact
            else float(2 ** high.bit_length() - 2 ** (high.bit_length() - digits))
        )
        number = a
        if signed:
            number = self.select(self.is_nan(a), self.const(0.0, a), a)
        above = self.test("fcmp ogt", number, self.const(top, a))
        clamped = self.select(above, self.const(top, a), number)
        inside = self.test("fcmp ogt", clamped, self.const(float(low), a))  # no NaN is
        clamped = self.select(inside, clamped, self.const(float(low), a))
        elem = VALUE_TYPES[result]
        work = elem if bits >= 32 else "i32"
        if nearest:
            found = self.lrint(clamped, work)
        else:
            found = self.convert("fptosi" if signed or bits < 32 else "fptoui", clamped, work)
        if not exact:
            found = self.select(above, self.const(high, found), found)
        return self.convert("trunc", found, elem)

    def lrint(self, a: Val, elem: str = "i32") -> Val:
        """The nearest whole number of a float, which the integer type must hold."""
        name = f"llvm.lrint.{mangled(elem, a.lanes)}.{mangled(a.elem, a.lanes)}"
        return self.builder.call(name, Val("", elem, a.lanes), a)

    def from_memory(self, a: Val, dtype: DType) -> Val:
        """A value as it lies in memory, as a value to compute with."""
        match dtype:
            case DType.BOOL:
                return self.test("icmp ne", a, self.const(0, a))
            case DType.BF16:
                wide = self.op("shl", self.convert("zext", a, "i32"), constant(16, "i32", a.lanes))
                found = self.convert("bitcast", wide, "float")
                return self._stored_as(found, a, dtype)
            case DType.F16 if self.has_f16:
                return self._stored_as(self.convert("fpext", a, "float"), a, dtype)
            case DType.F16:
                return half.widened(self, self.convert("bitcast", a, "i16"))
            case _ if dtype in NARROW_INTS:
                return narrow.extended(self, a, dtype)
            case _ if dtype in NARROW_FLOATS:
                return narrow.decoded(self, a, dtype)
            case _:
                return a

    def to_memory(self, a: Val, dtype: DType) -> Val:
        """A computed value as it lies in memory; 16-bit floats are rounded to nearest even."""
        match dtype:
            case DType.BOOL:
                return self.convert("zext", a, MEMORY_TYPES[dtype])
            case DType.BF16 | DType.F16 if found := self.as_loaded(a, dtype):
                return found
            case DType.BF16:
                return half.narrowed_to_bf16(self, a)
            case DType.F16 if self.has_f16:
                return self.convert("fptrunc", a, "half")
            case DType.F16:
                return self.convert("bitcast", half.narrowed(self, a), "half")
            case _ if dtype in NARROW_INTS:
                return self.op("and", a, self.const((1 << dtype.bits) - 1, a))
            case _ if dtype in NARROW_FLOATS:
                return narrow.encoded(self, a, dtype)
            case _:
                return a

    def as_loaded(self, a: Val, dtype: DType) -> Val | None:
        """What a 16-bit float that was loaded, and then widened, is in memory."""
        found = self.builder.recall((dtype, a.ref))
        return found if found is not None and found.lanes == a.lanes else None

    def _stored_as(self, wide: Val, a: Val, dtype: DType) -> Val:
        """A widened float, of which is remembered what it was."""
        self.builder.remember((dtype, wide.ref), a)
        return wide
