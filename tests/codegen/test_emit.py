"""Kernels against the interpreter: each feature of the emitter, uneven, symbolic, empty sizes."""

from __future__ import annotations

import re

import numpy as np
import pytest

from dlc.codegen.llvm.compile import assembly, spills_in_hot_loops
from dlc.core.errors import CodegenError
from dlc.core.target import Target
from tests.codegen.jit import AVX2, NATIVE, TARGETS, Host, Kernel, check, random_arrays

SIZES = [{"n": n} for n in (0, 1, 5, 16, 37)]
_WIDE = {"avx512f", "avx512vl", "avx512bw", "avx512dq", "avx512cd"}
AVX512 = Target(features=frozenset({"avx", "avx2", "fma", "f16c", "sse4.1"} | _WIDE))

# Kernels with one size variable `n`; each is run on every target for all of `SIZES`.
CASES = {
    "transposed": """
def f(n: size, A: f32[n, 4, 7], *, B: f32[n, 7, 4]):
    for i in range(n):
        tile = alloc(f32[4, 7], "register")
        for j in unroll(4):
            for k in vectorize(7):
                tile[j, k] = A[i, j, k]
        for l in unroll(7):
            for m in vectorize(4):
                B[i, l, m] = tile[m, l]
""",
    "serial": """
def f(n: size, A: f32[n, 3], *, B: f32[n, 3]):
    for i in range(n):
        for j in range(3):
            B[i, j] = A[i, 2 - j] * 2.0
""",
    "nearest_whole_numbers": """
def f(n: size, A: f32[n, 19], *, B: i8[n, 19]):
    for i in range(n):
        for j in vectorize(19):
            B[i, j] = i8(min(max(lrint(A[i, j] * 20.5) + i32(3), i32(-128)), i32(127)))
""",
    "reversed": """
def f(n: size, A: f32[n], *, B: f32[n]):
    for i in range(n):
        B[n - 1 - i] = A[i]
""",
    "locals_behind_one_of_open_size": """
def f(n: size, A: f32[n, 2], *, B: f32[n]):
    for i in parallel(n):
        s = alloc(f32[2], "local")
        t = alloc(f32[n], "local")
        u = alloc(f32[2, n], "local")
        for j in range(2):
            s[j] = A[i, j]
        for j1 in range(n):
            t[j1] = A[j1, 0] + s[1]
            u[0, j1] = t[j1] * 2.0
            u[1, j1] = t[j1] + s[0]
        for k in range(n):
            B[i] = u[0, k] + u[1, k] * s[0]
""",
    "symbolic_strides": """
def f(n: size, A: f32[n, n, 2], *, B: f32[n, 2, n]):
    for i in range(n):
        for j in range(n):
            for k in unroll(2):
                B[i, k, j] = A[j, i, k] - A[i, j, k]
""",
    "parallel": """
def f(n: size, A: f32[n, n], *, B: f32[n, n]):
    for i in parallel(n):
        for j in parallel(n):
            B[i, j] = A[j, i] + 1.0
""",
    "parallel_under_loops_and_code_around": """
def f(n: size, A: f32[n], *, B: f32[n], C: f32[4, n], D: f32[1]):
    D[0] = 3.0
    for a in range(2):
        for b in unroll(2):
            for i in parallel(n):
                C[a * 2 + b, i] = A[i] + D[0]
    if 3 < n:
        for j in parallel(n - 3):
            B[j] = C[3, j]
        for j2 in range(3):
            B[n - 3 + j2] = C[1, j2]
    for k in range(n):
        if n <= 3:
            B[k] = D[0]
    D[0] = D[0] + 1.0
""",
    "vector_tail_by_mask": """
def f(n: size, A: f32[n], b: f32[1], *, B: f32[n]):
    for i in range((n + 15) // 16):
        for l in vectorize(16):
            if i * 16 + l < n:
                B[i * 16 + l] = A[i * 16 + l] * 2.0 + b[0]
""",
    "vector_tail_from_the_other_side": """
def f(n: size, A: f32[n], *, B: f32[n]):
    for i in range((n + 7) // 8):
        for l in vectorize(8):
            if i * 8 + 7 - l < n:
                B[i * 8 + 7 - l] = A[i * 8 + 7 - l] + 1.0
""",
    "masks_of_several_conditions": """
def f(n: size, A: f32[n], B: f32[n], *, C: f32[n]):
    for i in range((n + 7) // 8):
        for l in vectorize(8):
            if i * 8 + l < n:
                C[i * 8 + l] = 1.0
            if i * 8 + l < n:
                if 0.0 < A[i * 8 + l] and i % 2 == 0:
                    C[i * 8 + l] = B[i * 8 + l]
            if i * 8 + l < n and (i * 8 + l) % 3 == 0:
                if B[i * 8 + l] < 0.0 or A[i * 8 + l] < 1.0:
                    C[i * 8 + l] += 0.5
""",
    "strides_2_and_3_and_minus_1": """
def f(n: size, A: f32[n * 24 + 1], *, B: f32[n, 8], C: f32[n, 8], D: f32[n, 8]):
    for i in range(n):
        for l in vectorize(8):
            B[i, l] = A[i * 24 + l * 2 + 1]
            C[i, l] = A[i * 24 + l * 3]
            D[i, l] = A[i * 24 + 7 - l]
""",
    "strided_and_masked": """
def f(n: size, A: f32[n, 3], *, B: f32[n, 2]):
    for i in range((n + 7) // 8):
        for l in vectorize(8):
            if i * 8 + l < n:
                B[i * 8 + l, 1] = A[i * 8 + l, 2]
                B[i * 8 + l, 0] = A[i * 8 + l, 0]
""",
    "strided_stores": """
def f(n: size, A: f32[n, 8], *, B: f32[8, n], C: f32[n, 8]):
    for i in range(n):
        for l in vectorize(8):
            B[l, i] = A[i, l]
            C[i, 7 - l] = A[i, l]
""",
    "lane_in_divisions": """
def f(n: size, A: f32[n * 16], *, B: f32[n, 16], C: f32[n, 16]):
    for i in range(n):
        for l in vectorize(16):
            B[i, l] = A[i * 16 + l // 4 * 4 + (3 - l % 4)]
            C[i, l] = A[(i * 16 + l * 5) % (n * 16)]
""",
    "digits_of_a_fused_loop": """
def f(n: size, A: f32[n, 6, 7, 8], *, B: f32[n, 6, 7, 8], C: f32[n, 6, 7, 8], D: f32[7, n, 6, 8]):
    for i in parallel(n * 42):
        for l in vectorize(8):
            B[i // 42, i // 7 % 6, i % 7, l] = A[i // 42, i // 7 % 6, i % 7, l] * 2.0
            C[i // 42, 5 - i // 7 % 6, 6 - i % 7, l] = A[i // 42, i // 7 % 6, i % 7, l]
            D[i % 7, i // 42, i // 7 % 6, l] = A[i // 42, i // 7 % 6, i % 7, l]
""",
    "gather": """
def f(n: size, A: f32[n + 1, 2], idx: i64[n], *, B: f32[n, 2], C: f32[n]):
    for i in range(n):
        for j in range(2):
            B[i, j] = A[index(idx[i]) % (n + 1), j]
    for o in range((n + 3) // 4):
        for l in vectorize(4):
            if o * 4 + l < n:
                C[o * 4 + l] = A[index(idx[o * 4 + l]) % (n + 1), 0]
""",
    "scatter": """
def f(n: size, A: f32[n, 4], *, B: f32[n, 4]):
    for i in range(n):
        for l in vectorize(4):
            B[(i * 5 + 3) % n, (l + i) % 4] = A[i, l]
    if n % 5 == 0:
        for i2 in range(n):
            for j2 in range(4):
                B[i2, j2] = A[i2, j2]
""",
    "scatter_by_data": """
def f(n: size, A: f32[n, 4], idx: i64[n, 4], *, B: f32[8, 4], C: i64[8]):
    for a in range(8):
        C[a] = i64(-1)
        for b in range(4):
            B[a, b] = 1.0
    for i in range(n):
        for l in vectorize(4):
            if index(idx[i, 0]) % 11 < 8:
                B[index(idx[i, 0]) % 11, l] += A[i, l]
    for u in range(n):
        for v in range(4):
            B[index(idx[u, v]) % 8, v] = max(B[index(idx[u, v]) % 8, v], A[u, v])
            C[index(idx[u, v]) % 8] = max(C[index(idx[u, v]) % 8], i64(u))
""",
    "floor_division_of_negatives": """
def f(n: size, A: i64[n], *, B: i64[n, 6]):
    for i in range(n):
        B[i, 0] = i64((i - 7) // 3)
        B[i, 1] = i64((i - 7) % 3)
        B[i, 2] = i64((i - 7) // 4)
        B[i, 3] = i64((3 - i) % 4)
        B[i, 4] = A[i] // i64(7) + A[i] % i64(7)
        B[i, 5] = A[i] // i64(-3) * i64(1000) + A[i] % i64(-3)
""",
    "vectors_of_divided_integers": """
def f(n: size, A: i32[n, 8], B: i8[n, 8], C: u16[n, 8], *, D: i32[n, 8], E: i8[n, 8], F: u16[n, 8]):
    for i in range(n):
        for l in vectorize(8):
            D[i, l] = A[i, l] // (A[i, 0] * i32(2) + i32(1)) + A[i, l] % (A[i, 1] * i32(2) + i32(1))
            E[i, l] = B[i, l] // (B[i, 2] * i8(2) + i8(1)) + B[i, l] % (B[i, 3] * i8(2) + i8(1))
            F[i, l] = C[i, l] // (C[i, 4] | u16(1)) + C[i, l] % (C[i, 5] | u16(2))
""",
    "division_by_a_size": """
def f(n: size, A: f32[n, n], *, B: f32[n * n]):
    for i in range(n * n):
        B[i] = A[i // n, i % n] + A[min(i // n, max(i % n, 1) - 1), i % n]
""",
    "select_guards_loads": """
def f(n: size, A: f32[n], *, B: f32[n + 4]):
    for i in range(n + 4):
        B[i] = A[i - 2] if 2 <= i and i < n + 2 else 7.0
""",
    "select_guards_lanes": """
def f(n: size, A: f32[n], b: f32[1], *, B: f32[n + 4]):
    for i in range((n + 11) // 8):
        for l in vectorize(8):
            if i * 8 + l < n + 4:
                B[i * 8 + l] = (A[i * 8 + l - 2] * b[0]
                    if 2 <= i * 8 + l and i * 8 + l < n + 2 else 7.0)
""",
    "index_select": """
def f(n: size, A: f32[n], *, B: f32[n + 4]):
    for i in range(n + 4):
        if 0 < n:
            B[i] = A[(0 if i < 2 else (n - 1 if n + 1 < i else i - 2))]
        if n == 0:
            B[i] = 1.0
""",
    "padded_window": """
def f(n: size, A: f32[n, 16], w: f32[3, 16, 16], *, B: f32[n, 16]):
    for y in parallel(n):
        acc = alloc(f32[16], "register")
        for l0 in vectorize(16):
            acc[l0] = 0.0
        for ky in unroll(3):
            if 1 <= y + ky and y + ky < n + 1:
                for c in range(16, unroll=4):
                    for l in vectorize(16):
                        acc[l] += A[y + ky - 1, c] * w[ky, c, l]
        for l2 in vectorize(16):
            B[y, l2] = max(acc[l2], 0.0)
""",
    "padded_pool": """
def f(n: size, A: f32[n, 7, 8], *, B: f32[n, 7, 8], C: f32[n, 7, 8]):
    for y in range(n):
        m = alloc(f32[7, 8], "register")
        s = alloc(f32[7, 8], "register")
        for x in unroll(7):
            for l in vectorize(8):
                m[x, l] = -inf
                s[x, l] = 0.0
        for a in unroll(3):
            for b in unroll(3):
                for x1 in unroll(7):
                    for l1 in vectorize(8):
                        m[x1, l1] = max(m[x1, l1], (A[y + a - 1, x1 + b - 1, l1]
                            if 0 <= y + a - 1 and y + a - 1 < n
                            and 0 <= x1 + b - 1 and x1 + b - 1 < 7 else -inf))
                        s[x1, l1] += (A[y + a - 1, x1 + b - 1, l1]
                            if 0 <= y + a - 1 and y + a - 1 < n
                            and 0 <= x1 + b - 1 and x1 + b - 1 < 7 else 0.0)
        for x2 in unroll(7):
            for l2 in vectorize(8):
                B[y, x2, l2] = m[x2, l2]
                C[y, x2, l2] = s[x2, l2]
""",
    "registers_of_all_shapes": """
def f(n: size, A: f32[n, 8], *, B: f32[n, 8], C: f32[n, 2]):
    for i in range(n):
        r = alloc(f32[2, 8], "register")
        for a in unroll(2):
            for l in vectorize(8):
                r[a, l] = A[i, l] + 1.0
        for k in unroll(4):
            r[0, k] = r[1, 7 - k] * 2.0
        for m in range(3):
            for l2 in vectorize(4):
                r[1, l2 + 2] += r[0, l2] * r[0, 3]
            r[1, 0] += 1.0
        for l3 in vectorize(8):
            B[i, l3] = r[0, 7 - l3] - r[1, l3]
        C[i, 0] = r[1, 3]
        for l4 in vectorize(2):
            C[i, l4] = r[l4, 3]
""",
    "registers_under_if": """
def f(n: size, A: f32[n, 8], *, B: f32[n, 8]):
    for i in range(n):
        r = alloc(f32[8], "register")
        for l in vectorize(8):
            r[l] = A[i, l]
        if i % 3 == 1:
            for l1 in vectorize(8):
                r[l1] = r[l1] * 2.0
            r[2] = 5.0
        for l2 in vectorize(8):
            if l2 + i < 6:
                r[l2] += 1.0
        for l3 in vectorize(8):
            B[i, l3] = r[l3]
""",
    "loops_that_end_where_their_guards_do": """
def f(n: size, A: f32[n + 4, 16], *, B: f32[n, 16], C: f32[n]):
    for p in range(n):
        C[p] = 0.0
        for m in vectorize(16):
            B[p, m] = 0.0
    for o in range((n + 3) // 4):
        for i in range(4):
            if i + o * 4 < n and A[i + o * 4, 0] < 1.0:
                for l in vectorize(16):
                    B[i + o * 4, l] = A[i + o * 4, l] + 1.0
        for j in range(4):
            if j < 3 and 1 <= j and j * 2 + o * 4 < n and o * 4 + j - 1 < n:
                C[o * 4 + j - 1] = A[o * 4 + j, 3]
""",
    "numbers_that_are_not_finite": """
def f(n: size, A: f32[n, 16], W: f32[5, 16], *, B: f32[n, 16]):
    for i in range(n):
        t = alloc(f32[16], "register")
        for l in vectorize(16):
            t[l] = 0.0
            if A[i, l] / max(A[i, l], 0.0) - A[i, l] / max(A[i, l], 0.0) != 0.0:
                for k in range(5):
                    t[l] += A[i, l] * W[k, l]
        for l2 in vectorize(16):
            B[i, l2] = t[l2]
""",
    "elements_and_vectors_under_one_guard": """
def f(n: size, A: f32[n, 8], *, B: f32[n, 8]):
    for i in range(n):
        r = alloc(f32[8], "register")
        for l in vectorize(8):
            r[l] = A[i, l]
        if i % 2 == 0:
            r[3] = 2.0
            for l1 in vectorize(8):
                r[l1] = r[l1] + 1.0
        for k in range(n // 16):
            r[5] += 2.0
            for l2 in vectorize(8):
                r[l2] = r[l2] * 0.5
        for l3 in vectorize(8):
            B[i, l3] = r[l3]
""",
    "registers_in_a_loop_that_may_be_empty": """
def f(n: size, A: f32[n, 8], *, B: f32[8]):
    r = alloc(f32[8], "register")
    for l in vectorize(8):
        r[l] = 3.0
    for i in range(n):
        for l1 in vectorize(8):
            r[l1] = max(r[l1], A[i, l1])
    for l2 in vectorize(8):
        B[l2] = r[l2]
""",
    "lane_private_buffers": """
def f(n: size, A: f32[n, 8, 3], *, B: f32[n, 8]):
    for i in range(n):
        for l in vectorize(8):
            t = alloc(f32[3], "local")
            r = alloc(f32[2], "register")
            r[1] = 0.0
            for k in range(3):
                t[k] = A[i, l, k] * 2.0
            for k2 in range(3):
                r[1] += t[2 - k2] * A[i, l, k2]
            B[i, l] = r[1]
""",
    "locals": """
def f(n: size, A: f32[n, 40], *, B: f32[n, 40]):
    for i in parallel(n):
        t = alloc(f32[40], "local")
        s = alloc(f32[1], "local")
        s[0] = 0.0
        for j in range(40):
            t[j] = A[i, j] * 3.0
            s[0] += t[j]
        for j2 in range(40):
            B[i, j2] = t[j2] - s[0]
""",
    "locals_of_symbolic_size": """
def f(n: size, A: f32[n, n], *, B: f32[n, n]):
    t = alloc(f32[n, n], "local")
    for a in range(n):
        for b in range(n):
            t[a, b] = A[b, a]
    for i in parallel(n):
        u = alloc(f32[n, 2], "local")
        for j in range(n):
            u[j, 1] = t[i, j] + 1.0
        for j2 in range(n):
            B[i, j2] = u[n - 1 - j2, 1] * t[j2, i]
""",
    "reductions_over_lanes": """
def f(n: size, A: f32[n, 16], I: i32[n, 16], *, s: f32[6], t: i32[3]):
    for z in unroll(6):
        s[z] = 0.0
    for z2 in unroll(3):
        t[z2] = i32(1)
    for i in range(n):
        for l in vectorize(16):
            s[0] += A[i, l]
            s[1] = max(s[1], A[i, l])
            s[2] = min(s[2], A[i, l])
            s[3] += 1.0
            if l + i < 9:
                s[4] += A[i, l] * 0.5
                s[5] = max(s[5], A[i, l])
            t[0] += I[i, l]
            t[1] *= I[i, l]
            t[2] = min(t[2], I[i, l])
""",
    "reductions_over_odd_lanes": """
def f(n: size, A: f32[n, 6], *, s: f32[2]):
    s[0] = 0.0
    s[1] = 0.0
    for i in range(n):
        for l in vectorize(6):
            s[0] = max(s[0], A[i, l])
            s[1] += A[i, l]
""",
    "unroll_notes_with_a_rest": """
def f(n: size, A: f32[n, 11], *, B: f32[n], C: f32[11]):
    for i in range(n, unroll=4):
        B[i] = 0.0
        for j in range(11, unroll=4):
            B[i] += A[i, j]
    for k in range(11, unroll=16):
        C[k] = 2.0
""",
    "nested_vector_loops": """
def f(n: size, A: f32[n, 2, 8], *, B: f32[n, 2, 8]):
    for i in range(n):
        for a in vectorize(2):
            for l in vectorize(8):
                B[i, a, l] = A[i, 1 - a, l]
""",
    "serial_loops_in_vector_loops": """
def f(n: size, A: f32[n, 8], *, B: f32[8]):
    for l in vectorize(8):
        B[l] = 0.0
        for i in range(n):
            B[l] += A[i, l]
""",
    "extents_of_one": """
def f(n: size, A: f32[n], *, B: f32[n]):
    for i in range(n):
        for a in range(1):
            for b in vectorize(1):
                for c in parallel(1):
                    B[i + a + b + c] = A[i]
""",
    "in_place": """
@in_place(B="A")
def f(n: size, A: f32[n], *, B: f32[n], C: f32[n]):
    for i in range(n):
        C[i] = A[i]
        B[i] = A[i] * 2.0
        C[i] += B[i]
""",
    "loads_are_not_reused_across_stores": """
def f(n: size, A: f32[n], *, B: f32[n + 1], C: f32[n]):
    B[0] = 1.0
    for i in range(n):
        C[i] = B[i]
        B[i + 1] = C[i] + A[i]
        if 2 < i:
            B[i] = 0.0
        C[i] += B[i]
""",
    "nan_min_max": """
def f(n: size, A: f32[n], B: f32[n], *, C: f32[n, 4]):
    for i in range(n):
        C[i, 0] = max(0.0 / (A[i] - A[i]), B[i])
        C[i, 1] = min(B[i], 0.0 / (A[i] - A[i]))
        C[i, 2] = max(0.0 / (A[i] - A[i]), 0.0)
        C[i, 3] = min(max(A[i], -1.0), 1.0)
""",
    "index_as_data": """
def f(n: size, *, B: f32[n, 8], C: i64[n]):
    for i in range(n):
        for l in vectorize(8):
            B[i, l] = f32(i * 8 + l * 3 - n) + f32(l // 3)
        C[i] = i64(i * i % 7)
""",
    "bools": """
def f(n: size, A: f32[n, 8], M: bool[n, 8], *, B: bool[n, 8], C: f32[n, 8]):
    for i in range(n):
        for l in vectorize(8):
            B[i, l] = A[i, l] < 0.0 or not M[i, l]
            C[i, l] = (A[i, l] if M[i, l] and A[i, l] < 2.0 else 0.0) + f32(M[i, l])
""",
    "instructions": """
def f(n: size, A: u8[n, 8], B: i8[n, 8, 4], *, C: i32[n, 8]):
    for i in range(n):
        for l in vectorize(8):
            C[i, l] = i32(7)
            for k in range(2):
                invoke("dot_4xi8_i32", A[i, k * 4], B[i, l, 0], C[i, l])
""",
    "two_outputs_and_calls": """
def f(n: size, A: f32[n, 8], *, B: f32[n, 8], C: f32[n, 8]):
    for i in parallel(n):
        for l in vectorize(8):
            B[i, l] = A[i, l] * 0.5 * (1.0 + erf(A[i, l] * 0.70710677))
            C[i, l] = tanh(exp(A[i, l])) + sigmoid(A[i, l]) + sqrt(abs(A[i, l])) + floor(A[i, l])
""",
}


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


