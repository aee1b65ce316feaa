"""Refusals of the primitives that schedule for GPUs: cases of test_refusals.py."""

from tests.schedule.refused import COPY

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
TAILS = """
    def f(n: size, A: f32[8], *, B: f32[n]):
        t = alloc(f32[8], "local")
        for i in range(8):
            if i < n:
                t[i] = 0.0
        for j in range(8):
            if j < n:
                t[j] += A[j]
        for l in range(8):
            if l < n:
                B[l] = t[l]
"""
CHUNKS = """
    def f(A: f32[6, 64], *, B: f32[6, 64]):
        for k in range(6):
            t = alloc(f32[64], "shared")
            for i in thread(64):
                t[i] = A[k, i]
            for j in thread(64):
                B[k, j] = t[63 - j]
"""
PARTS = """
    def f(A: f32[4, 8], *, B: f32[4, 8]):
        for i in range(4):
            for j in range(3):
                B[i, j] = A[i, j]
            for k in range(5):
                B[i, k + 3] = 1.0
"""
ROOMS = """
    def f(A: f32[3, 4, 8], *, B: f32[3, 4]):
        for h in range(3):
            for i in range(4):
                t = alloc(f32[2], "local")
                for j in range(2):
                    t[j] = A[h, i, j]
                B[h, i] = t[0] * t[1]
"""
EDGES = """
    def f(A: f32[64], *, B: f32[72]):
        for i in range(8):
            B[i + 64] = 0.0
        for b in block(1):
            for t in thread(64):
                B[b * 64 + t] = A[b * 64 + t]
"""
FOLLOWING = """
    def f(A: f32[8], *, B: f32[9], C: f32[8]):
        for i in range(8):
            B[i + 1] = A[i]
        for j in range(8):
            C[j] = B[j + 1]
        B[0] = 1.0
"""
SIDES = """
    def f(A: f32[6, 3], *, B: f32[6, 4]):
        for i in range(6):
            for j in range(1):
                B[i, 0] = 0.0
        for p in parallel(4):
            for k in range(3):
                B[p, k + 1] = A[p, k]
"""
UNEVEN = """
    def f(n: size, A: f32[5, n], B: f32[5], *, C: f32[n], D: f32[n]):
        for i in range(n):
            C[i] = 0.0
            for ko in range(2):
                a = alloc(f32[4], "local")
                for u in range(4):
                    if ko * 4 + u < 5:
                        a[u] = A[ko * 4 + u, i]
                b = alloc(f32[4], "local")
                for v in range(4):
                    if ko * 4 + v < 5:
                        b[v] = B[ko * 4 + v]
                for ki in range(4):
                    if ko * 4 + ki < 5:
                        C[i] += a[ki] * b[ki]
"""
_LAST = "C[i] += a[ki] * b[ki]"
SOFTMAX = """
    def f(x: f32[3, 6], v: f32[6, 2], *, out: f32[3, 2], more: f32[3, 1]):
        m = alloc(f32[3, 1], "local")
        e = alloc(f32[3, 6], "local")
        s = alloc(f32[3, 1], "local")
        w = alloc(f32[3, 6], "local")
        o = alloc(f32[3, 2], "local")
        for i in range(3):
            for u in range(1):
                m[i, u] = -inf
                for k in range(6):
                    m[i, u] = max(m[i, u], x[i, k])
        for a in range(3):
            for b in range(6):
                e[a, b] = exp(x[a, b] - m[a, 0])
        for c in range(3):
            for t in range(1):
                s[c, t] = 0.0
                for d in range(6):
                    s[c, t] += e[c, d]
        for g in range(3):
            for h in range(6):
                w[g, h] = e[g, h] / s[g, 0]
        for p in range(3):
            for q in range(2):
                o[p, q] = 0.0
                for r in range(6):
                    o[p, q] += w[p, r] * v[r, q]
        for y in range(3):
            for z in range(2):
                out[y, z] = o[y, z]
"""
GPU = [
    ("online_softmax", ("e", "kb", 2), SOFTMAX, "'e' is no sum of products"),
    ("online_softmax", ("q", "kb", 2), SOFTMAX, "'q' is no sum of products"),
    ("online_softmax", ("o", "kb", 0), SOFTMAX, "0 keys are fewer than 1"),
    ("online_softmax", ("o", "i", 2), SOFTMAX, "the name 'i' is taken"),
    (
        "online_softmax",
        ("o", "kb", 2),
        SOFTMAX.replace("for u in", "for i_now in").replace(", u]", ", i_now]"),
        "the name 'i_now' is taken",
    ),
    (
        "online_softmax",
        ("o", "kb", 2),
        SOFTMAX.replace("m = alloc(f32[3, 1]", "m = alloc(f32[4, 1]")
        .replace("for i in range(3)", "for i in range(4)")
        .replace("x: f32[3", "x: f32[4"),
        "'m' has other rows than 'o'",
    ),
    (
        "online_softmax",
        ("o", "kb", 2),
        SOFTMAX.replace("+= w[p, r]", "+= x[p, r]"),
        "sums nothing that a softmax weighs",
    ),
    (
        "online_softmax",
        ("o", "kb", 2),
        SOFTMAX.replace("out[y, z] = o[y, z]", "out[y, z] = o[y, z] + w[y, z]"),
        "'w' is read elsewhere",
    ),
    (
        "online_softmax",
        ("o", "kb", 2),
        SOFTMAX.replace(
            "                w[g, h]",
            "                more[g, 0] = 1.0\n                w[g, h]",
        ),
        "store something else, too, or stand apart",
    ),
    (
        "online_softmax",
        ("o", "kb", 2),
        SOFTMAX.replace(
            "        for p in",
            "        for n0 in range(3):\n            more[n0, 0] = 1.0\n        for p in",
        ),
        "store something else, too, or stand apart",
    ),
    ("share", ("z", "p"), SIDES, "there is no loop 'z'"),
    ("share", ("i", "z"), SIDES, "there is no loop 'z'"),
    ("share", ("i", "k"), SIDES, "'k' is not parallel"),
    ("share", ("j", "p"), SIDES, "'j' is inside of another"),
    ("share", ("i", "k"), SIDES.replace("parallel", "range").replace("range(3)", "parallel(3)"),
     "'k' is inside of another"),
    ("share", ("i", "p"), SIDES.replace("for i in range", "for i in parallel"), "is already"),
    ("share", ("i", "p"), SIDES.replace("(6)", "(n)").replace("A: f32", "n: size, A: f32"),
     "an extent is no constant"),
    ("share", ("i", "p"), SIDES.replace("B[i, 0]", "B[i, 1]"), "may use one element of 'B'"),
    ("share", ("i", "p"), SIDES.replace("B[i, 0]", "B[0, 0]"), "different iterations may use"),
    ("share", ("i", "p"), SIDES.replace("for k", "for i_s").replace("k", "i_s"), "'i_s' is taken"),
    ("bind", ("i", "core"), COPY, "there is no kind 'core'"),
    ("bind", ("z", "block"), COPY, "there is no loop 'z'"),
    ("bind", ("i", "thread"), COPY, "runs n times"),
    ("bind", ("i", "block"), RUNNING, "one element of 'B'"),
    ("bind", ("j", "thread"), RUNNING, "one element of 'B'"),
    ("bind", ("j", "block"), COPY, "is inside the range 'i'"),
    ("bind", ("j", "thread"), LANES, "already vectorize"),
    ("bind", ("m", "thread"), KEPT, "inside the vectorize loop 'l'"),
    ("bind", ("i", "block"), KEPT, "the shared buffer 't' would belong to many blocks"),
    ("vectorize", ("i",), LANES.replace("vectorize", "thread").replace("block(n)", "range(4)"),
     "the thread loop 'j' is inside 'i'"),
    ("distribute", (("i", "j"), (4,), (1, 1)), COPY, "are not numbers for 2 loops"),
    ("distribute", (("i",), (0,), (1,)), COPY, "are not numbers for 1 loops"),
    ("distribute", (("j",), (32,), (1,)), COPY, "inside of 'i'"),
    ("distribute", (("j", "i"), (4, 8), (1, 1)), COPY, "not the whole body of 'j'"),
    ("distribute", (("i",), (32,), (1,)), COPY.replace("for j", "for i_b"), "'i_b' is taken"),
    ("distribute", (("i",), (32,), (1,)), RUNNING, "one element of 'B'"),
    ("distribute", (("i",), (32,), (1,)), LANES, "already block"),
    ("cooperate", ("j", 0), COPY, "0 threads are fewer"),
    ("cooperate", ("j", 32), RUNNING, "one element of 'B'"),
    ("cooperate", ("m", 32), KEPT, "inside the vectorize 'l'"),
    ("cooperate", ("j", 32), COPY.replace("n: size, ", "j_t: size, ").replace("[n,", "[j_t,")
     .replace("(n)", "(j_t)"), "'j_t' is taken"),
    ("pad_dim", ("z", 0, 1), KEPT, "there is no intermediate 'z'"),
    ("pad_dim", ("t", 2, 1), KEPT, "no dimension 2"),
    ("pad_dim", ("t", 0, -1), KEPT, "below 0"),
    ("fission", ("z",), PARTS, "there is no loop 'z'"),
    ("fission", ("j",), PARTS, "is one statement"),
    ("fission", ("i",), PARTS.replace("for i in range", "for i in block"), "already block"),
    ("fission", ("i",), PARTS.replace("B[i, k + 3]", "B[0, k + 2]"), "may use one element of 'B'"),
    ("fission", ("i",), PARTS.replace("for k in", "for i_2 in").replace("k + 3", "i_2 + 3"),
     "the name 'i_2' is taken"),
    ("expand_alloc", ("z", "i"), ROOMS, "there is no intermediate 'z'"),
    ("expand_alloc", ("t", "z"), ROOMS, "there is no loop 'z'"),
    ("expand_alloc", ("t", "j"), ROOMS, "'t' is not allocated inside of loop 'j'"),
    ("expand_alloc", ("t", "h"), ROOMS.replace("for i in range", "for i in parallel"),
     "loop 'i' in between does not run in order"),
    ("expand_alloc", ("t", "h"), ROOMS.replace("for h in range", "for h in vectorize"),
     "loop 'h' is a vector loop"),
    ("expand_alloc", ("t", "h"), ROOMS.replace("local", "register").replace("range(3)", "range(n)")
     .replace("A: f32[3,", "n: size, A: f32[n,").replace("B: f32[3,", "B: f32[n,"),
     "'t' would have the shape f32[n, 2], not a constant"),
    ("defer", ("z",), PARTS, "there is no loop 'z'"),
    ("defer", ("k",), PARTS, "nothing follows loop 'k'"),
    ("defer", ("i",), PARTS, "nothing follows loop 'i'"),
    ("defer", ("j",), PARTS.replace("k + 3", "k + 2"), "may use one element of 'B'"),
    ("sink_alloc", ("z",), ROOMS, "there is no intermediate 'z'"),
    ("sink_alloc", ("t",), ROOMS, "the first statement uses 't'"),
    ("sink_alloc", ("t",), ROOMS.replace("t[j] = A[h, i, j]", "B[h, i] = 1.0")
     .replace("t[0] * t[1]", "2.0"), "nothing uses 't'"),
    ("merge", ("z", "j"), FOLLOWING, "there is no loop 'z'"),
    ("merge", ("i", "z"), FOLLOWING, "there is no loop 'z'"),
    ("merge", ("j", "i"), FOLLOWING, "loop 'i' does not stand right behind loop 'j'"),
    ("merge", ("i", "b"), EDGES, "loop 'b' is already block"),
    ("merge", ("i", "j"), FOLLOWING.replace("j in range(8)", "j in range(7)"), "runs 8 times"),
    ("merge", ("i", "j"), FOLLOWING.replace("B[j + 1]", "B[j + 2]").replace("f32[9]", "f32[10]"),
     "one element of 'B'"),
    ("attach", ("z", "b"), EDGES, "there is no loop 'z'"),
    ("attach", ("i", "z"), EDGES, "there is no loop 'z'"),
    ("attach", ("t", "b"), EDGES.replace("thread(64)", "range(64)"), "'t' is inside of another"),
    ("attach", ("i", "t"), EDGES, "'t' is no block loop"),
    ("attach", ("i", "b"), EDGES.replace("i + 64", "i + 63"), "may use one element of 'B'"),
    ("attach", ("i", "b"), EDGES.replace("i + 64", "64"), "different iterations may use"),
    ("attach", ("i", "b"), EDGES.replace("(8)", "(n)").replace("A: f32", "n: size, A: f32"),
     "an extent is no constant"),
    ("attach", ("i", "b"), EDGES.replace("for t", "for i_t").replace("+ t", "+ i_t"),
     "the name 'i_t' is taken"),
    ("pipeline", ("z", 2), CHUNKS, "there is no loop 'z'"),
    ("pipeline", ("k", 0), CHUNKS, "no pipelines of 0 stages"),
    ("pipeline", ("k", 9), CHUNKS, "no pipelines of 9 stages"),
    ("pipeline", ("k", 7), CHUNKS, "runs 6 times, not 7"),
    ("pipeline", ("k", 2), CHUNKS.replace("range(6)", "range(n)").replace("A: f32[6,",
     "n: size, A: f32[n,").replace("B: f32[6,", "B: f32[n,"), "runs n times, not 2"),
    ("pipeline", ("k", 2), CHUNKS.replace("range(6)", "unroll(6)"), "already unroll"),
    ("pipeline", ("k", 2), CHUNKS.replace("shared", "local"), "does not begin by filling"),
    ("pipeline", ("k", 2), CHUNKS.replace("A[k, i]", "B[k, i]"), "computes what it fills"),
    ("pipeline", ("k", 2), CHUNKS.replace("for j", "for i_first").replace("j]", "i_first]")
     .replace("- j", "- i_first"), "the name 'i_first' is taken"),
    ("distribute_digits", (("i",), ()), COPY, "0 lists for 1 loops"),
    ("distribute_digits", (("i",), ((("t", 0, "thread"),),)), COPY, "digit 't' is 0"),
    ("distribute_digits", (("i",), ((("t", 4, "warp"),),)), COPY, "is 4 of 'warp'"),
    ("distribute_digits", (("z",), ((("t", 4, "thread"),),)), COPY, "there is no loop 'z'"),
    ("distribute_digits", (("j", "i"), ((("t", 4, "thread"),),) * 2), COPY, "not the whole body"),
    ("distribute_digits", (("i",), ((("t", 4, "thread"),),)), RUNNING, "may use one element"),
    ("drop_guards", ("z",), KEPT, "there is no intermediate 'z'"),
    ("drop_guards", ("t",), TAILS.replace("if i < n", "if i + 1 < n"), "different guards"),
    ("drop_guards", ("t",), TAILS.replace("t[j]", "t[7 - j]"), "'7 - j' is no loop variable"),
    ("drop_guards", ("t",), TAILS.replace("A: f32[8]", "A: f32[n]"), "'j' may be outside of 'A'"),
    ("drop_guards", ("t",), TAILS.replace("t[i] = 0.0", "t[i] = 0.0\n                B[i] = 0.0"),
     "guards other stores too"),
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
    ("zero_summands", ("A",), UNEVEN, "'A' is no single sum"),
    ("zero_summands", ("C",), UNEVEN.replace("a[ki] *", "a[ki] +"), "is no product"),
    ("zero_summands", ("C",), UNEVEN.replace("ko * 4 + ki < 5", "i < 3"), "no guard leaves out"),
    ("zero_summands", ("C",), UNEVEN.replace("* b[ki]", "* B[ki]"),
     "'B[ki]' is no element that one nest stores"),
    ("zero_summands", ("C",), UNEVEN.replace("* b[ki]", "* exp(b[ki])"),
     "'exp(b[ki])' is no element that one nest stores"),
    ("zero_summands", ("C",), UNEVEN.replace("4 + v < 5", "4 + v < 4"),
     "'b' is not stored under the guard of the sum"),
    ("zero_summands", ("C",), UNEVEN.replace("if ko * 4 + u < 5", "if ko * 4 + u < 5 and i < 2"),
     "'a' is not stored under the guard of the sum"),
    ("zero_summands", ("C",), UNEVEN.replace("for v in range(4)", "for v in range(3)"),
     "'b[ki]' is not stored in every iteration"),
    ("zero_summands", ("C",), UNEVEN.replace("for v in range(4)", "for v in range(3)")
     .replace("b[v] = B[ko * 4 + v]", "b[2] = B[ko * 4 + v]"), "is not stored in every iteration"),
    ("zero_summands", ("C",), UNEVEN.replace(_LAST, _LAST + "\n" + " " * 24 + "D[i] = 1.0"),
     "guards other stores too"),
    ("zero_summands", ("C",),
     UNEVEN.replace("for ki", 'invoke("add_4xf32", b[0], a[0])\n                for ki'),
     "an instruction uses 'a'"),
]  # fmt: skip
