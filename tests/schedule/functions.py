"""Functions to schedule: the kinds of nests that lowering makes, with uneven and symbolic sizes."""

from tests.schedule.data import parse

FUNCTIONS = {
    "dense": """
        def f(n: size, A: f32[n, 5], W: f32[5, 7], bias: f32[7], *, C: f32[n, 7]):
            s = alloc(f32[n, 7], "local")
            for i in range(n):
                for j in range(7):
                    s[i, j] = 0.0
                    for k in range(5):
                        s[i, j] += A[i, k] * W[k, j]
            for y in range(n):
                for x in range(7):
                    C[y, x] = max(s[y, x] + bias[x], 0.0)
    """,
    "conv": """
        def f(n: size, X: f32[n, 3], W: f32[3, 3, 2], *, C: f32[n, 2]):
            p = alloc(f32[n + 2, 3], "local")
            for b in range(3):
                p[0, b] = 0.0
            for b_1 in range(3):
                p[n + 1, b_1] = 0.0
            for u in range(n):
                for v in range(3):
                    p[u + 1, v] = X[u, v]
            s = alloc(f32[n, 2], "local")
            for i in range(n):
                for o in range(2):
                    s[i, o] = 0.0
                    for c in range(3):
                        for r in range(3):
                            s[i, o] += p[i + r, c] * W[r, c, o]
            for y in range(n):
                for z in range(2):
                    C[y, z] = s[y, z] * 2.0
    """,
    "softmax": """
        def f(n: size, A: f32[n, 6], *, B: f32[n, 6]):
            m = alloc(f32[n], "local")
            e = alloc(f32[n, 6], "local")
            t = alloc(f32[n], "local")
            for i in range(n):
                m[i] = -inf
                for j in range(6):
                    m[i] = max(m[i], A[i, j])
            for i_1 in range(n):
                for j_1 in range(6):
                    e[i_1, j_1] = A[i_1, j_1] - m[i_1]
            for i_2 in range(n):
                t[i_2] = 0.0
                for j_2 in range(6):
                    t[i_2] += e[i_2, j_2]
            for i_3 in range(n):
                for j_3 in range(6):
                    B[i_3, j_3] = e[i_3, j_3] * t[i_3]
    """,
    "in_place": """
        @in_place(B="A")
        def f(n: size, A: f32[n, 5], R: f32[n, 5], *, B: f32[n, 5]):
            t = alloc(f32[n, 5], "local")
            for i in range(n):
                for j in range(5):
                    t[i, j] = A[i, j] + R[i, j]
            q = alloc(f32[n], "local")
            for k in range(n):
                q[k] = 0.0
                for l in range(5):
                    q[k] += A[k, l]
            for y in range(n):
                for x in range(5):
                    B[y, x] = t[y, x] * q[y]
    """,
    "transpose_sum": """
        def f(n: size, A: f32[n, 4], *, B: f32[4, n], S: f32[4], M: f32[1]):
            for i in range(n):
                for j in range(4):
                    B[j, i] = A[i, j]
            for c in range(4):
                S[c] = 0.0
            for r in range(n):
                for c_1 in range(4):
                    S[c_1] += A[r, c_1]
            M[0] = inf
            for p in range(4):
                for q in range(n):
                    if q * 2 < n:
                        M[0] = min(M[0], B[p, q] + S[p])
    """,
    "windows": """
        def f(A: f32[11], *, B: f32[9], C: f32[9]):
            t = alloc(f32[11], "local")
            for i in range(11):
                t[i] = A[i] * 2.0
            d = alloc(f32[10], "local")
            for j in range(10):
                d[j] = t[j + 1] - t[j]
            for k in range(9):
                B[k] = d[k + 1] - d[k]
            for w in range(9):
                C[w] = (d[w - 1] if 0 < w else 0.0) + t[w]
    """,
    "running": """
        def f(n: size, A: f32[n], *, B: f32[n + 1]):
            B[0] = 0.0
            for i in range(n):
                B[i + 1] = B[i] + A[i]
            for k in range(n):
                B[k] = B[k + 1] + B[k]
    """,
    "cached": """
        def f(n: size, A: f32[n, 5], W: f32[5, 3], *, C: f32[n, 3]):
            a = alloc(f32[n, 5], "local")
            w = alloc(f32[5, 3], "local")
            s = alloc(f32[n, 3], "local")
            for i in range(n):
                for k in range(5):
                    a[i, k] = A[i, k]
            for k_1 in range(5):
                for j in range(3):
                    w[k_1, j] = W[k_1, j]
            for i_1 in range(n):
                for j_1 in range(3):
                    s[i_1, j_1] = 0.0
            for i_2 in range(n):
                for j_2 in range(3):
                    for k_2 in range(5):
                        s[i_2, j_2] += a[i_2, k_2] * w[k_2, j_2]
            for y in range(n):
                for x in range(3):
                    C[y, x] = s[y, x] + 1.0
    """,
    "tail": """
        def f(n: size, A: f32[n, 9], *, B: f32[n, 9], S: f32[n]):
            t = alloc(f32[n, 9], "local")
            for io in range((n + 2) // 3):
                for j in range(9):
                    for ii in range(3):
                        if io * 3 + ii < n:
                            t[io * 3 + ii, j] = A[io * 3 + ii, j] * 2.0
            for y in range(n):
                for x in range(9):
                    B[y, x] = t[y, x] + 1.0
            for z in range(n):
                S[z] = 0.0
                for ko in range(3):
                    for ki in range(4):
                        if ko * 4 + ki < 9:
                            S[z] += t[z, ko * 4 + ki] * B[z, ko * 4 + ki]
    """,
    "gather": """
        def f(n: size, I: i64[n], A: f32[6, 3], *, B: f32[n, 3]):
            t = alloc(f32[6, 3], "local")
            for a in range(6):
                for b in range(3):
                    t[a, b] = A[a, b] + 1.0
            for i in range(n):
                for j in range(3):
                    B[i, j] = t[index(I[i]), j]
    """,
    "scatter": """
        def f(n: size, I: i64[n, 3], A: f32[n, 3], *, B: f32[6, 3]):
            t = alloc(f32[6, 3], "local")
            for a in range(6):
                for b in range(3):
                    t[a, b] = 1.0
            for i in range(n):
                for j in range(3):
                    if index(I[i, 0]) < 5:
                        t[index(I[i, 0]), j] += A[i, j]
            for p in range(6):
                for q in range(3):
                    B[p, q] = t[p, q] * 2.0
            for u in range(n):
                for v in range(3):
                    B[index(I[u, v]), v] = A[u, v]
    """,
    "lines": """
        def f(n: size, A: bf16[3, 2, 32], X: f32[n, 2], *, B: f32[3, n]):
            for i in range(3):
                for j in range(n):
                    B[i, j] = 0.0
                    for k in range(2):
                        for l in range(32):
                            B[i, j] += f32(A[i, k, l]) * X[j, k]
    """,
}


def function(name):
    return parse(FUNCTIONS[name])
