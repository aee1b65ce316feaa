"""Refusals of the primitives that schedule loops: cases of test_refusals.py."""

from tests.schedule.refused import COPY, INSIDE, INVOKED, KINDS, READ_TWICE, RUNNING, SUM, TWO

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

LOOPS = [
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
    ("reorder", (("i", "q"),), COPY, "there is no loop 'q'"),
    ("reorder", (("i", "i"),), COPY, "a loop is named twice"),
    ("reorder", (("j", "i"),), SUM, "'j' is not perfectly nested with 'i'"),
    ("reorder", (("j", "i"),), RUNNING, "one element of 's'"),
    ("reorder", (("j", "i"),), KINDS, "already parallel"),
    ("reorder", (("v", "u"),), SCATTERED, "one element of 'C'"),
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
    ("collapse", (), INVOKED, "the function has instructions"),
    ("collapse", (), SUM, "all loops and dimensions are told apart"),
    ("vectorize", ("k",), INVOKED, "the instruction 'dot_4xi8_i32' is inside 'k'"),
    ("vectorize", ("j",), RUNNING, "one element of 's'"),
    ("vectorize", ("j",), SCATTERED, "some iterations may use one element of 'B'"),
    ("vectorize", ("k",), SCATTERED, "some iterations may use one element of 'B'"),
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
    ("partition", ("q", 2, "_t"), COPY, "there is no loop 'q'"),
    ("partition", ("i", "m", "_t"), COPY, "reads something that is no size variable"),
    ("partition", ("i", 3, "_t"), COPY, "3 of the n iterations of 'i' are not surely there"),
    ("partition", ("j", 7, "_t"), COPY, "7 of the 6 iterations"),
    ("partition", ("i", "n - 4", "_t"), COPY, "are not surely there"),
    ("partition", ("j", 6, "_t"), COPY, "leave an empty part"),
    ("partition", ("j", 0, "_t"), COPY, "leave an empty part"),
    ("partition", ("i", "n // 2", ""), COPY, "the name 'i' is taken"),
    ("once", ("q",), COPY, "there is no loop 'q'"),
    ("once", ("i",), COPY, "loop 'i' runs n times, not surely at most once"),
    ("once", ("i",), KINDS, "loop 'i' is already parallel"),
    ("annotate", ("q", "x", 1), COPY, "there is no loop 'q'"),
    ("annotate", ("i", "a b", 1), COPY, "'a b' is not a word"),
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
]
