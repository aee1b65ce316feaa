"""Refusals of the primitives that place and copy buffers: cases of test_refusals.py."""

from tests.schedule.refused import COPY, INSIDE, INVOKED, RUNNING, SUM, TWO

LINES = """
    def f(
        n: size, A: bf16[9, 2, 4, 32], F: f32[9, 2], S: bf16[9, 2, 3], T: bf16[9, 2, 32],
        W: bf16[9, 2, 32], *, B: f32[9]
    ):
        for i in range(9):
            for j in range(2):
                for k in range(32):
                    B[i] += f32(A[i, j, 1, k]) * F[i, j] + f32(S[i, j, 0])
                    B[i] += f32(T[i, j, k]) * f32(T[i, 0, k]) + f32(W[i, j, k])
        for h in range(9):
            for m in range(n):
                B[h] += F[h, 0]
"""
BETWEEN = """
    def f(n: size, A: f32[6, 64, 32], *, B: f32[4]):
        for i in range(4):
            for j in range(4):
                for q in range(n):
                    for k in range(2):
                        for m in range(16):
                            B[i] += A[j, i, m + k * 16]
"""
ROWS = """
    def f(n: size, A: f32[8, 8], *, B: f32[8, 8]):
        for i in range(8):
            t = alloc(f32[1, 8], "local")
            u = alloc(f32[1], "local")
            u[0] = 0.0
            for j in range(8):
                t[0, j] = A[i, j]
                u[0] += t[0, j]
            for k in range(8):
                B[i, k] = u[0] / t[0, k]
"""
HANDED = """
    def f(n: size, A: f32[n], *, B: f32[n]):
        for r in range(1):
            t = alloc(f32[n], "local")
            for i in range(n):
                t[i] = A[i]
            for k in range(n):
                B[k] = t[k]
"""
IN_PLACE = """
    @in_place(B="A")"""

