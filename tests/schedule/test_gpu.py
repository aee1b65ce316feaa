"""What runs on a GPU: launches, phases, barriers, and what a launch may not do."""

from __future__ import annotations

import re

import pytest

import dlc.schedule.primitives  # noqa: F401 - registers the primitives
from dlc.core.errors import VerifyError
from dlc.core.target import Gpu
from dlc.schedule.fetch_ahead import fetched_ahead
from dlc.schedule.gpu import (
    block_loops,
    block_threads,
    phases,
    shared_offsets,
    split_launches,
    tails,
    threads_of,
    wiped,
)
from dlc.schedule.passes.insert_barriers import insert_barriers
from dlc.schedule.primitive import PRIMITIVES
from dlc.schedule.verify_gpu import thread_dims, verify_gpu
from tests.schedule.data import parse
from tests.schedule.refusals_gpu import COMMON

REVERSE = """
    def f(A: f32[7, 64], *, B: f32[7, 64]):
        for b in block(7):
            t = alloc(f32[64], "shared")
            for i in thread(64):
                t[i] = A[b, i]
            for j in thread(64):
                B[b, j] = t[63 - j]
"""
REGISTERS = """
    def f(A: f32[6, 4], *, B: f32[6, 4]):
        for b in block(1):
            acc = alloc(f32[6, 2, 4], "register")
            for i in thread(6):
                for j in thread(4):
                    acc[i, 0, j] = A[i, j]
            for k in range(3):
                for p in thread(6):
                    for q in thread(4):
                        acc[p, 0, q] = acc[p, 0, q] + A[p, q]
            for r in thread(6):
                for s in thread(4):
                    B[r, s] = acc[r, 0, s]
"""


def barriers(text: str) -> list[int]:
    """At which statements of the text's lines barriers are inserted."""
    lines = str(insert_barriers(parse(text))).splitlines()
    return [n for n, line in enumerate(lines) if "barrier" in line]


def test_a_barrier_stands_between_a_write_and_a_read() -> None:
    assert barriers(REVERSE) == [5]


def test_what_a_thread_keeps_needs_no_barrier() -> None:
    assert barriers(REGISTERS) == []


def test_a_loop_brings_its_last_phase_before_its_first() -> None:
    looped = REVERSE.replace("for i in thread", "for k in range(3):\n             for i in thread")
    looped = looped.replace("        for j in thread", "         for j in thread")
    looped = looped.replace("     t[i]", "      t[i]").replace("     B[b, j]", "      B[b, j]")
    assert barriers(looped) == [4, 7]


def test_a_read_before_a_write_needs_a_barrier() -> None:
    text = """
        def f(A: f32[64], *, B: f32[64], C: f32[64]):
            for b in block(1):
                for i in thread(64):
                    B[i] = C[63 - i]
                for j in thread(64):
                    C[j] = A[j]
    """
    assert barriers(text) == [4]


def test_reads_alone_need_no_barrier() -> None:
    text = """
        def f(A: f32[64], *, B: f32[64], C: f32[64]):
            for b in block(1):
                for i in thread(64):
                    B[i] = A[63 - i]
                for j in thread(64):
                    C[j] = A[j]
    """
    assert barriers(text) == []


def test_a_phase_under_a_guard_may_have_run() -> None:
    text = """
        def f(n: size, A: f32[64], *, B: f32[64]):
            for b in block(1):
                t = alloc(f32[64], "shared")
                if n < 5:
                    for i in thread(64):
                        t[i] = A[i]
                for j in thread(64):
                    B[j] = t[63 - j]
    """
    assert barriers(text) == [6]


def test_memory_that_is_shared_in_place_counts_as_one() -> None:
    text = """
        @in_place(B="A")
        def f(A: f32[64], *, B: f32[64], C: f32[64]):
            for b in block(1):
                for i in thread(64):
                    C[i] = A[63 - i]
                for j in thread(64):
                    B[j] = 1.0
    """
    assert barriers(text) == [5]


