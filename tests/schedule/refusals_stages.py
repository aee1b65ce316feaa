"""Refusals of the primitives that say where a stage is computed: cases of test_refusals.py."""

from tests.schedule.refused import COPY, INSIDE, INVOKED, KINDS, READ_TWICE, RUNNING, SUM, TWO

WINDOWS = """
    def f(A: f32[9], w: f32[3], *, B: f32[7]):
        for x in range(7):
            B[x] = 0.0
            for k in range(3):
                B[x] += A[x + k]
"""
PLACED = """
    def f(A: f32[6], *, B: f32[8]):
        t = alloc(f32[8], "local")
        for i in range(8):
            t[i] = 0.0
        for j in range(6):
            t[j + 1] = A[j]
        for k in range(8):
            B[k] = t[k]
"""
TILED = """
    def f(n: size, A: f32[n], *, B: f32[n]):
        t = alloc(f32[n], "local")
        for io in range((n + 3) // 4):
            for ii in range(4):
                if io * 4 + ii < n:
                    t[io * 4 + ii] = A[io * 4 + ii]
        for y in range(n):
            B[y] = t[y]
"""

STAGES = [
    ("compute_inline", ("A",), TWO, "there is no intermediate 'A'"),
    ("compute_inline", ("t",), PLACED, "not written by one store of a nest of its own"),
    (
        "compute_inline",
        ("t",),
        TWO.replace("t[i] = A[i] * 2.0", "t[i] = A[i]\n            C[i] = 0.0"),
        "not written by one store of a nest of its own",
    ),
    (
        "compute_inline",
        ("t",),
        TWO.replace("t[i] = A[i] * 2.0", "t[i] += A[i]"),
        "'t' is computed from itself",
    ),
    (
        "compute_inline",
        ("t",),
        TWO.replace("t[i] = A[i] * 2.0", "if 0 < i:\n                t[i] = A[i]"),
        "a guard may leave elements of 't' undefined",
    ),
    ("compute_inline", ("t",), INVOKED, "an instruction reads 't'"),
    (
        "compute_inline",
        ("t",),
        TWO.replace("t[i] = A", "t[n - 1 - i] = A"),
        "does not walk along dimension 0",
    ),
    (
        "compute_inline",
        ("t",),
        TWO.replace("for i in range(n)", "for i in range(n // 2)"),
        "does not walk along dimension 0",
    ),
    (
        "compute_inline",
        ("t",),
        TWO.replace("t[i] = A[i] * 2.0", "for q in range(3):\n                t[i] = f32(q)"),
        "stored several times",
    ),
    (
        "compute_inline",
        ("t",),
        TWO.replace("A[i] * 2.0", "C[i]").replace("B[j] = t[j]", "C[j] = t[j]"),
        "'C', which it reads, is written later",
    ),
    (
        "compute_inline",
        ("t",),
        """
        @in_place(B="A")
        def f(n: size, A: f32[n], *, B: f32[n]):
            t = alloc(f32[n], "local")
            for i in range(n):
                t[i] = A[i]
            for j in range(n):
                B[j] = t[n - 1 - j]
        """,
        "'B', which it reads, is written later",
    ),
    (
        "compute_inline",
        ("t",),
        """
        @in_place(B="A")
        def f(n: size, A: f32[n], *, B: f32[n]):
            t = alloc(f32[n], "local")
            for i in range(n):
                t[i] = A[i] + 1.0
            for r in range(2):
                for j in range(n):
                    B[j] = t[j]
        """,
        "'B', which it reads, is written later",
    ),
    ("compute_at", ("A", "j"), TWO, "there is no intermediate 'A'"),
    ("compute_at", ("t", "q"), TWO, "there is no loop 'q'"),
    ("compute_at", ("t", "i"), TWO, "'i' does not follow the nests of 't'"),
    ("compute_at", ("t", "k"), TWO, "read outside of loop 'k'"),
    ("compute_at", ("t", "j"), READ_TWICE, "'t' is read outside of loop 'j'"),
    (
        "compute_at",
        ("t", "j"),
        TWO.replace("t[j] + 1.0", "A[j]"),
        "'t' is not read in loop 'j'",
    ),
    ("compute_at", ("t", "k"), INVOKED, "an instruction uses 't'"),
    ("compute_at", ("t", "j", (2, 2)), TWO, "(2, 2) are no multiples of 't's dimensions"),
    ("compute_at", ("t", "j", (0,)), TWO, "(0,) are no multiples of 't's dimensions"),
    ("compute_at", ("t", "j", (2,)), TWO, "multiples of 2 may stick out of 't'"),
    (
        "compute_at",
        ("t", "q"),
        """
        def f(A: f32[4, 3], *, B: f32[4, 3]):
            t = alloc(f32[4, 3], "local")
            for x in range(4):
                for y in range(3):
                    t[x, y] = A[x, y]
            for p in vectorize(4):
                for q in range(3):
                    B[p, q] = t[p, q]
        """,
        "inside the vector loop 'p'",
    ),
    (
        "compute_at",
        ("t", "k"),
        TWO.replace("C[k] = A[k]", "t[k] = t[k] + A[k]"),
        "'k' does not follow the nests of 't'",
    ),
    (
        "compute_at",
        ("t", "j"),
        TWO.replace("t[i] = A[i] * 2.0", "t[i] = A[i]\n            C[i] = 0.0"),
        "together with other buffers",
    ),
    (
        "compute_at",
        ("t", "j"),
        TWO.replace("t[i] = A[i] * 2.0", "t[i] = (t[i - 1] if 0 < i else 0.0) + A[i]"),
        "depends on other elements",
    ),
    (
        "compute_at",
        ("t", "j"),
        TWO.replace("A[i] * 2.0", "C[i]").replace(
            "        for j in range(n):",
            "        for z in range(n):\n            C[z] = 1.0\n        for j in range(n):",
        ),
        "'C', which 't' needs, is written",
    ),
    (
        "compute_at",
        ("t", "j"),
        """
        @in_place(B="A")
        def f(n: size, A: f32[n], *, B: f32[n]):
            t = alloc(f32[n], "local")
            for i in range(n):
                t[i] = A[i]
            for j in range(n):
                B[n - 1 - j] = t[j]
        """,
        "'B', which 't' needs, is written in the loop",
    ),
    (
        "compute_at",
        ("t", "j"),
        """
        @in_place(B="A")
        def f(n: size, A: f32[n], *, B: f32[n]):
            t = alloc(f32[n], "local")
            for i in range(n):
                t[i] = A[i]
            for j in range(n):
                B[j] = 0.0
                B[j] = t[j] + 1.0
        """,
        "'B', which 't' needs, is written in the loop",
    ),
    (
        "compute_at",
        ("t", "jo"),
        """
        def f(n: size, A: f32[8], *, B: f32[n]):
            t = alloc(f32[n * 8], "local")
            for i in vectorize(8):
                t[i] = A[i]
            for jo in range(n):
                for ji in range(n):
                    B[jo] = t[jo + ji]
        """,
        "vectorize loop 'i' would run n times",
    ),
    (
        "compute_at",
        ("t", "j"),
        """
        def f(A: f32[4], *, B: f32[4], C: f32[4]):
            for j in range(4):
                C[j] = A[j]
            t = alloc(f32[4], "local")
            for i in range(4):
                t[i] = A[i]
            for k in range(4):
                B[k] = t[k]
        """,
        "loop 'j' is outside of the life of 't'",
    ),
    ("reverse_compute_at", ("t", "q"), TWO, "there is no loop 'q'"),
    ("reverse_compute_at", ("z", "i"), TWO, "there is no buffer 'z'"),
    ("reverse_compute_at", ("t", "j"), PLACED, "does not hold all that writes 't'"),
    ("reverse_compute_at", ("t", "j"), INVOKED, "an instruction or nothing computes 't'"),
    ("reverse_compute_at", ("C", "k"), TWO, "no later nest reads 'C'"),
    (
        "reverse_compute_at",
        ("t", "ii"),
        TILED.replace("for ii in range(4):", "if io < 5:\n                for ii in range(4):")
        .replace("    if io * 4 + ii < n:", "        if io * 4 + ii < n:")
        .replace("        t[io * 4 + ii] = A", "            t[io * 4 + ii] = A"),
        "a guard around 'ii' may skip iterations",
    ),
    (
        "reverse_compute_at",
        ("t", "i"),
        TWO.replace("for j", "for z in range(n):\n            B[z] = 0.0\n        for j"),
        "'B' is used by what runs before",
    ),
    (
        "reverse_compute_at",
        ("t", "r"),
        """
        def f(n: size, A: f32[n], *, B: f32[n]):
            t = alloc(f32[n], "local")
            for r in range(2):
                for i in range(n):
                    t[i] = A[i]
            for j in range(n):
                B[j] = t[j]
        """,
        "different iterations may use one element of 't'",
    ),
    (
        "reverse_compute_at",
        ("t", "i"),
        TWO.replace("B[j] = t[j]", "B[j] = t[n - 1 - j]"),
        "does not walk along the parts of 't'",
    ),
    (
        "reverse_compute_at",
        ("t", "i"),
        TWO.replace("for j in range(n):", "for j in range(n):\n            C[0] = 0.0")
        .replace("C[0] = 0.0\n", "B[j] = 1.0\n            for jj in range(n):\n    ", 1)
        .replace("B[j] = t[j] + 1.0", "        B[j] += t[jj]"),
        "a store of 'B' would run several times",
    ),
    (
        "reverse_compute_at",
        ("t", "i"),
        """
        def f(n: size, A: f32[n], *, B: f32[n]):
            t = alloc(f32[n], "local")
            for i in range(n // 2):
                t[i] = A[i]
            for j in range(n):
                B[j] = (t[j] if j < n // 2 else 0.0)
        """,
        "does not surely compute all of 't' that is read",
    ),
    (
        "reverse_compute_at",
        ("t", "i"),
        """
        def f(n: size, A: f32[n], *, B: f32[n]):
            t = alloc(f32[n + 1], "local")
            for i in range(n):
                t[i + 1] = A[i]
            for j in range(n):
                B[j] = (t[j] if 0 < j else 0.0)
        """,
        "does not surely compute all of 't' that is read",
    ),
    (
        "reverse_compute_at",
        ("t", "io"),
        """
        def f(A: f32[16], *, B: f32[12]):
            t = alloc(f32[16], "local")
            for io in range(2):
                for ii in range(4):
                    t[io * 8 + ii] = A[io * 8 + ii]
            for j in range(12):
                B[j] = (t[j] if j % 8 < 4 else 0.0)
        """,
        "does not surely compute all of 't' that is read",
    ),
    (
        "reverse_compute_at",
        ("t", "i"),
        TWO.replace("B[j] = t[j] + 1.0", "B[0] = t[j] + (B[0] if 0 < j else 0.0) * 2.0"),
        "may use one element of 'B'",
    ),
    (
        "reverse_compute_at",
        ("t", "i"),
        TWO.replace("for i in range", "for i in parallel").replace("B[j] = t[j]", "B[0] += t[j]"),
        "may use one element of 'B'",
    ),
    (
        "reverse_compute_at",
        ("t", "k"),
        INSIDE.replace(
            "        for i", '        t = alloc(f32[4, 6, 2], "local")\n        for i'
        ).replace("B[i, j, k] =", "t[i, j, k] =")
        + """
        for x in range(4):
            for y in range(6):
                for z in range(2):
                    B[x, y, z] = t[x, y, z]
        """,
        "inside the vector loop 'j'",
    ),
    (
        "reverse_compute_at",
        ("t", "io"),
        """
        def f(n: size, A: f32[n + 16], *, B: f32[16]):
            t = alloc(f32[n + 17], "local")
            for io in range(1):
                for j in range(n + 16):
                    t[j] = A[j]
            for x in vectorize(16):
                B[x] = t[x]
        """,
        "vectorize loop 'x' would run n + 16 times",
    ),
    (
        "reverse_compute_at",
        ("t", "i"),
        """
        def f(A: f32[4], *, B: f32[4]):
            t = alloc(f32[4], "local")
            for i in range(4):
                t[i] = A[i]
            u = alloc(f32[4], "local")
            for j in range(4):
                u[j] = t[j]
            for k in range(4):
                B[k] = u[k]
        """,
        "'u' does not live in loop 'i' yet",
    ),
    ("slide", ("B", "q", "k", "line"), WINDOWS, "there is no loop 'q'"),
    ("slide", ("B", "i", "j", "line"), KINDS, "is already parallel"),
    ("slide", ("B", "i", "j", "line"), COPY, "no plain reduction"),
    ("slide", ("t", "i", "j", "line"), RUNNING, "no plain reduction"),
    ("slide", ("B", "x", "k", "line"), WINDOWS.replace("0.0", "1.0"), "no plain reduction"),
    ("slide", ("B", "x", "k", "line"), WINDOWS.replace("B[x]", "B[6 - x]"), "no plain reduction"),
    ("slide", ("B", "x", "k", "line"), WINDOWS.replace("A[", "B["), "no plain reduction"),
    ("slide", ("B", "k", "x", "line"), WINDOWS, "no element and no term of 'B'"),
    ("slide", ("s", "i", "j", "line"), SUM, "nothing is read at a place"),
    ("slide", ("B", "x", "k", "line"), WINDOWS.replace("x + k", "x * 2 + k * 3"), "at a place"),
    ("slide", ("B", "x", "k", "line"), WINDOWS.replace("+ k]", "+ k] * w[k]"), "not only by"),
    (
        "slide",
        ("B", "x", "k", "line"),
        "def f(n: size, A: f32[n * 3], *, B: f32[n]):\n    for x in range(n):\n        B[x] = 0.0\n"
        "        for k in range(3):\n            B[x] += A[x + k] if x + k < n else 0.0\n",
        "might not exist",
    ),
    ("slide", ("B", "x", "k", "A"), WINDOWS, "the name 'A' is taken"),
]
