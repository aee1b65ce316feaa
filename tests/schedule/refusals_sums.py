"""Refusals of the primitives that schedule reductions and products: cases of test_refusals.py."""

from dlc.schedule.instruction import declare
from tests.schedule.refused import COPY, INVOKED, KINDS, RUNNING, SUM

declare(
    "add_4xf32",
    "def add_4xf32(b: f32[4], *, a: f32[4]):\n    for k in range(4):\n        a[k] = a[k] + b[k]\n",
)
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
DOT = """
    def f(A: u8[9, 4], W: i8[4], *, C: i32[9]):
        for i in range(9):
            C[i] = i32(0)
            for j in range(4):
                C[i] += i32(A[i, j]) * i32(W[j])
"""

SUMS = [
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
]