ROLLED = """
    def f(n: size, A: f32[9], C: f32[9], *, B: f32[6]):
        for y in range(6):
            t = alloc(f32[3], "local")
            for i in range(3):
                t[i] = A[i + y] + 1.0
            B[y] = t[0] * t[1] * t[2]
"""
ONCE = "not all rows of 't' are what iterations compute alike"
INVOKED_EACH = """
    def f(A: u8[9, 4], W: i8[4], *, C: i32[6]):
        for k in range(6):
            t = alloc(u8[3, 4], "local")
            for i in range(3):
                for j in range(4):
                    t[i, j] = A[k + i, j]
            C[k] = i32(0)
            invoke("dot_4xi8_i32", t[0, 0], W[0], C[k])
"""
MEMORY = [
    ("set_scope", ("A", "local"), COPY, "there is no intermediate 'A'"),
    ("set_scope", ("t", "moon"), TWO, "there is no scope 'moon'"),
    ("set_scope", ("t", "register"), TWO, "has the shape f32[n], not a constant"),
    ("cache_load", ("A", ("q",), "c", "local"), COPY, "there is no loop 'q'"),
    ("cache_load", ("A", ("i", "j"), "c", "moon"), COPY, "there is no scope 'moon'"),
    ("cache_load", ("A", (), "c", "local"), COPY, "it takes loops, each of them once"),
    ("cache_load", ("A", ("i", "i"), "c", "local"), COPY, "it takes loops, each of them once"),
    ("cache_load", ("A", ("j", "i"), "c", "register"), COPY, "the shape f32[6, n], not a constant"),
    ("cache_load", ("B", ("i", "j"), "c", "local"), COPY, "'B' is read nowhere inside of 'j'"),
    ("cache_load", ("T", ("i", "k"), "c", "local"), LINES, "do not stand directly inside"),
    ("cache_load", ("T", ("k",), "c", "local"), LINES, "'T' is read at several indices"),
    ("cache_load", ("A", ("i",), "c", "local"), COPY, "an index of 'A' depends on loop 'j'"),
    (
        "cache_load",
        ("A", ("i",), "c", "local"),
        """
        def f(I: i64[4], A: f32[9], *, B: f32[4]):
            for i in range(4):
                B[i] = A[index(I[i])]
        """,
        "an index of 'A' is read from memory",
    ),
    ("cache_load", ("A", ("i", "j"), "B", "local"), COPY, "the name 'B' is taken"),
    ("cache_load", ("A", ("k",), "c", "local"), INSIDE, "inside the vector loop 'j'"),
    ("cache_load", ("t", ("k",), "c", "local"), INVOKED, "an instruction uses 't'"),
    (
        "cache_load",
        ("t", ("i",), "c", "local"),
        """
        def f(A: f32[4], *, B: f32[4]):
            for i in range(4):
                t = alloc(f32[1], "local")
                t[0] = A[i]
                B[i] = t[0]
        """,
        "'t' is allocated inside of loop 'i'",
    ),
    (
        "cache_load",
        ("A", ("i",), "c", "local"),
        """
        @in_place(B="A")
        def f(A: f32[4], *, B: f32[4]):
            for i in range(4):
                B[i] = A[i]
        """,
        "loop 'i' writes 'A'",
    ),
    ("cache_read", ("A", "q", "c", "local"), COPY, "there is no loop 'q'"),
    ("cache_read", ("A", "i", "c", "moon"), COPY, "there is no scope 'moon'"),
    ("cache_read", ("B", "i", "c", "local"), COPY, "does not read 'B'"),
    ("cache_read", ("s", "i", "c", "local"), SUM, "loop 'i' writes 's'"),
    ("cache_read", ("t", "k", "c", "local"), INVOKED, "an instruction uses 't'"),
    ("cache_read", ("A", "i", "B", "local"), COPY, "the name 'B' is taken"),
    ("cache_read", ("A", "k", "c", "local"), INSIDE, "inside the vector loop 'j'"),
    (
        "cache_read",
        ("t", "i", "c", "local"),
        """
        def f(A: f32[4], *, B: f32[4]):
            for i in range(4):
                t = alloc(f32[1], "local")
                t[0] = A[i]
                B[i] = t[0]
        """,
        "'t' is allocated inside of loop 'i'",
    ),
    (
        "cache_read",
        ("A", "r", "c", "register"),
        """
        def f(n: size, A: f32[n], *, B: f32[n]):
            for r in range(1):
                for i in range(n):
                    B[i] = A[i]
        """,
        "'c' would have the shape f32[n], not a constant",
    ),
    (
        "cache_read",
        ("A", "r", "c", "local"),
        """
        @in_place(B="A")
        def f(n: size, A: f32[n], *, B: f32[n]):
            for r in range(2):
                for i in range(n):
                    B[i] = A[i]
        """,
        "loop 'r' writes 'A'",
    ),
    ("hand_on", ("B", "q", "c", "local"), COPY, "there is no loop 'q'"),
    ("hand_on", ("B", "i", "c", "moon"), COPY, "there is no scope 'moon'"),
    ("hand_on", ("A", "i", "c", "local"), COPY, "no statement right inside of loop 'i' writes 'A'"),
    ("hand_on", ("B", "i", "c", "local"), COPY, "nothing behind what writes 'B' reads it"),
    ("hand_on", ("t", "k", "c", "local"), INVOKED, "an instruction uses 't'"),
    ("hand_on", ("t", "r", "A", "local"), HANDED, "the name 'A' is taken"),
    ("hand_on", ("t", "r", "c", "register"), HANDED, "'c' would have the shape f32[n], not a"),
    (
        "hand_on",
        ("t", "v", "c", "local"),
        """
        def f(A: f32[4], *, B: f32[4]):
            for v in vectorize(4):
                t = alloc(f32[1], "local")
                t[0] = A[v]
                B[v] = t[0]
        """,
        "loop 'v' is inside the vector loop 'v'",
    ),
    ("cache_write", ("B", "q", "c", "local"), COPY, "there is no loop 'q'"),
    ("cache_write", ("B", "i", "c", "moon"), COPY, "there is no scope 'moon'"),
    ("cache_write", ("A", "i", "c", "local"), COPY, "does not write 'A'"),
    ("cache_write", ("C", "k", "c", "local"), INVOKED, "an instruction uses 'C'"),
    ("cache_write", ("B", "i", "A", "local"), COPY, "the name 'A' is taken"),
    ("cache_write", ("B", "k", "c", "local"), INSIDE, "inside the vector loop 'j'"),
    ("cache_write", ("s", "i", "c", "local"), RUNNING, "reads 's' other than to update it"),
    (
        "cache_write",
        ("B", "i", "c", "local"),
        """
        @in_place(B="A")
        def f(A: f32[4, 6], *, B: f32[4, 6]):
            for i in range(4):
                for j in range(6):
                    B[i, j] = A[i, j]
        """,
        "loop 'i' reads 'A', the memory of 'B'",
    ),
    (
        "cache_write",
        ("B", "i", "c", "local"),
        COPY.replace("B[i, j] = A[i, j]", "if A[i, j] < 3.0:\n                    B[i, j] = 0.0"),
        "a guard of 'B' depends on data",
    ),
    (
        "cache_write",
        ("B", "r", "c", "register"),
        """
        def f(n: size, A: f32[n], *, B: f32[n]):
            for r in range(1):
                for i in range(n):
                    B[i] = A[i]
        """,
        "'c' would have the shape f32[n], not a constant",
    ),
    ("store_in", ("q", "B"), ROWS, "there is no intermediate 'q'"),
    ("store_in", ("t", "A"), ROWS, "there is no output 'A'"),
    ("store_in", ("t", "B"), ROWS.replace('"local"', '"register"'), "'t' is no memory"),
    ("store_in", ("t", "B"), ROWS.replace("*, B: f32", "*, B: f64"), "differ in type"),
    ("store_in", ("t", "B"), IN_PLACE + ROWS, "'B' shares the memory of an input"),
    (
        "store_in",
        ("t", "B"),
        ROWS.replace("t[0, j] = A[i, j]", 'invoke("prefetch_f32_l1", t[0, j])'),
        "an instruction uses 't' or 'B'",
    ),
    ("store_in", ("t", "B"), ROWS.replace("A[i, j]", "B[i, j]"), "'B' is read"),
    ("store_in", ("t", "B"), ROWS.replace("u[0] = 0.0", "B[i, 0] = 0.0"), "not all that writes"),
    ("store_in", ("u", "B"), ROWS, "an element of 'u' becomes several"),
    (
        "store_in",
        ("t", "B"),
        ROWS.replace("B[i, k] = u", "u[0] = u").replace("u[0] = 0.0", "B[i, 0] = 0.0"),
        "the last use of 't' is not all that writes 'B'",
    ),
    (
        "store_in",
        ("t", "B"),
        ROWS.replace("/ t[0, k]", "/ (t[0, k] + t[0, 7 - k])"),
        "an element is made of several of 't'",
    ),
    (
        "store_in",
        ("t", "B"),
        ROWS.replace("B[i, k] =", "if k < n:\n                    B[i, k] ="),
        "not all elements of 't' are used",
    ),
    ("store_in", ("t", "B"), ROWS.replace("k in range(8)", "k in range(7)"), "does not walk along"),
    ("store_in", ("t", "B"), ROWS.replace("t[0, k]", "t[0, 7 - k]"), "does not walk along"),
    ("store_in", ("t", "B"), ROWS.replace("B[i, k]", "B[i, 7 - k]"), "do not lie as those of 't'"),
    ("store_in", ("t", "B"), ROWS.replace("B[i, k]", "B[k, k]"), "do not lie as those of 't'"),
    ("store_in", ("t", "B"), ROWS.replace("u[0] / t[0, k]", "t[0, k] * u[0]"), "be accumulated"),
    ("prefetch", ("i", "j", "A", 0, 1, 3), LINES, "there is no level 3"),
    ("prefetch", ("q", "j", "A", 0, 1, 1), LINES, "there is no loop 'q'"),
    ("prefetch", ("i", "q", "A", 0, 1, 1), LINES, "there is no loop 'q'"),
    ("prefetch", ("j", "i", "A", 0, 1, 1), LINES, "loop 'i' is not in 'j'"),
    ("prefetch", ("h", "m", "A", 0, 1, 1), LINES, "how often 'm' runs is not known"),
    ("prefetch", ("h", "m", "A", 0, 1, 1), LINES.replace("range(n)", "range(0)"), "'m' never runs"),
    ("prefetch", ("i", "j", "B", 0, 1, 1), LINES, "there is no input 'B' of known sizes"),
    (
        "prefetch",
        ("i", "j", "S", 0, 1, 1),
        LINES.replace("S: bf16", "S: f16"),
        "there is no input 'S' of known sizes, and of a type",
    ),
    ("prefetch", ("i", "j", "F", 0, 1, 1), LINES, "does not read lines of 'F' in one piece"),
    ("prefetch", ("i", "j", "W", 3, 1, 1), LINES, "'W' has no dimension 3"),
    ("prefetch", ("i", "j", "A", 0, 1, 1), LINES, "does not read lines of 'A' in one piece"),
    ("prefetch", ("i", "j", "S", 0, 1, 1), LINES, "does not read lines of 'S' in one piece"),
    ("prefetch", ("i", "j", "T", 0, 1, 1), LINES, "'j' reads 'T' at 2 places"),
    (
        "prefetch",
        ("h", "m", "W", 0, 1, 1),
        LINES.replace("range(n)", "range(3)"),
        "'h' reads 'W' at 0 places",
    ),
    (
        "prefetch",
        ("i", "j", "W", 0, 1, 2),
        LINES.replace("m in", "j_l2 in"),
        "the name 'j_l2' is taken",
    ),
    ("prefetch_parts", ("i", "j", "j", "W", 1, 3), LINES, "there is no level 3"),
    ("prefetch_parts", ("i", "j", "j", "W", 0, 1), LINES, "0 iterations ahead are not later"),
    ("prefetch_parts", ("q", "j", "j", "W", 1, 1), LINES, "there is no loop 'q'"),
    ("prefetch_parts", ("j", "i", "i", "W", 1, 1), LINES, "loop 'i' is not in 'j'"),
    ("prefetch_parts", ("i", "j", "i", "W", 1, 1), LINES, "loop 'i' is not in 'j'"),
    ("prefetch_parts", ("h", "h", "m", "F", 1, 1), LINES, "how often 'm' runs is not known"),
    ("prefetch_parts", ("j", "j", "k", "A", 1, 1), BETWEEN, "how often 'j' runs 'k' is not known"),
    ("prefetch_parts", ("i", "j", "j", "B", 1, 1), LINES, "there is no input 'B' of a type"),
    ("prefetch_parts", ("i", "j", "j", "T", 1, 1), LINES, "'j' reads 'T' at 2 places"),
    (
        "prefetch_parts",
        ("i", "j", "j", "S", 1, 1),
        LINES,
        "does not read lines of 'S' in one piece",
    ),
    ("prefetch_parts", ("i", "j", "k", "W", 1, 1), LINES, "'k' runs 32 times, for 1 lines"),
    (
        "prefetch_parts",
        ("i", "j", "j", "W", 1, 1),
        LINES.replace("W[i, j, k]", "W[0, j, k]"),
        "all iterations of 'i' read the same of 'W'",
    ),
    (
        "prefetch_parts",
        ("i", "j", "j", "W", 1, 2),
        LINES.replace("m in", "j_r2 in"),
        "the name 'j_r2' is taken",
    ),
    ("transform_layout", ("A", (0,)), TWO, "there is no intermediate 'A'"),
    ("transform_layout", ("t", (0, 1)), TWO, "does not permute 1 dimensions"),
    ("transform_layout", ("t", (0, 1), (2, 2)), TWO, "are not the factors of 1 dimensions"),
    ("transform_layout", ("t", (0,), (0,)), TWO, "are not the factors of 1 dimensions"),
    ("transform_layout", ("t", (1, 0)), INVOKED, "an instruction uses 't'"),
    ("tabulate", ("q", "q // 2", "t"), COPY, "there is no loop 'q'"),
    ("tabulate", ("j", "i + j", "t"), COPY, "reads more than loop 'j' and sizes"),
    ("tabulate", ("j", "j // 2", "t"), COPY, "'j // 2' is not found in loop 'j'"),
    (
        "tabulate",
        ("j", "j // (n - 1)", "t"),
        COPY.replace("A[i, j]", "A[i, j // (n - 1)]"),
        "'n - 1' may be no divisor",
    ),
    (
        "tabulate",
        ("j", "j + 1", "A"),
        COPY.replace("A[i, j]", "A[i, j + 1]"),
        "the name 'A' is taken",
    ),
    ("roll", ("A", "y", 0, 1), ROLLED, "there is no intermediate 'A'"),
    ("roll", ("t", "q", 0, 1), ROLLED, "there is no loop 'q'"),
    ("roll", ("t", "y", 0, 1), ROLLED.replace("y in range", "y in parallel"), "already parallel"),
    ("roll", ("t", "i", 0, 1), ROLLED, "'t' is not directly inside of loop 'i'"),
    ("roll", ("t", "y", 1, 1), ROLLED, "'t' has no dimension 1 of a known length"),
    ("roll", ("t", "y", -1, 1), ROLLED, "'t' has no dimension -1 of a known length"),
    ("roll", ("t", "y", 0, 1), ROLLED.replace("f32[3]", "f32[n]"), "of a known length"),
    ("roll", ("t", "y", 0, 3), ROLLED, "3 of 3 rows apart have none in common"),
    ("roll", ("t", "y", 0, 0), ROLLED, "0 of 3 rows apart have none in common"),
    ("roll", ("t", "y", 0, 2), ROLLED, ONCE),
    ("roll", ("t", "k", 0, 1), INVOKED_EACH, "an instruction uses 't'"),
]
