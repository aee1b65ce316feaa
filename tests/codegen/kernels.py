"""Kernels with one size variable `n`, each for a feature of the emitter."""

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
