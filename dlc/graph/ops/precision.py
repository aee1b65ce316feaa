"""In which type an operator computes: small floats in f32, products of 8-bit integers in i32."""

from __future__ import annotations

from dlc.core.types import NARROW_FLOATS, NARROW_INTS, DType
from dlc.te import tensor as te
from dlc.te.expr import Expr, cast

HALF = frozenset({DType.F16, DType.BF16})
BYTES = frozenset({DType.I8, DType.U8})


def wide(dtype: DType) -> DType:
    """The type in which elements of `dtype` are computed and summed."""
    if dtype in NARROW_INTS:
        return DType.I8 if dtype.is_signed else DType.U8
    return DType.F32 if dtype in HALF or dtype in NARROW_FLOATS else dtype


def widen(value: Expr) -> Expr:
    """An element in the type in which it is computed."""
    return cast(wide(value.dtype), value)


def narrow(result: te.Tensor, dtype: DType) -> te.Tensor:
    """A result in the type it has in the graph."""
    if result.dtype is dtype:
        return result
    return te.elementwise(f"{result.name}_{dtype}", lambda v: cast(dtype, v), result)


def product_dtype(a: DType, b: DType) -> DType | None:
    """The type of a sum of products as the graph sees it; None where the types do not fit."""
    if a in BYTES and b in BYTES:
        return DType.I32
    return a if a is b and a is not DType.BOOL else None


def product(a: Expr, b: Expr) -> Expr:
    """`a * b` in the type in which products are summed."""
    total = product_dtype(a.dtype, b.dtype)
    assert total is not None, "infer has checked the types"
    return cast(wide(total), a) * cast(wide(total), b)
