"""Each refusal of each primitive has a case here, and says why."""

import re

import pytest

import dlc.schedule.primitives  # noqa: F401 - registers the primitives
from dlc.core.errors import ScheduleError
from dlc.schedule.instruction import declare
from dlc.schedule.primitive import PRIMITIVES
from tests.schedule.data import parse
from tests.schedule.refusals_gpu import REFUSED

declare(
    "add_4xf32",
    "def add_4xf32(b: f32[4], *, a: f32[4]):\n    for k in range(4):\n        a[k] = a[k] + b[k]\n",
)
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
WINDOWS = """
    def f(A: f32[9], w: f32[3], *, B: f32[7]):
        for x in range(7):
            B[x] = 0.0
            for k in range(3):
                B[x] += A[x + k]
"""
SCALED = """
    def f(A: f32[6, 4], w: f32[6, 4, 8], c: f32[6, 8], *, s: f32[8]):
        for k in range(6):
            p = alloc(f32[8], "local")
            for l in range(8):
                p[l] = 0.0
            for i in range(4):
                for j in range(8):
                    p[j] += A[k, i] * (w[k, i, j] * c[k, j])
            for m in range(8):
                s[m] += p[m]
"""
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
SCATTERED = """
    def f(n: size, I: i64[n, 4], A: f32[n, 4], *, B: f32[6], C: f32[6, 4]):
        for i in range(n):
            for j in range(4):
                B[index(I[i, j])] += A[i, j]
        for h in range(n):
            for k in range(4):
                B[k // 2] += A[h, k]
        for u in range(n):
            for v in range(4):
                C[index(I[u, v]), v] = A[u, v]
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
DOT = """
    def f(A: u8[9, 4], W: i8[4], *, C: i32[9]):
        for i in range(9):
            C[i] = i32(0)
            for j in range(4):
                C[i] += i32(A[i, j]) * i32(W[j])
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
IN_PLACE = """
    @in_place(B="A")"""
