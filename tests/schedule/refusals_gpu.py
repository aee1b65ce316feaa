"""Refusals of the primitives that schedule for GPUs: cases of test_refusals.py."""

SUM = """
    def f(A: f32[6, 8], W: f32[8, 5], *, C: f32[6, 5]):
        for i in range(6):
            for j in range(5):
                C[i, j] = 0.0
        for p in range(6):
            for k in range(8):
                for q in range(5):
                    if p + q < 9:
                        C[p, q] += A[p, k] * W[k, q]
"""
COMMON = SUM.replace("p + q < 9", "q < 4")
COPY = """
    def f(n: size, A: f32[n, 6], *, B: f32[n, 6]):
        for i in range(n):
            for j in range(6):
                B[i, j] = A[i, j]
"""
RUNNING = COPY.replace("A[i, j]", "A[i, j] + B[0, 0]")
LANES = COPY.replace("for i in range", "for i in block").replace("j in range", "j in vectorize")
KEPT = """
    def f(A: f32[4, 8], *, B: f32[4, 8]):
        t = alloc(f32[4, 8], "shared")
        for i in range(4):
            for j in range(8):
                t[i, j] = A[i, j]
        for k in range(4):
            for l in vectorize(8):
                for m in range(1):
                    B[k, l] = t[k, l + m]
"""
REFUSED = [
    ("bind", ("i", "warp"), COPY, "there is no kind 'warp'"),
    ("bind", ("z", "block"), COPY, "there is no loop 'z'"),
    ("bind", ("i", "thread"), COPY, "runs n times"),
    ("bind", ("i", "block"), RUNNING, "one element of 'B'"),
    ("bind", ("j", "thread"), RUNNING, "one element of 'B'"),
    ("bind", ("j", "block"), COPY, "is inside the range 'i'"),
    ("bind", ("j", "thread"), LANES, "already vectorize"),
    ("bind", ("m", "thread"), KEPT, "inside the vectorize loop 'l'"),
    ("bind", ("i", "block"), KEPT, "the shared buffer 't' would belong to many blocks"),
    ("distribute", ("i", 0, ("b", "t")), COPY, "0 threads are fewer than 1"),
    ("distribute", ("j", 32, ("b", "t")), COPY, "inside of 'i'"),
    ("distribute", ("i", 32, ("b", "b")), COPY, "the name 'b' is taken"),
    ("distribute", ("i", 32, ("b", "t")), RUNNING, "one element of 'B'"),
    ("distribute", ("i", 32, ("b", "t")), LANES, "already block"),
    ("vectorize", ("i",), LANES.replace("vectorize", "thread").replace("block(n)", "range(4)"),
     "the thread loop 'j' is inside 'i'"),
    ("fuse_dims", ("q", 0), KEPT, "there is no intermediate 'q'"),
    ("fuse_dims", ("t", 1), KEPT, "no dimensions 1 and 2"),
    ("cache_factor", ("C", 0, "z", ("k",), "a", "local"), SUM, "there is no loop 'z'"),
    ("cache_factor", ("C", 0, "p", ("k",), "a", "disk"), SUM, "there is no scope 'disk'"),
    ("cache_factor", ("C", 2, "p", ("k",), "a", "local"), SUM, "there is no side 2"),
    ("cache_factor", ("C", 0, "p", ("z",), "a", "local"), SUM, "there is no loop 'z' inside"),
    ("cache_factor", ("C", 1, "p", ("k",), "a", "local"), SUM, "depends on 'q'"),
    ("cache_factor", ("C", 0, "i", ("j",), "a", "local"), SUM, "holds no single sum into 'C'"),
    ("cache_factor", ("C", 0, "p", ("k",), "W", "local"), COMMON, "the name 'W' is taken"),
    ("cache_factor", ("C", 0, "p", ("k",), "a", "local"),
     
     COMMON.replace("q < 4", "k + q < 9"), "reads more than the axes"),
    ("cache_factor", ("C", 0, "p", ("k",), "a", "local"),
     COMMON.replace("A[p, k] *", "C[p, k] *"), "loop 'p' writes 'C'"),
    ("cache_factor", ("C", 0, "p", ("k",), "a", "local"),
     COMMON.replace("A[p, k] *", "A[p, k] +"), "is no product"),
]  # fmt: skip