def test_each_nest_is_a_launch_with_scratch_between() -> None:
    func = parse("""
        def f(A: f32[4], *, B: f32[4], C: f32[2]):
            t = alloc(f32[4], "local")
            for i in block(4):
                t[i] = A[i]
            for j in block(4):
                B[j] = t[3 - j]
            for k in block(2):
                C[k] = B[k]
    """)
    found = split_launches(func)
    assert [b.name for b in found.scratch] == ["t"]
    used = [([b.name for b in f.inputs], [b.name for b in f.outputs]) for f in found.funcs]
    assert used == [(["A"], ["t"]), (["t"], ["B"]), (["B"], ["C"])]
    assert [f.name for f in found.funcs] == ["f_launch_1", "f_launch_2", "f_launch_3"]


TAILS = """
    def f(A: f32[3, 4, 40], *, B: f32[3, 40]):
        parts = alloc(f32[3, 4, 40], "local")
        for a in block(3):
            for k in block(4):
                for t in thread(40):
                    parts[a, k, t] = A[a, k, t] * 2.0
            for u in thread(70):
                if u < 40:
                    B[a, u] = parts[a, 0, u] + parts[a, 3, u]
"""


def test_what_follows_a_block_loop_is_run_by_its_last_block() -> None:
    found = split_launches(parse(TAILS))
    (func,) = found.funcs
    (tail,) = tails(func)
    assert [f.var for f in tail.groups] == ["a"]
    assert [f.var for f in tail.members] == ["k"]
    assert found.arrivals == func.outputs[-1:]
    assert str(found.arrivals[0].type) == "u32[3]"
    assert block_threads(func) == 96
    assert barriers(TAILS) == []


def test_a_tail_needs_a_constant_number_of_blocks() -> None:
    text = TAILS.replace('        parts = alloc(f32[3, 4, 40], "local")\n', "")
    text = text.replace("B: f32", "parts: f32[3, 4, 40], B: f32").replace("f(A", "f(n: size, A")
    func = parse(text.replace("block(4)", "block(n)"))
    with pytest.raises(VerifyError, match="'k' before a tail has no constant extent"):
        verify_gpu(func, Gpu(), when="in the test")


def test_a_tail_begins_where_shared_memory_begins() -> None:
    func = parse("""
        def f(A: f32[3, 32], *, B: f32[3, 32], C: f32[32]):
            for z in block(1):
                for a in block(3):
                    s = alloc(f32[33], "shared")
                    r = alloc(f32[32], "shared")
                    for t in thread(32):
                        s[t] = A[a, t]
                        B[a, t] = s[t]
                q = alloc(f32[40], "shared")
                for v in thread(32):
                    q[v] = B[0, v] + B[2, v]
                    C[v] = q[v]
    """)
    assert shared_offsets(func) == ({"s": 0, "r": 144, "q": 0}, 272)


TURNS = """
    def f(A: f32[2, 64], *, B: f32[2, 64], C: f32[2, 64]):
        for b in block(2):
            s = alloc(f32[6400], "shared")
            u = alloc(f32[6400], "shared")
            v = alloc(f32[6400], "shared")
            for i in thread(64):
                s[i] = A[b, i]
            for j in thread(64):
                u[j] = s[63 - j]
            for k in thread(64):
                v[k] = A[b, 63 - k]
            for m in thread(64):
                B[b, m] = u[m]
                C[b, m] = v[m]
"""


def test_a_buffer_lies_where_one_was_that_is_done_with() -> None:
    func = parse(TURNS)
    assert shared_offsets(func) == ({"s": 0, "u": 25600, "v": 0}, 51200)
    assert wiped(func) == {"v": {"s"}}
    assert barriers(TURNS) == [7, 10, 13]  # the second one because `v` takes the place of `s`


def test_small_buffers_lie_apart() -> None:
    small = TURNS.replace("6400", "64")
    assert shared_offsets(parse(small)) == ({"s": 0, "u": 256, "v": 512}, 768)
    assert barriers(small) == [7, 12]


def test_what_a_loop_uses_is_there_in_all_its_iterations() -> None:
    body = TURNS[TURNS.index("            for i in") :].replace("            ", "                ")
    looped = (
        TURNS[: TURNS.index("            for i in")] + "            for r in range(3):\n" + body
    )
    func = parse(looped)
    assert shared_offsets(func) == ({"s": 0, "u": 25600, "v": 51200}, 76800)
    assert wiped(func) == {}


def test_a_block_has_whole_warps() -> None:
    assert block_threads(parse(REGISTERS)) == 32
    assert block_threads(parse(REVERSE)) == 64
    assert [threads_of(p) for p in phases(block_loops(parse(REGISTERS))[1])] == [24] * 3


