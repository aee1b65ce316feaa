"""Kernels against the interpreter: loops, guards and memory, on all targets."""

from __future__ import annotations

import numpy as np
import pytest

from dlc.core.errors import CodegenError
from tests.codegen.jit import AVX2, TARGETS, Host, Kernel, check, random_arrays
from tests.codegen.kernels import CASES

SIZES = [{"n": n} for n in (0, 1, 5, 16, 37)]


@pytest.mark.parametrize("target", list(TARGETS))
@pytest.mark.parametrize("name", list(CASES))
def test_kernels_mean_what_the_interpreter_says(name, target):
    check(CASES[name], *SIZES, target=TARGETS[target])


@pytest.mark.parametrize("target", list(TARGETS))
@pytest.mark.parametrize(
    ("rows", "vectors", "unroll"), [(14, 2, 1), (6, 4, 4), (5, 1, 16), (3, 3, 2)]
)
def test_register_tiles(rows, vectors, unroll, target):
    width = vectors * 8
    check(
        f"""
def f(n: size, A: f32[n * {rows}, 35], W: f32[3, 35, {width}], *, C: f32[n * {rows}, 3 * {width}]):
    for io in parallel(n):
        for jo in range(3):
            acc = alloc(f32[{rows}, {width}], "register")
            for ii in unroll({rows}):
                for jj in unroll({vectors}):
                    for l in vectorize(8):
                        acc[ii, jj * 8 + l] = 0.0
            for k in range(35, unroll={unroll}):
                for i2 in unroll({rows}):
                    for j2 in unroll({vectors}):
                        for l2 in vectorize(8):
                            acc[i2, j2 * 8 + l2] += A[io * {rows} + i2, k] * W[jo, k, j2 * 8 + l2]
            for i3 in unroll({rows}):
                for j3 in unroll({vectors}):
                    for l3 in vectorize(8):
                        C[io * {rows} + i3, jo * {width} + j3 * 8 + l3] = acc[i3, j3 * 8 + l3]
""",
        *[{"n": n} for n in (0, 1, 4)],
        target=TARGETS[target],
    )


@pytest.mark.parametrize("lanes", [1, 8])
def test_conditions_guard_the_loads_behind_them(lanes):
    kernel = Kernel(
        f"""
def f(n: size, A: f32[n], *, B: f32[n + 8]):
    for i in range((n + 8) // {lanes}):
        for l in vectorize({lanes}):
            B[i * {lanes} + l] = 1.0
            if i * {lanes} + l < n and 0.0 < A[i * {lanes} + l]:
                B[i * {lanes} + l] = 2.0
            B[i * {lanes} + l] += 1.0 if n <= i * {lanes} + l or A[i * {lanes} + l] < 0.0 else 0.0
"""
    )
    a = np.array([1.0, -2.0, 3.0, 4.0, -5.0, 6.0, 7.0, -8.0], np.float32)
    got = kernel({"n": 8}, {"A": a})["B"]
    np.testing.assert_array_equal(got, np.full(16, 2.0))
    assert "masked.load" in kernel.ir or lanes == 1


@pytest.mark.parametrize("lanes", [1, 8])
def test_what_a_condition_has_read_is_read_once(lanes):
    at = f"i * {lanes} + l"
    kernel = Kernel(
        f"""
def f(n: size, m: size, A: f32[m], *, B: f32[n]):
    for i in range(n // {lanes}):
        for l in vectorize({lanes}):
            B[{at}] = A[{at}] * 2.0 if A[{at}] < 1.0 else A[{at}]
"""
    )
    a = np.array([1.0, -2.0, 3.0, 0.5, -5.0, 6.0, 7.0, -8.0], np.float32)
    got = kernel({"n": 8, "m": 8}, {"A": a})["B"]
    np.testing.assert_array_equal(got, np.where(a < 1, 2 * a, a))
    assert "masked.load" not in kernel.ir
    assert "else" not in kernel.ir


def test_a_guard_that_only_fails_late_ends_its_loop():
    guarded = """
def f(n: size, A: f32[n, 16], *, B: f32[n, 16]):
    for o in range((n + 3) // 4):
        for i in range(4):
            if i + o * 4 < n:
                for l in vectorize(16):
                    B[i + o * 4, l] = A[i + o * 4, l] + 1.0
"""
    ir = Kernel(guarded).ir
    assert ir.count("br i1") == 2 + 2  # whether each of two loops begins, and goes on
    assert "call i64 @llvm.smin.i64" in ir
    assert "!prof" not in ir
    late = Kernel(guarded.replace("i + o * 4 < n", "n <= i + o * 4")).ir
    assert "call i64 @llvm.smin.i64" not in late