TYPES = ["bool", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "f16", "bf16", "f32", "f64"]


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
def f(n: size, A: {dtype}[n, 4], B: {dtype}[n, 4], *, C: {dtype}[8, n, 4]):
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
""",
            TARGETS[target],
        )
        data = random_arrays(kernel.func, {"n": 6})
        data["B"][data["B"] == 0] = 3
        info = np.iinfo(data["A"].dtype)
        data["A"][0] = [info.max, info.min, info.min, 0]
        data["B"][0] = [2, 3, -1 if info.min else 1, 5]
        check(kernel.func, {"n": 6}, arrays=data, target=TARGETS[target])


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


# What the machine code looks like.


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
    from dlc.codegen.llvm.compile import innermost_loops
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
def f(A: {typed}[{a.size}, {b.size}], B: {typed}[{b.size}], *, C: {typed}[2, {a.size}, {b.size}]):
    for i in range({a.size}):
        for l in vectorize({b.size}):
            C[0, i, l] = A[i, l] // B[l]
            C[1, i, l] = A[i, l] % B[l]
""",
        TARGETS[target],
    )
    left = np.repeat(a[:, None], b.size, axis=1)
    with np.errstate(all="ignore"):
        expected = np.stack([left // b, left % b])
    np.testing.assert_array_equal(kernel({}, {"A": left, "B": b})["C"], expected)
    small = dtype.itemsize <= 4
    assert ("fdiv" in kernel.ir) == small
    assert ("div <" in kernel.ir.replace("fdiv", "")) != small


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
