"""Kernels against the interpreter: arithmetic of every type, and conversions between them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.jit import TARGETS, Kernel, check, random_arrays

TYPES = ["bool", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "f16", "bf16", "f32", "f64"]


@pytest.mark.parametrize(
    "dtype", ["f16", "bf16", "f64", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"]
)
@pytest.mark.parametrize("target", list(TARGETS))
@pytest.mark.parametrize("lanes", [1, 8])
def test_every_type_is_loaded_computed_and_stored(dtype, target, lanes):
    literal = f"{dtype}(3)"
    rtol = {"f16": 2e-3, "bf16": 1e-2}.get(dtype, 1e-6)
    check(
        f"""
def f(n: size, A: {dtype}[n, {lanes}], B: {dtype}[n, {lanes}], *,
      C: {dtype}[n, {lanes}], D: bool[n, {lanes}]):
    for i in range(n):
        for l in vectorize({lanes}):
            C[i, l] = max(A[i, l] + B[i, l] * {literal}, min(A[i, l], B[i, l]) - {literal})
            D[i, l] = A[i, l] < B[i, l]
""",
        {"n": 0},
        {"n": 7},
        target=TARGETS[target],
        rtol=rtol,
    )


@pytest.mark.parametrize("target", list(TARGETS))
@pytest.mark.parametrize("source", TYPES)
def test_casts(source, target):
    outputs = ", ".join(f"Z_{t}: {t}[n, 4]" for t in TYPES)
    body = "\n".join(f"            Z_{t}[i, l] = {t}(A[i, l])" for t in TYPES if t != source)
    text = f"""
def f(n: size, A: {source}[n, 4], *, {outputs}):
    for i in range(n):
        for l in vectorize(4):
{body}
            Z_{source}[i, l] = A[i, l]
"""
    kernel = Kernel(text, TARGETS[target])
    data = random_arrays(kernel.func, {"n": 5})
    if source in ("f32", "f64"):
        edges = [
            np.inf, -np.inf, np.nan, 1e30, -1e30, 3e9, -3e9, 70000.5, -70000.5, 255.9, 256.0,
            -0.9, 127.5, 2**31, -(2.0**31), 2.0**63, -(2.0**63), 1e-8, 6e-8, 65519.0,
        ]  # fmt: skip
        data["A"] = np.array(edges, data["A"].dtype).reshape(5, 4)
    elif source.startswith(("i", "u")):
        data["A"].flat[:4] = [np.iinfo(data["A"].dtype).max, np.iinfo(data["A"].dtype).min, 1, 0]
    check(kernel.func, {"n": 5}, arrays=data, target=TARGETS[target], rtol=1e-7)


@pytest.mark.parametrize("target", list(TARGETS))
def test_half_floats_convert_both_ways_for_all_bits(target):
    for name in ("f16", "bf16"):
        kernel = Kernel(
            f"""
def f(A: {name}[8192, 8], F: f32[8192, 8], *, B: f32[8192, 8], C: {name}[8192, 8]):
    for i in range(8192):
        for l in vectorize(8):
            B[i, l] = f32(A[i, l])
            C[i, l] = {name}(F[i, l])
""",
            TARGETS[target],
        )
        dtype = random_arrays(kernel.func, {})["A"].dtype
        halves = np.arange(65536, dtype=np.uint16).view(dtype).reshape(8192, 8)
        rng = np.random.default_rng(0)
        floats = rng.integers(0, 2**32, (8192, 8), dtype=np.uint32).view(np.float32)
        exact = halves.astype(np.float32)
        with np.errstate(all="ignore"):
            # Halfway between two halves, where rounding to even decides.
            floats[:4096] = (exact[:4096] + exact.reshape(-1)[1:32769].reshape(4096, 8)) / 2
            want = floats.astype(dtype)
        got = kernel({}, {"A": halves, "F": floats})
        np.testing.assert_array_equal(got["B"], exact)
        np.testing.assert_array_equal(got["C"].astype(np.float32), want.astype(np.float32))


@pytest.mark.parametrize("target", list(TARGETS))
def test_integer_operators_wrap_shift_and_divide(target):
    for dtype in ("i8", "i32", "i64", "u8", "u32"):
        kernel = Kernel(
            f"""
def f(n: size, A: {dtype}[n, 4], B: {dtype}[n, 4], *, C: {dtype}[9, n, 4]):
    for i in range(n):
        for l in vectorize(4):
            C[0, i, l] = A[i, l] * B[i, l] - ~A[i, l]
            C[1, i, l] = A[i, l] // B[i, l]
            C[2, i, l] = A[i, l] % B[i, l]
            C[3, i, l] = A[i, l] << (B[i, l] & {dtype}(7))
            C[4, i, l] = A[i, l] >> (B[i, l] & {dtype}(7))
            C[5, i, l] = A[i, l] & B[i, l] | A[i, l] ^ B[i, l]
            C[6, i, l] = -A[i, l]
            C[7, i, l] = abs(A[i, l])
            C[8, i, l] = A[i, l] / B[i, l]
