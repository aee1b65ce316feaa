"""Functions that several primitives refuse to schedule."""

COPY = """
    def f(n: size, A: f32[n, 6], *, B: f32[n, 6]):
        for i in range(n):
            for j in range(6):
                B[i, j] = A[i, j]
"""
SUM = """
    def f(n: size, A: f32[n, 6], *, s: f32[n]):
        for i in range(n):
            s[i] = 0.0
            for j in range(6):
                s[i] += A[i, j]
"""
RUNNING = """
    def f(A: f32[4, 6], *, s: f32[1], t: f32[4, 6]):
        for i in range(4):
            for j in range(6):
                s[0] += A[i, j]
                t[i, j] = s[0]
"""
KINDS = """
    def f(A: f32[4, 6], *, B: f32[4, 6]):
        for i in parallel(4):
            for j in vectorize(6):
                B[i, j] = A[i, j]
"""
INSIDE = """
    def f(A: f32[4, 6, 2], *, B: f32[4, 6, 2]):
        for i in range(4):
            for j in vectorize(6):
                for k in range(2):
                    B[i, j, k] = A[i, j, k]
"""
TWO = """
    def f(n: size, A: f32[n], *, B: f32[n], C: f32[n]):
        t = alloc(f32[n], "local")
        for i in range(n):
            t[i] = A[i] * 2.0
        for j in range(n):
            B[j] = t[j] + 1.0
        for k in range(n):
            C[k] = A[k]
"""
READ_TWICE = TWO.replace("C[k] = A[k]", "C[k] = t[k]")
INVOKED = """
    def f(A: u8[8, 4], W: i8[4], *, C: i32[8]):
        t = alloc(u8[8, 4], "local")
        for i in range(8):
            for j in range(4):
                t[i, j] = A[i, j]
        for k in range(8):
            C[k] = i32(0)
            invoke("dot_4xi8_i32", t[k, 0], W[0], C[k])
"""
