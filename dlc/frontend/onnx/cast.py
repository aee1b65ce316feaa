"""Converters of operators that change element types.

Source: https://onnx.ai/onnx/operators/onnx__Cast.html and its siblings
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from dlc.core.types import FLOATS, INDEX, NARROW_FLOATS, NARROW_INTS, DType
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.dtypes import DTYPES, elem_type_name
from dlc.frontend.onnx.registry import converter
from dlc.graph.arrays import NUMPY_DTYPES
from dlc.graph.graph import Value
from dlc.graph.ops import elementwise as ops
from dlc.graph.ops.activation import Clip
from dlc.graph.ops.binary import Greater, Less, Mul, Where
from dlc.graph.ops.bits import BitCast
from dlc.graph.ops.text import ReadNumbers, WriteNumbers
from dlc.te import expr as te
from dlc.te.expr import const


@converter("Cast", since=6)
def convert_cast(
    ctx: Context, x: Value, *, to: int, saturate: int = 1, round_mode: str = "up"
) -> Value:
    """Another element type; `saturate` and `round_mode` are about 8-bit floats."""
    return _converted(ctx, x, _known(ctx, to), saturate, round_mode)


@converter("Cast", since=1)
def convert_cast_by_name(ctx: Context, x: Value, *, to: str) -> Value:
    """Before opset 6 the type was spelled out."""
    numbers = {elem_type_name(number): dtype for number, dtype in DTYPES.items()}
    if to.upper() not in numbers:
        ctx.refuse(f"element type {to} is not supported")
    return cast_to(ctx, x, numbers[to.upper()])


@converter("CastLike", since=15)
def convert_cast_like(
    ctx: Context, x: Value, like: Value, *, saturate: int = 1, round_mode: str = "up"
) -> Value:
    """The element type of another value."""
    return _converted(ctx, x, like.type.dtype, saturate, round_mode)


@converter("BitCast", since=26)
def convert_bit_cast(ctx: Context, x: Value, *, to: int) -> Value:
    """The same bits as another type."""
    return ctx.call(BitCast(of=x.type.dtype, to=_known(ctx, to)), x)


def _known(ctx: Context, number: int) -> DType:
    if number not in DTYPES:
        ctx.refuse(f"element type {elem_type_name(number)} is not supported")
    return DTYPES[number]


def number_type(ctx: Context, number: int) -> DType:
    """The element type that an attribute names, which must be one of numbers."""
    dtype = _known(ctx, number)
    if dtype is DType.STR:
        ctx.refuse(f"element type {elem_type_name(number)} is not supported")
    return dtype


def _converted(ctx: Context, x: Value, to: DType, saturate: int, round_mode: str) -> Value:
    if to is DType.F8E8M0 and x.type.dtype is not to:
        return _as_power_of_two(ctx, x, saturate, round_mode)
    if to in NARROW_FLOATS and saturate:
        return cast_to(ctx, saturated(ctx, x, to), to)
    if to in NARROW_INTS and x.type.dtype.is_float:
        # ONNX leaves open what is out of range, its tests keep the low bits of the whole number.
        x = cast_to(ctx, x, DType.I32)
    return cast_to(ctx, x, to)


def saturated(ctx: Context, x: Value, to: DType) -> Value:
    """The operand, held in the range of a narrow float type."""
    largest = float(ml_dtypes.finfo(NUMPY_DTYPES[to]).max)  # type: ignore[no-untyped-call]
    return ctx.call(Clip(min=-largest, max=largest), cast_to(ctx, x, _wide(x)))


def _wide(x: Value) -> DType:
    return DType.F64 if x.type.dtype is DType.F64 else DType.F32


def _as_power_of_two(ctx: Context, x: Value, saturate: int, round_mode: str) -> Value:
    """The exponent alone, without the sign: nearest, or up or down to a power of two."""
    if round_mode not in ("nearest", "up", "down"):
        ctx.refuse(f"round_mode = '{round_mode}' is not known")
    wide = _wide(x)
    size = ctx.call(ops.Abs(), cast_to(ctx, x, wide))
    infinite = ctx.call(ops.IsInf(), size)  # infinity is NaN, whatever `saturate` says
    held = ctx.call(Clip(min=2.0**-127, max=2.0**127 if saturate else None), size)
    held = ctx.call(Where(), infinite, size, held)
    nearest = cast_to(ctx, held, DType.F8E8M0)
    if round_mode == "nearest":
        return nearest
    back = cast_to(ctx, nearest, wide)
    off = ctx.call(Less() if round_mode == "up" else Greater(), back, held)
    step = ctx.scalar(2.0 if round_mode == "up" else 0.5, wide)
    moved = ctx.call(Where(), off, ctx.call(Mul(), back, step), back)
    return cast_to(ctx, moved, DType.F8E8M0)


def _text_cast(ctx: Context, x: Value, to: DType) -> Value:
    """A number as it is written, or the number that a text is."""
    if to is DType.STR:
        if x.type.dtype is DType.BOOL:
            ctx.refuse("a bool as a text is not handled")
        exact = x.type.dtype in (DType.F32, DType.F64, DType.I64)
        wide = DType.F32 if x.type.dtype.is_float else DType.I64
        return ctx.call(WriteNumbers(), x if exact else cast_to(ctx, x, wide))
    wide = DType.F64 if to.is_float else DType.I64
    return cast_to(ctx, ctx.call(ReadNumbers(to=wide), x), to)


def cast_to(ctx: Context, x: Value, dtype: DType) -> Value:
    """Another element type; sizes stay known."""
    if x.type.dtype is dtype:
        return x
    if DType.STR in (x.type.dtype, dtype):
        return _text_cast(ctx, x, dtype)
    elements = ctx.elements(x) if ctx.is_symbolic(x) and dtype not in NARROW_INTS else None
    if elements is None or (dtype is DType.BOOL) != (x.type.dtype is DType.BOOL):
        if elements is not None and dtype is not DType.BOOL:  # bools become 0 and 1
            as_number = np.frompyfunc(
                lambda e: te.select(e, const(1, INDEX), const(0, INDEX)), 1, 1
            )
            return ctx.size_tensor(np.asarray(as_number(elements), np.object_), dtype)
        return ctx.call(ops.Cast(to=dtype), x)
    return ctx.size_tensor(elements, dtype)


def common_float(*values: Value | None) -> DType:
    """The float in which operands of several types are computed: theirs if it is one, or f32."""
    dtypes = {v.type.dtype for v in values if v is not None}
    if DType.F64 in dtypes:
        return DType.F64
    return dtypes.pop() if len(dtypes) == 1 and dtypes <= FLOATS else DType.F32
