"""What LLVM makes of kernels: what stays in registers, is loaded once, or is one instruction."""

from __future__ import annotations

import re

import numpy as np
import pytest

from dlc.codegen.llvm.compile import assembly
from dlc.core.target import Target
from tests.codegen.assembly_loops import innermost_loops, spills_in_hot_loops
from tests.codegen.jit import NATIVE, Kernel, check
from tests.codegen.kernels import CASES

_WIDE = {"avx512f", "avx512vl", "avx512bw", "avx512dq", "avx512cd"}
AVX512 = Target(features=frozenset({"avx", "avx2", "fma", "f16c", "sse4.1"} | _WIDE))


def tile(rows: int, vectors: int, lanes: int, unroll: int) -> str:
    width = vectors * lanes
    return f"""
def f(A: f32[{rows}, 512], W: f32[512, {width}], *, C: f32[{rows}, {width}]):
    acc = alloc(f32[{rows}, {width}], "register")
    for ii in unroll({rows}):
        for jj in unroll({vectors}):
            for l in vectorize({lanes}):
                acc[ii, jj * {lanes} + l] = 0.0
    for k in range(512, unroll={unroll}):
        for i2 in unroll({rows}):
            for j2 in unroll({vectors}):
                for l2 in vectorize({lanes}):
                    acc[i2, j2 * {lanes} + l2] += A[i2, k] * W[k, j2 * {lanes} + l2]
    for i3 in unroll({rows}):
        for j3 in unroll({vectors}):
            for l3 in vectorize({lanes}):
                C[i3, j3 * {lanes} + l3] = acc[i3, j3 * {lanes} + l3]
"""


def hot_loop(text: str, target: Target) -> tuple[int, int, int]:
    """Fused operations, loads of whole vectors and stack references of the longest inner loop."""
    from dlc.codegen.llvm.emit import emit_func
    from dlc.schedule.text import parse_func

    asm = assembly(emit_func(parse_func(text), target), target)
    loop = max(innermost_loops(asm), key=len)
    fused = sum("vfmadd" in line for line in loop)
    loaded = sum("vmovups\t" in line and "(%r" in line for line in loop)
    return fused, loaded, spills_in_hot_loops(asm)


@pytest.mark.parametrize(("rows", "vectors"), [(14, 2), (12, 2), (9, 3), (6, 4), (28, 1)])
@pytest.mark.parametrize("unroll", [1, 4, 16])
def test_avx512_tiles_stay_in_registers(rows, vectors, unroll):
    fused, loaded, spills = hot_loop(tile(rows, vectors, 16, unroll), AVX512)
    assert fused == rows * vectors * unroll
    assert loaded <= vectors * unroll
    assert spills == 0


@pytest.mark.parametrize(("rows", "vectors"), [(6, 2), (4, 3), (5, 2)])
@pytest.mark.parametrize("unroll", [1, 4])
def test_avx2_tiles_stay_in_registers(rows, vectors, unroll):
    avx2 = Target(features=frozenset({"avx", "avx2", "fma"}))
    fused, _, spills = hot_loop(tile(rows, vectors, 8, unroll), avx2)
    assert fused == rows * vectors * unroll
    assert spills == 0


def test_spills_are_found():
    assert hot_loop(tile(15, 2, 16, 16), AVX512)[2] > 0


def test_each_input_vector_of_a_window_is_loaded_once():
    text = """
def f(A: f32[100, 16], w: f32[3, 16], *, B: f32[98, 16]):
    for o in range(14):
        acc = alloc(f32[7, 16], "register")
        for i in unroll(7):
            for l in vectorize(16):
                acc[i, l] = 0.0
                for k in unroll(3):
                    acc[i, l] += A[o * 7 + i + k, l] * w[k, l]
        for i2 in unroll(7):
            for l2 in vectorize(16):
                B[o * 7 + i2, l2] = acc[i2, l2]
"""
    kernel = check(text)
    assert sum("load <16 x float>" in line for line in kernel.ir.splitlines()) == 9 + 3


def test_a_guard_shared_by_many_elements_is_one_branch():
    kernel = Kernel(CASES["padded_pool"])
    assert kernel.ir.count("br i1") <= 3 + 2  # one for each row of the window, and the loop's


def test_what_is_not_finite_is_rare():
    assert Kernel(CASES["numbers_that_are_not_finite"]).ir.count("!prof !0") == 1


def test_an_address_made_of_all_digits_divides_nothing():
    kernel = check(
        """
def f(A: f32[5, 6, 7, 8], *, B: f32[1, 5, 42, 8]):
    for i in range(210):
        for l in vectorize(8):
            B[0, i // 42 % 5, i % 42, l] = A[i // 42, i // 7 % 6, i % 7, l]
"""
    )
    assert "div" not in kernel.ir
    assert "rem" not in kernel.ir


def test_relu_is_one_instruction():
    text = """
def f(A: f32[16], *, B: f32[16]):
    for l in vectorize(16):
        B[l] = max(A[l], 0.0)
"""
    asm = assembly(Kernel(text, AVX512 if NATIVE.vector_bits < 512 else NATIVE).ir, AVX512)
    assert "vmaxps" in asm
    assert "vcmp" not in asm


@pytest.mark.parametrize("lanes", [16, 6])
@pytest.mark.parametrize("op", ["max", "min"])
def test_whether_lanes_are_nan_is_asked_once(lanes: int, op: str) -> None:
    k = Kernel(f"""
def f(n: size, A: f32[n, {lanes}], *, C: f32[n]):
    for i in range(n):
        C[i] = {"-" if op == "max" else ""}inf
        for l in vectorize({lanes}):
            C[i] = {op}(C[i], A[i, l])
""")
    x = np.random.default_rng(3).standard_normal((lanes + 2, lanes)).astype(np.float32)
    np.fill_diagonal(x, np.nan)
    x[-1] = np.inf
    want = getattr(np, f"{op}imum").reduce(x, axis=1)
    np.testing.assert_array_equal(k({"n": len(x)}, {"A": x})["C"], want)
    assert k.ir.count("fcmp uno <") == 1


@pytest.mark.parametrize("op", ["max", "min"])
def test_a_chain_of_extremes_waits_for_no_test_of_what_it_has(op: str) -> None:
    k = Kernel(f"""
def f(A: f32[3, 16], *, C: f32[16]):
    r = alloc(f32[16], "register")
    for s in vectorize(16):
        r[s] = {"-" if op == "max" else ""}inf
    for i in unroll(3):
        for l in vectorize(16):
            r[l] = {op}(r[l], A[i, l])
    for t in vectorize(16):
        C[t] = r[t]
""")
    x = np.random.default_rng(4).standard_normal((3, 16)).astype(np.float32)
    x[[0, 1, 2], [3, 4, 5]], x[:, 6] = np.nan, [np.inf, -np.inf, np.nan]
    np.testing.assert_array_equal(k({}, {"A": x})["C"], getattr(np, f"{op}imum").reduce(x))
    loaded = re.findall(r"(%\w+) = load <16 x float>", k.ir)
    tested = re.findall(r"fcmp ord <16 x float> (%\w+)", k.ir)
    assert tested == loaded[1:]  # the first one meets nothing