CASES = [
    # split, fuse
    ("split", ("q", 2, ("a", "b")), COPY, "there is no loop 'q'"),
    ("split", ("i", 2, ("a", "b")), KINDS, "loop 'i' is already parallel"),
    ("split", ("i", 0, ("a", "b")), COPY, "factor 0 is below 1"),
    ("split", ("i", 2, ("a", "a")), COPY, "the name 'a' is taken"),
    ("split", ("i", 2, ("j", "b")), COPY, "the name 'j' is taken"),
    ("split", ("i", 2, ("n", "b")), COPY, "the name 'n' is taken"),
    ("split", ("i", 2, ("A", "b")), COPY, "the name 'A' is taken"),
    ("split", ("i", 2, ("t", "b")), TWO, "the name 't' is taken"),
    ("split", ("i", 2, ("range", "b")), COPY, "'range' cannot be a name"),
    ("fuse", ("i", "q", "x"), COPY, "there is no loop 'q'"),
    ("fuse", ("i", "j", "x"), SUM, "'j' is not the whole body of 'i'"),
    ("fuse", ("i", "j", "x"), KINDS, "loop 'i' is already parallel"),
    ("fuse", ("j", "k", "x"), INSIDE, "loop 'j' is already vectorize"),
    ("fuse", ("i", "j", "A"), COPY, "the name 'A' is taken"),
    # reorder
    ("reorder", (("i", "q"),), COPY, "there is no loop 'q'"),
    ("reorder", (("i", "i"),), COPY, "a loop is named twice"),
    ("reorder", (("j", "i"),), SUM, "'j' is not perfectly nested with 'i'"),
    ("reorder", (("j", "i"),), RUNNING, "one element of 's'"),
    ("reorder", (("j", "i"),), KINDS, "already parallel"),
    # unroll, vectorize, parallel
    ("unroll", ("i",), COPY, "runs n times"),
    ("unroll", ("j",), KINDS, "already vectorize"),
    ("vectorize", ("q",), COPY, "there is no loop 'q'"),
    ("vectorize", ("i",), COPY, "runs n times"),
    ("vectorize", ("k",), INSIDE, "inside the vector loop 'j'"),
    ("vectorize", ("i",), INSIDE, "the vectorize loop 'j' is inside 'i'"),
    (
        "vectorize",
        ("i",),
        """
        def f(A: f32[4], *, B: f32[4]):
            for i in range(4):
                t = alloc(f32[1], "local")
                t[0] = A[i]
                B[i] = t[0]
        """,
        "buffer 't' is allocated inside 'i'",
    ),
    ("vectorize", ("k",), INVOKED, "the instruction 'dot_4xi8_i32' is inside 'k'"),
    ("vectorize", ("j",), RUNNING, "one element of 's'"),
    ("vectorize", ("j",), SCATTERED, "some iterations may use one element of 'B'"),
    ("vectorize", ("k",), SCATTERED, "some iterations may use one element of 'B'"),
    ("reorder", (("v", "u"),), SCATTERED, "one element of 'C'"),
    ("parallel", ("u",), SCATTERED, "one element of 'C'"),
    ("parallel", ("i",), SCATTERED, "one element of 'B'"),
    ("parallel", ("j",), SUM, "one element of 's'"),
    ("parallel", ("k",), INSIDE, "inside the vector loop 'j'"),
    ("parallel", ("i",), KINDS, "already parallel"),
    (
        "parallel",
        ("i",),
        """
        def f(A: f32[4], *, B: f32[4]):
            t = alloc(f32[4], "register")
            for i in range(4):
                t[i] = A[i]
                B[i] = t[i]
        """,
        "the register buffer 't' would be shared",
    ),
    # partition
    ("partition", ("q", 2, "_t"), COPY, "there is no loop 'q'"),
    ("partition", ("i", "m", "_t"), COPY, "reads something that is no size variable"),
    ("partition", ("i", 3, "_t"), COPY, "3 of the n iterations of 'i' are not surely there"),
    ("partition", ("j", 7, "_t"), COPY, "7 of the 6 iterations"),
    ("partition", ("i", "n - 4", "_t"), COPY, "are not surely there"),
    ("partition", ("j", 6, "_t"), COPY, "leave an empty part"),
    ("partition", ("j", 0, "_t"), COPY, "leave an empty part"),
    ("partition", ("i", "n // 2", ""), COPY, "the name 'i' is taken"),
    # annotate, set_scope
    ("annotate", ("q", "x", 1), COPY, "there is no loop 'q'"),
    ("annotate", ("i", "a b", 1), COPY, "'a b' is not a word"),
    ("set_scope", ("A", "local"), COPY, "there is no intermediate 'A'"),
    ("set_scope", ("t", "moon"), TWO, "there is no scope 'moon'"),
    ("set_scope", ("t", "register"), TWO, "has the shape f32[n], not a constant"),
    # compute_inline
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
    # guard_sum
    ("guard_sum", ("B",), COPY, "'B' is accumulated in 0 places, not in one"),
    ("guard_sum", ("s",), SUM, "the summands of 's' have no condition"),
    (
        "guard_sum",
        ("s",),
        SUM.replace("A[i, j]", "(A[i, j] if A[i, j] < 1.0 else 1.0)"),
        "the summands of 's' have no condition",
    ),
    (
        "guard_sum",
        ("s",),
        SUM.replace("A[i, j]", "(A[i, j] if s[i] < 1.0 else 0.0)"),
        "the condition of 's' reads the sum",
    ),
    # compute_at
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
    # duplicate
    ("duplicate", ("A", "j", "_t"), TWO, "there is no intermediate 'A'"),
    ("duplicate", ("t", "q", "_t"), TWO, "there is no loop 'q'"),
    ("duplicate", ("t", "i", "_t"), TWO, "'i' does not follow the nests of 't'"),
    ("duplicate", ("t", "k", "_t"), INVOKED, "an instruction uses 't'"),
    (
        "duplicate",
        ("t", "j", "_t"),
        TWO.replace("t[i] = A[i] * 2.0", "t[i] = A[i]\n            C[i] = 0.0"),
        "together with other buffers",
    ),
    (
        "duplicate",
        ("t", "k", "_t"),
        READ_TWICE.replace("A[i] * 2.0", "B[i]"),
        "'B', which it needs, is written in between",
    ),
    ("duplicate", ("t", "j", ""), TWO, "the name 'i' is taken"),
    # decompose_reduction
    ("decompose_reduction", ("s", "q"), SUM, "there is no loop 'q'"),
    ("decompose_reduction", ("s", "j"), SUM, "holds no first store and accumulation of 's'"),
    ("decompose_reduction", ("B", "i"), COPY, "holds no first store and accumulation of 'B'"),
    (
        "decompose_reduction",
        ("s", "i"),
        SUM.replace("s[i] += A[i, j]", "s[i] += A[i, j]\n            s[i] = 1.0"),
        "stored anew after an accumulation",
    ),
    (
        "decompose_reduction",
        ("C", "k"),
        INVOKED.replace("C[k] = i32(0)", "C[k] = i32(0)\n            C[k] += i32(1)"),
        "an instruction uses 'C'",
    ),
    (
        "decompose_reduction",
        ("s", "i"),
        SUM.replace("s: f32[n]", "s: f32[n], z: f32[n]").replace(
            "s[i] = 0.0", "s[i] = z[i]\n            z[i] = 2.0"
        ),
        "the first value depends on what the loop writes",
    ),
    (
        "decompose_reduction",
        ("s", "i"),
        SUM.replace("s[i]", "s[0]"),
        "may use one element of 's'",
    ),
    (
        "decompose_reduction",
        ("s", "i"),
        SUM.replace("for j", "for i_init").replace("j]", "i_init]"),
        "the name 'i_init' is taken",
    ),
    (
        "decompose_reduction",
        ("t", "i"),
        """
        def f(A: f32[4, 6], *, s: f32[4]):
            for i in range(4):
                t = alloc(f32[1], "local")
                t[0] = 0.0
                for j in range(6):
                    t[0] += A[i, j]
                s[i] = t[0]
        """,
        "'t' is allocated inside of 'i'",
    ),
    # cache_load
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
    # cache_read
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
    # cache_write
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
    # rfactor
    ("rfactor", ("s", "q", "p"), SUM, "there is no loop 'q'"),
    ("rfactor", ("s", "i", "p"), SUM, "something else than one accumulation of 's'"),
    ("rfactor", ("s", "j", "p"), RUNNING, "something else than one accumulation of 's'"),
    ("rfactor", ("B", "j", "p"), COPY, "something else than one accumulation of 'B'"),
    ("rfactor", ("s", "j", "A"), SUM, "the name 'A' is taken"),
    (
        "rfactor",
        ("s", "i", "p"),
        "def f(A: f32[4], *, s: f32[4]):\n    for i in range(4):\n        s[i] += A[i]\n",
        "'i' chooses the element of 's'",
    ),
    (
        "rfactor",
        ("s", "j", "p"),
        "def f(*, s: f32[4]):\n    for j in range(3):\n        s[0] += s[j]\n",
        "read inside of its own accumulation",
    ),
    (
        "rfactor",
        ("s", "j", "p"),
        """
        def f(A: f32[4, 6], *, s: f32[4]):
            for i in vectorize(4):
                s[i] = 0.0
                for j in range(6):
                    s[i] += A[i, j]
        """,
        "inside the vector loop 'i'",
    ),
    (
        "rfactor",
        ("s", "k", "p"),
        """
        def f(n: size, A: f32[n], *, s: f32[n]):
            for i in range(8):
                for k in range(3):
                    if i + k < n:
                        s[i] += A[i + k]
        """,
        "a guard may skip all summands of an element outside of 's'",
    ),
    # store_in
    ("store_in", ("q", "B"), ROWS, "there is no intermediate 'q'"),
    ("store_in", ("t", "A"), ROWS, "there is no output 'A'"),
    ("store_in", ("t", "B"), ROWS.replace('"local"', '"register"'), "'t' is no memory"),
    ("store_in", ("t", "B"), ROWS.replace("*, B: f32", "*, B: f64"), "differ in type"),
    ("store_in", ("t", "B"), IN_PLACE + ROWS, "'B' shares the memory of an input"),
    (
        "store_in",
        ("t", "B"),
        ROWS.replace("t[0, j] = A[i, j]", 'invoke("prefetch_l1", t[0, j])'),
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
    # prefetch
    ("prefetch", ("i", "j", "A", 0, 1, 3), LINES, "there is no level 3"),
    ("prefetch", ("q", "j", "A", 0, 1, 1), LINES, "there is no loop 'q'"),
    ("prefetch", ("i", "q", "A", 0, 1, 1), LINES, "there is no loop 'q'"),
    ("prefetch", ("j", "i", "A", 0, 1, 1), LINES, "loop 'i' is not in 'j'"),
    ("prefetch", ("h", "m", "A", 0, 1, 1), LINES, "how often 'm' runs is not known"),
    ("prefetch", ("i", "j", "B", 0, 1, 1), LINES, "there is no input 'B' of bf16"),
    ("prefetch", ("i", "j", "F", 0, 1, 1), LINES, "there is no input 'F' of bf16"),
    ("prefetch", ("i", "j", "W", 3, 1, 1), LINES, "'W' has no dimension 3"),
    ("prefetch", ("i", "j", "A", 0, 1, 1), LINES, "does not read lines of 'A' in one piece"),
    ("prefetch", ("i", "j", "S", 0, 1, 1), LINES, "does not read lines of 'S' in one piece"),
    ("prefetch", ("i", "j", "T", 0, 1, 1), LINES, "'j' reads 'T' at 2 places"),
    (
        "prefetch",
        ("i", "j", "W", 0, 1, 2),
        LINES.replace("m in", "j_l2 in"),
        "the name 'j_l2' is taken",
    ),
    # factor_out
    ("factor_out", ("q",), SCALED, "there is no intermediate 'q'"),
    ("factor_out", ("p",), SCALED.replace("0.0", "1.0"), "no single sum that begins at 0"),
    ("factor_out", ("p",), SCALED.replace("p[j] += A", "p[j] = A"), "no single sum that begins"),
    ("factor_out", ("p",), SCALED.replace("s[m] += p", "s[m] = p"), "else than one sum"),
    ("factor_out", ("p",), SCALED.replace("+= p[m]", "+= p[m] * p[m]"), "else than one sum"),
    ("factor_out", ("p",), SCALED.replace("+= p[m]", "+= p[7 - m]"), "not read as it is added"),
    (
        "factor_out",
        ("p",),
        SCALED.replace("p[j] += A", "p[j // 2] += A").replace("s[m] += p[m]", "s[m] += p[m // 2]"),
        "different iterations may use one element of 'p'",
    ),
    (
        "factor_out",
        ("p",),
        SCALED.replace("p[j] += A", "if j < 5:\n                        p[j] += A"),
        "added up under a guard",
    ),
    ("factor_out", ("p",), SCALED.replace("c[k, j]", "c[i, j]"), "no factor of inputs in common"),
    (
        "factor_out",
        ("p",),
        SCALED.replace("A[k, i] * ", "").replace("w[k, i, j] * ", ""),
        "no factor of inputs in common",
    ),
    ("factor_out", ("p",), SCALED.replace("c[k, j]", "s[j]"), "no factor of inputs in common"),
    # slide
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
    # subtotal
    ("subtotal", ("s", "q", "p"), SUM, "there is no loop 'q'"),
    ("subtotal", ("B", "i", "p"), KINDS, "is already parallel"),
    ("subtotal", ("s", "i", "p"), SUM, "something else than one accumulation of 's'"),
    ("subtotal", ("s", "j", "p"), RUNNING, "something else than one accumulation of 's'"),
    ("subtotal", ("B", "j", "p"), COPY, "something else than one accumulation of 'B'"),
    ("subtotal", ("s", "j", "A"), SUM, "the name 'A' is taken"),
    (
        "subtotal",
        ("s", "j", "p"),
        "def f(*, s: f32[4]):\n    for j in range(3):\n        s[0] += s[j]\n",
        "read inside of its own accumulation",
    ),
    (
        "subtotal",
        ("s", "k", "p"),
        "def f(A: f32[4, 4], *, s: f32[2]):\n    for k in range(4):\n"
        "        for i in range(4):\n            s[i // 2] += A[k, i]\n",
        "different iterations may use one element of 's'",
    ),
    (
        "subtotal",
        ("s", "o", "p"),
        "def f(A: f32[2, 4, 4], *, s: f32[4]):\n    for o in range(2):\n"
        "        for k in range(4):\n            for i in range(4):\n"
        "                if i <= k:\n                    s[i] += A[o, k, i]\n",
        "depends on a summand or on data",
    ),
    (
        "subtotal",
        ("s", "k", "p"),
        "def f(A: f32[4, 4], *, s: f32[4]):\n    for k in range(4):\n"
        "        for i in range(4):\n            if 0.0 < A[0, i]:\n"
        "                s[i] += A[k, i]\n",
        "depends on a summand or on data",
    ),
    # transform_layout
    ("transform_layout", ("A", (0,)), TWO, "there is no intermediate 'A'"),
    ("transform_layout", ("t", (0, 1)), TWO, "does not permute 1 dimensions"),
    ("transform_layout", ("t", (0, 1), (2, 2)), TWO, "are not the factors of 1 dimensions"),
    ("transform_layout", ("t", (0,), (0,)), TWO, "are not the factors of 1 dimensions"),
    ("transform_layout", ("t", (1, 0)), INVOKED, "an instruction uses 't'"),
    # reverse_compute_at
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
    # pad_einsum
    ("pad_einsum", ("s", "q", 4), SUM, "there is no loop 'q'"),
    ("pad_einsum", ("s", "j", 1), SUM, "multiple 1 is below 2"),
    ("pad_einsum", ("B", "j", 4), COPY, "something else than one sum into 'B'"),
    ("pad_einsum", ("s", "i", 4), SUM, "something else than one sum into 's'"),
    ("pad_einsum", ("s", "j", 4), SUM, "'A' is no intermediate"),
    ("pad_einsum", ("s", "j", 4), SUM.replace("+= A[i, j]", "+= A[i, j] + 1.0"), "no product"),
    (
        "pad_einsum",
        ("s", "k", 4),
        """
        def f(A: f32[5], *, s: f32[1]):
            t = alloc(f32[6], "local")
            for i in range(6):
                t[i] = A[0]
            s[0] = 0.0
            for k in range(5):
                s[0] += t[k + 1]
        """,
        "does not walk along a whole dimension of 't'",
    ),
    (
        "pad_einsum",
        ("s", "k", 4),
        """
        def f(A: f32[5], *, s: f32[1]):
            t = alloc(f32[5], "local")
            for i in range(5):
                t[i] = A[0]
            s[0] = 0.0
            for k in range(5):
                s[0] += t[k] * A[0]
        """,
        "'A' would not be 0 behind its end",
    ),
    (
        "pad_einsum",
        ("C", "k", 4),
        """
        def f(A: u8[6, 4], W: i8[4], *, C: i32[8], D: i32[1]):
            t = alloc(u8[6, 4], "local")
            for i in range(6):
                for j in range(4):
                    t[i, j] = A[i, j]
            invoke("dot_4xi8_i32", t[0, 0], W[0], D[0])
            for k in range(6):
                C[0] += i32(t[k, 0])
        """,
        "an instruction uses 't'",
    ),
    (
        "pad_einsum",
        ("s", "k", 4),
        """
        def f(A: f32[5], *, s: f32[1]):
            t = alloc(f32[5], "local")
            for t_pad_0 in range(5):
                t[t_pad_0] = A[0]
            s[0] = 0.0
            for k in range(5):
                s[0] += t[k] * t[k]
        """,
        "the name 't_pad_0' is taken",
    ),
    # tensorize
    (
        "tensorize",
        ("k", "add_4xf32"),
        "def f(*, C: f32[9]):\n    for k in range(4):\n        C[k] = C[k] + C[k + 4]\n",
        "'C' is both written and read",
    ),
    ("tensorize", ("q", "dot_4xi8_i32"), DOT, "there is no loop 'q'"),
    ("tensorize", ("j", "nop"), DOT, "there is no instruction 'nop'"),
    ("tensorize", ("j", "dot_4xi8_i32"), DOT.replace("range(4)", "range(3)"), "range(3)"),
    ("tensorize", ("j", "dot_4xi8_i32"), DOT.replace("range(4)", "parallel(4)"), "parallel(4)"),
    ("tensorize", ("i", "dot_4xi8_i32"), DOT, "is not what 'dot_4xi8_i32' does"),
    ("tensorize", ("j", "dot_4xi8_i32"), DOT.replace("W[j]", "W[3 - j]"), "in another order"),
    ("tensorize", ("j", "dot_4xi8_i32"), DOT.replace("W[j]", "A[i, j]"), "holds u8"),
    ("tensorize", ("j", "dot_4xi8_i32"), DOT.replace("* i32", "+ i32"), "another formula"),
    (
        "tensorize",
        ("j", "dot_4xi8_i32"),
        DOT.replace("A: u8[9, 4]", "A: u8[4, 9]").replace("A[i, j]", "A[j, i]"),
        "'A' has no such region",
    ),
    (
        "tensorize",
        ("j", "dot_4xi8_i32"),
        DOT.replace("W: i8[4]", "W: i8[()]").replace("W[j]", "W[()]"),
        "'W' has no such region",
    ),
    *REFUSED,
]


@pytest.mark.parametrize(
    ("name", "args", "text", "reason"),
    CASES,
    ids=[f"{c[0]}-{i}" for i, c in enumerate(CASES)],
)
def test_a_refusal_says_why(name, args, text, reason):
    func = parse(text)
    with pytest.raises(ScheduleError, match=re.escape(reason)) as caught:
        PRIMITIVES[name](func, *args)
    assert caught.value.fields["primitive"] == name


def test_every_primitive_is_refused_at_least_twice():
    counts = {name: sum(c[0] == name for c in CASES) for name in PRIMITIVES}
    assert all(n >= 2 for n in counts.values()), counts


def test_a_hint_lists_what_there_is():
    with pytest.raises(ScheduleError) as caught:
        PRIMITIVES["split"](parse(COPY), "q", 2, ("a", "b"))
    assert caught.value.hint == "the loops are i, j"
    with pytest.raises(ScheduleError) as caught:
        PRIMITIVES["compute_inline"](parse(TWO), "z")
    assert caught.value.hint == "the intermediates are t"