def test_registers_are_told_apart_by_the_digits_of_the_thread() -> None:
    assert thread_dims(parse(REGISTERS), "acc") == {0: (4, 6), 2: (1, 4)}


BAD = [
    (REVERSE, "without a barrier"),
    (REVERSE.replace("for i in thread(64)", "for i in parallel(64)"), "'i' is parallel"),
    (
        REVERSE.replace("for i in thread(64):\n", "for i in thread(64):\n" + " " * 16)
        .replace("t[i] = A[b, i]", 'invoke("barrier")\n                t[i] = A[b, i]')
        .replace(" " * 16 + " " * 16 + "invoke", " " * 16 + "invoke"),
        "inside of a thread loop",
    ),
    (
        REVERSE.replace("64", "2048"),
        "2048 threads in a block",
    ),
    (REVERSE.replace('"shared"', '"local"'), "local buffer 't' is allocated outside"),
    (
        REVERSE.replace("t = alloc(f32[64]", "t = alloc(f32[30000]"),
        "120000 bytes of shared memory",
    ),
    (REVERSE.replace('"shared"', '"register"'), "index 0 of register buffer 't'"),
    (re.sub(r", 0, (\w)\]", r", 0, 3 - \1]", REGISTERS), "mixes digits"),
    (REGISTERS.replace("acc[r, 0, s]", "acc[s, 0, r % 4]"), "is not always one digit"),
    (
        REGISTERS.replace("acc[i, 0, j]", "acc[i, 0, 0]")
        .replace("acc[p, 0, q]", "acc[p, 0, 0]")
        .replace("acc[r, 0, s]", "acc[r, 0, 0]"),
        "lacks the digit",
    ),
    (
        REVERSE.replace("block(7)", "range(7)").replace("i in thread", "i in block"),
        "block loop 'i' is not outside",
    ),
    (REGISTERS.replace("f32[6, 2, 4]", "f32[6, 5000, 4]"), "120000 registers"),
    (
        """
        def f(n: size, A: f32[64], *, B: f32[64]):
            for b in block(1):
                for i in thread(64):
                    t = alloc(f32[n], "local")
                    t[0] = A[i]
                    B[i] = t[0]
        """,
        "'t' has no constant shape",
    ),
    (
        """
        def f(A: f32[64], *, B: f32[64]):
            for b in block(1):
                for i in thread(64):
                    t = alloc(f32[1], "shared")
                    t[0] = A[i]
                    B[i] = t[0]
        """,
        "shared buffer 't' is allocated inside of a phase",
    ),
    (
        """
        def f(A: f32[4, 8], *, B: f32[4, 8], C: f32[4]):
            for b in block(1):
                for i in thread(4):
                    C[i] = 0.0
                    for j in thread(8):
                        B[i, j] = A[i, j]
        """,
        "outside of its thread loop 'j'",
    ),
]


@pytest.mark.parametrize(("text", "problem"), BAD)
def test_a_launch_that_no_gpu_can_run_is_refused(text: str, problem: str) -> None:
    with pytest.raises(VerifyError) as caught:
        verify_gpu(parse(text), Gpu(), when="in the test")
    assert problem in str(caught.value.fields["problems"])


@pytest.mark.parametrize("text", [REVERSE, REGISTERS])
def test_what_passes_gave_barriers_is_accepted(text: str) -> None:
    verify_gpu(insert_barriers(parse(text)), Gpu(), when="in the test")


def test_a_guard_of_the_other_factor_is_left_out() -> None:
    func = parse(COMMON)
    result = PRIMITIVES["cache_factor"](func, "C", 0, "p", ("k",), "a", "local")
    assert "a[a_0] = A[p, a_0]" in str(result)
    assert str(result).count("if ") == 1


def test_weights_are_asked_for_ahead_unless_data_says_which() -> None:
    func = parse("""
        def f(n: size, x: f32[4], i: i64[4], e: f32[9], w: f32[4], o: f32[n], big: f32[4194305],
              *, y: f32[4]):
            for t in range(4):
                y[t] = (x[t] + e[index(i[t])] + w[t]) + (big[t] + o[0])
    """)
    names = frozenset({"i", "e", "w", "o", "big"})
    assert [b.name for b in fetched_ahead(func, names)] == ["i", "w"]
    assert fetched_ahead(func, frozenset()) == ()