# The contract with the host.


def test_parallel_loops_go_through_the_host():
    kernel = Kernel(CASES["parallel"])
    host = Host()
    kernel({"n": 7}, random_arrays(kernel.func, {"n": 7}), host)
    assert host.parallel_extents == [7]


def test_a_loop_of_one_iteration_runs_inline():
    kernel = Kernel(
        """
def f(A: f32[4], *, B: f32[4]):
    for i in parallel(1):
        for j in parallel(4):
            B[j + i] = A[j]
"""
    )
    host = Host()
    kernel({}, {"A": np.arange(4, dtype=np.float32)}, host)
    assert host.parallel_extents == [4]


def test_small_locals_live_on_the_stack_and_large_ones_in_scratch_memory():
    for elems, calls in ((4096, 0), (4097, 1)):
        kernel = Kernel(
            f"""
def f(A: f32[4], *, B: f32[4]):
    t = alloc(f32[{elems}], "local")
    for i in range(4):
        t[i * 1000] = A[i]
    for j in range(4):
        B[j] = t[j * 1000]
"""
        )
        host = Host()
        data = {"A": np.arange(4, dtype=np.float32)}
        np.testing.assert_array_equal(kernel({}, data, host)["B"], data["A"])
        assert len(host.scratch_sizes) == calls


def test_locals_that_never_live_together_share_bytes():
    kernel = Kernel(
        """
def f(n: size, A: f32[n], *, B: f32[n]):
    t = alloc(f32[n], "local")
    for i in range(n):
        t[i] = A[i]
    for j in range(n):
        B[j] = t[j]
    if 0 < n:
        u = alloc(f32[n], "local")
        for i2 in range(n):
            u[i2] = B[i2]
        for j2 in range(n):
            B[j2] = u[j2] + 1.0
"""
    )
    host = Host()
    kernel({"n": 100}, random_arrays(kernel.func, {"n": 100}), host)
    assert host.scratch_sizes == [896]


def test_no_memory_is_reported_and_nothing_is_written():
    kernel = Kernel(CASES["locals_of_symbolic_size"])
    host = Host(memory=False)
    got = kernel({"n": 5}, random_arrays(kernel.func, {"n": 5}), host)
    assert host.messages == ["no memory for the kernel's intermediate results"]
    assert not got["B"].any()


def test_alignment_beyond_the_element_is_never_assumed():
    # `Kernel` hands out buffers that are aligned to one element only.
    assert "align 64" not in Kernel(CASES["vector_tail_by_mask"], AVX2).ir


# Refusals.


def refused(text: str) -> CodegenError:
    with pytest.raises(CodegenError) as caught:
        Kernel(text)
    return caught.value


def test_a_register_buffer_with_a_run_time_index_is_refused():
    error = refused(
        """
def f(n: size, A: f32[n], *, B: f32[n]):
    r = alloc(f32[8], "register")
    for i in range(8):
        r[i] = 1.0
    for j in range(n):
        B[j] = r[j % 8]
"""
    )
    assert error.fields["unit"] == "register buffer 'r'"
    assert "[i]" in str(error.fields["reason"])


def test_a_register_buffer_shared_by_threads_is_refused():
    error = refused(
        """
def f(n: size, A: f32[n], *, B: f32[n]):
    r = alloc(f32[1], "register")
    r[0] = 1.0
    for j in parallel(n):
        B[j] = r[0]
"""
    )
    assert "parallel loop 'j'" in str(error.fields["reason"])


def test_a_vector_loop_of_unknown_length_is_refused():
    from dlc.core.types import DType
    from dlc.schedule.loop import Buffer, For, Func, LoopKind, Store
    from dlc.te.expr import Load, Var
    from dlc.te.types import TensorType

    a, b = (Buffer(name, TensorType((Var("n"),))) for name in "AB")
    body = For(
        "l", Var("n"), LoopKind.VECTOR, Store("B", (Var("l"),), Load("A", (Var("l"),), DType.F32))
    )
    with pytest.raises(CodegenError, match="no constant"):
        Kernel(Func("f", ("n",), (a,), (b,), body))
