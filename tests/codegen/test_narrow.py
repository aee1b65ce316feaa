"""Elements of a byte or less: every code, and every float that decides how one is rounded."""

from __future__ import annotations

import numpy as np
import pytest

from dlc.core.types import NARROW, NARROW_FLOATS, DType
from dlc.schedule.interpret import numpy_dtype
from tests.codegen.jit import TARGETS, Kernel

FLOATS, INTS = sorted(NARROW_FLOATS), sorted(NARROW - NARROW_FLOATS)
pytestmark = pytest.mark.parametrize("target", ["native", "baseline"])


def moved(source: str, result: str, target: str, x: np.ndarray, expr: str = "") -> np.ndarray:
    """Elements as the machine converts them, eight at a time and one by one."""
    formula = expr or (f"{result}({{}})" if source != result else "{}")
    text = f"""
def f(n: size, A: {source}[n, 9], *, Z: {result}[n, 9]):
    for i in range(n):
        for l in vectorize(8):
            Z[i, l] = {formula.format("A[i, l]")}
        Z[i, 8] = {formula.format("A[i, 8]")}
"""
    rows = -(-x.size // 9)
    found = Kernel(text, TARGETS[target])({"n": rows}, {"A": np.resize(x, (rows, 9))})
    return found["Z"].reshape(-1)[: x.size]


def codes(dtype: DType) -> np.ndarray:
    """Every byte as an element."""
    return np.arange(256, dtype=np.uint8).view(numpy_dtype(dtype))


def deciding_floats() -> np.ndarray:
    """Floats of each sign and exponent, with each leading fraction, alone, and a little more."""
    bits = np.arange(1 << 14, dtype=np.uint32) << 18
    return np.concatenate([bits, bits + 1, bits - 1]).view(np.float32)


def same(found: np.ndarray, wanted: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(found.astype(np.float64), wanted.astype(np.float64))
        sign = ~np.isnan(wanted.astype(np.float64))
        np.testing.assert_array_equal(np.signbit(found)[sign], np.signbit(wanted)[sign])


@pytest.mark.parametrize("dtype", FLOATS)
def test_every_code_of_a_float_is_its_value(dtype, target):
    x = codes(dtype)[: 1 << dtype.bits]
    same(moved(dtype, "f32", target, x), x.astype(np.float32))
    same(moved(dtype, dtype, target, x), x)


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_are_rounded_to_the_nearest_code(dtype, target):
    x = deciding_floats()
    if dtype.bits < 8:
        x = x[~np.isnan(x)]  # there is no NaN to round to
    if dtype is DType.F8E8M0:
        x = x[np.abs(x) >= np.float32(2.0**-126)]  # NumPy's rounds denormals to something else
    with np.errstate(all="ignore"):
        same(moved("f32", dtype, target, x), x.astype(numpy_dtype(dtype)))


@pytest.mark.parametrize("dtype", INTS)
def test_the_high_bits_of_a_byte_say_nothing(dtype, target):
    x = codes(dtype)
    wide = "i8" if dtype.is_signed else "u8"
    np.testing.assert_array_equal(moved(dtype, wide, target, x), x.astype(numpy_dtype(DType(wide))))
    kept = moved(dtype, dtype, target, x).view(np.uint8)
    np.testing.assert_array_equal(kept, x.view(np.uint8) & ((1 << dtype.bits) - 1))


@pytest.mark.parametrize("dtype", INTS)
def test_integers_wrap_around_and_floats_saturate(dtype, target):
    x = np.arange(-300, 300, dtype=np.int32)
    found = moved("i32", dtype, target, x).astype(np.int32)
    np.testing.assert_array_equal(found, x.astype(numpy_dtype(dtype)).astype(np.int32))
    low = -(1 << (dtype.bits - 1)) if dtype.is_signed else 0
    reals = np.array([-1e9, -2.9, -0.5, np.nan, 0.9, 1.9, 77, np.inf], np.float32)
    wanted = np.clip(np.trunc(np.nan_to_num(reals)), low, low + (1 << dtype.bits) - 1)
    np.testing.assert_array_equal(moved("f32", dtype, target, reals).astype(np.float32), wanted)


@pytest.mark.parametrize("formula", ["bf16(flush({}))", "bf16({})"])
def test_floats_become_bf16_with_denormals_or_zeros_for_them(formula, target):
    x = deciding_floats()
    tiny = np.abs(x) < np.finfo(np.float32).tiny
    kept = np.where(tiny, np.copysign(np.float32(0), x), x) if "flush" in formula else x
    with np.errstate(all="ignore"):
        same(moved("f32", "bf16", target, x, formula), kept.astype(numpy_dtype(DType.BF16)))
    if "flush" in formula:
        same(moved("f32", "f32", target, x, "flush({})"), kept)


def test_bf16_are_copied_as_they_are(target):
    x = np.arange(1 << 16, dtype=np.uint16).view(numpy_dtype(DType.BF16))
    found = moved("bf16", "bf16", target, x)
    np.testing.assert_array_equal(found.view(np.uint16), x.view(np.uint16))