""",
            TARGETS[target],
        )
        data = random_arrays(kernel.func, {"n": 6})
        data["B"][data["B"] == 0] = 3
        info = np.iinfo(data["A"].dtype)
        data["A"][0] = [info.max, info.min, info.min, 0]
        data["B"][0] = [2, 3, -1 if info.min else 1, 5]
        check(kernel.func, {"n": 6}, arrays=data, target=TARGETS[target])


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("target", list(TARGETS))
def test_float_remainders_floor_as_pythons(dtype, target):
    kernel = Kernel(
        f"""
def f(n: size, A: {dtype}[n, 4], B: {dtype}[n, 4], *, Q: {dtype}[n, 4], R: {dtype}[n, 4]):
    for i in range(n):
        for l in vectorize(4):
            Q[i, l] = A[i, l] // B[i, l]
            R[i, l] = A[i, l] % B[i, l]
""",
        TARGETS[target],
    )
    rng = np.random.default_rng(4)
    a = (rng.standard_normal((60, 4)) * 100).astype(dtype.replace("f", "float"))
    b = rng.choice([0.1, 0.3, 7.0, -0.7, -3.0, 1.0, 0.25], (60, 4)).astype(a.dtype)
    a[0], b[0] = [6.0, -6.0, 0.0, 5.0], [3.0, 3.0, 2.0, np.inf]
    got = kernel({"n": 60}, {"A": a, "B": b})
    np.testing.assert_allclose(got["R"], np.mod(a, b), rtol=1e-6, atol=0)
    np.testing.assert_array_equal(got["Q"], np.floor_divide(a, b))


@pytest.mark.parametrize("target", list(TARGETS))
@pytest.mark.parametrize("typed", ["i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64"])
def test_vectors_of_integers_divide_exactly(typed, target):
    """Whole quotients and those just below, at both ends of a type; by 0 anything may come out."""
    dtype = np.dtype(typed.replace("i", "int").replace("u", "uint"))
    info = np.iinfo(dtype)
    ends = [
        info.min,
        info.min + 1,
        info.max,
        info.max - 1,
        info.max // 2,
        info.max // 3,
        0,
        1,
        2,
        7,
    ]
    values = np.unique(np.array(ends + [-v for v in ends if info.min < 0 and v > info.min], dtype))
    near = [b * (info.max // b) for b in map(int, values) if b > 0]
    a = np.unique(
        np.concatenate([values, np.array(near, dtype), np.array(near, dtype) - dtype.type(1)])
    )
    b = values[values != 0]
    kernel = Kernel(
        f"""
def f(A: {typed}[{a.size}, {b.size}], B: {typed}[{b.size}], *, C: {typed}[3, {a.size}, {b.size}]):
    for i in range({a.size}):
        for l in vectorize({b.size}):
            C[0, i, l] = A[i, l] // B[l]
            C[1, i, l] = A[i, l] % B[l]
            C[2, i, l] = A[i, l] / B[l]
""",
        TARGETS[target],
    )
    left = np.repeat(a[:, None], b.size, axis=1)
    with np.errstate(all="ignore"):
        expected = np.stack(
            [left // b, left % b, left // b + ((left < 0) != (b < 0)) * (left % b != 0)]
        )
    np.testing.assert_array_equal(kernel({}, {"A": left, "B": b})["C"], expected)
    small = dtype.itemsize <= 4
    assert ("fdiv" in kernel.ir) == small
    assert ("div <" in kernel.ir.replace("fdiv", "")) != small


@pytest.mark.parametrize("typed", ["i8", "u8", "i32", "u32"])
def test_a_known_divisor_of_vectors_is_left_to_llvm(typed: str) -> None:
    """It multiplies by what inverts it."""
    kernel = Kernel(f"""
def f(A: {typed}[3, 16], *, B: {typed}[2, 3, 16]):
    for i in range(3):
        for l in vectorize(16):
            B[0, i, l] = A[i, l] // {typed}(7)
            B[1, i, l] = A[i, l] % {typed}(7)
""")
    a = np.arange(-24, 24).astype(typed.replace("i", "int").replace("u", "uint")).reshape(3, 16)
    np.testing.assert_array_equal(kernel({}, {"A": a})["B"], np.stack([a // 7, a % 7]))
    assert "fdiv" not in kernel.ir
