"""Loops and dimensions are made one where all accesses agree, and nowhere else."""

import pytest

from dlc.core.errors import ScheduleError
from dlc.schedule.loop import loops
from dlc.schedule.primitives.collapse import collapse
from tests.schedule.data import assert_same, parse

NEST = """
    def f({params}):
        for i in range(2):
            for j in range(3):
                for k in range(4):
                    {body}
"""


def shapes(params, body):
    """The loops of a nest and the shapes of its buffers, once it is collapsed, if it can be."""
    func = parse(NEST.format(params=params, body=body))
    try:
        after = collapse(func)
    except ScheduleError:
        after = func
    assert_same(func, after)
    types = [str(b.type) for b in (*after.inputs, *after.outputs)]
    return [int(f.extent.value) for f in loops(after.body).values()], types


@pytest.mark.parametrize(
    ("params", "body", "extents", "types"),
    [
        ("A: f32[2, 3, 4], *, B: f32[2, 3, 4]", "B[i, j, k] = A[i, j, k]",
         [24], ["f32[24]", "f32[24]"]),
        ("A: f32[2, 3, 4], w: f32[4], *, B: f32[2, 3, 4]", "B[i, j, k] = A[i, j, k] * w[k]",
         [6, 4], ["f32[6, 4]", "f32[4]", "f32[6, 4]"]),
        ("A: f32[2, 3, 4], w: f32[2, 1, 1], *, B: f32[2, 3, 4]",
         "B[i, j, k] = A[i, j, k] * w[i, 0, 0]", [2, 12], ["f32[2, 12]", "f32[2]", "f32[2, 12]"]),
        # Rows of pixels stay together where they are turned.
        ("A: f32[4, 2, 3], *, B: f32[2, 3, 4]", "B[i, j, k] = A[k, i, j]",
         [6, 4], ["f32[4, 6]", "f32[6, 4]"]),
        ("A: f32[3, 2, 4], *, B: f32[2, 3, 4]", "B[i, j, k] = A[j, i, k]",
         [2, 3, 4], ["f32[3, 2, 4]", "f32[2, 3, 4]"]),
        # One element of a buffer that loops read elsewhere, too.
        ("A: f32[2, 3, 4], *, B: f32[2, 3, 4]", "B[i, j, k] = A[i, j, k] + A[1, 2, 3]",
         [24], ["f32[24]", "f32[24]"]),
        ("A: f32[2, 3, 4], *, B: f32[2, 3, 4]", "B[i, j, k] = A[i, j, k] + A[i, 2, 3]",
         [2, 12], ["f32[2, 12]", "f32[2, 12]"]),
        # A part of the lines, and lines that are longer than what is read of them.
        ("A: f32[2, 3, 5], *, B: f32[2, 3, 4]", "B[i, j, k] = A[i, j, k]",
         [6, 4], ["f32[6, 5]", "f32[6, 4]"]),
        ("A: f32[2, 4, 4], *, B: f32[2, 3, 4]", "B[i, j, k] = A[i, j, k]",
         [2, 12], ["f32[2, 16]", "f32[2, 12]"]),
        ("A: f32[2, 3, 5], *, B: f32[2, 3, 4]", "B[i, j, k] = A[i, j, k + 1]",
         [6, 4], ["f32[6, 5]", "f32[6, 4]"]),
        # Who asks where it is needs the loops.
        ("A: f32[2, 3, 4], *, B: f32[2, 3, 4]", "B[i, j, k] = A[i, j, k] + f32(j)",
         [2, 3, 4], ["f32[2, 3, 4]", "f32[2, 3, 4]"]),
        ("A: bool[2, 3, 4], *, B: f32[2, 3, 4]", "B[i, j, k] = f32(j) if A[i, j, k] else 0.0",
         [2, 3, 4], ["bool[2, 3, 4]", "f32[2, 3, 4]"]),
        ("A: f32[2, 3, 4], p: i32[3], *, B: f32[2, 3, 4]",
         "B[i, j, k] = A[i, index(p[j]) % 3, k]",
         [2, 3, 4], ["f32[2, 3, 4]", "i32[3]", "f32[2, 3, 4]"]),
        ("*, B: f32[2, 3, 1, 4, 1]", "B[i, j, 0, k, 0] = 1.0", [24], ["f32[24]"]),
    ],
)  # fmt: skip
def test_what_is_told_apart_stays(params, body, extents, types):
    assert shapes(params, body) == (extents, types)


OPEN = """
    def f(n: size, m: size, {params}):
        for i in range(n):
            for j in range(3):
                for k in range(m * 2):
                    {body}
"""


@pytest.mark.parametrize(
    ("params", "body", "extents", "types"),
    [
        ("A: f32[n, 3, m * 2], *, B: f32[n, 3, m * 2]", "B[i, j, k] = A[i, j, k]",
         ["m * n * 6"], ["f32[m * n * 6]", "f32[m * n * 6]"]),
        ("A: f32[n, 3, m * 2], w: f32[3], *, B: f32[n, 3, m * 2]", "B[i, j, k] = A[i, j, k] * w[j]",
         ["n", "3", "m * 2"], ["f32[n, 3, m * 2]", "f32[3]", "f32[n, 3, m * 2]"]),
        ("A: f32[n, 3, m * 2], w: f32[m * 2], *, B: f32[n, 3, m * 2]",
         "B[i, j, k] = A[i, j, k] * w[k]",
         ["n * 3", "m * 2"], ["f32[n * 3, m * 2]", "f32[m * 2]", "f32[n * 3, m * 2]"]),
        # One element of a buffer that loops read elsewhere, too.
        ("A: f32[n, 3, m * 2], *, B: f32[n, 3, m * 2]", "B[i, j, k] = A[i, j, k] + A[i, 1, 0]",
         ["n", "m * 6"], ["f32[n, m * 6]", "f32[n, m * 6]"]),
        # Places that data chooses by what lies at the same one.
        ("A: u8[n, 3, m * 2], T: f32[256], *, B: f32[n, 3, m * 2]",
         "B[i, j, k] = T[index(A[i, j, k])]",
         ["m * n * 6"], ["u8[m * n * 6]", "f32[256]", "f32[m * n * 6]"]),
        # Lines that may be longer than what is read of them.
        ("A: f32[n, 3, m * 3], *, B: f32[n, 3, m * 2]", "B[i, j, k] = A[i, j, k]",
         ["n * 3", "m * 2"], ["f32[n * 3, m * 3]", "f32[n * 3, m * 2]"]),
    ],
)  # fmt: skip
def test_open_sizes_are_one_where_they_surely_agree(params, body, extents, types):
    func = parse(OPEN.format(params=params, body=body))
    try:
        after = collapse(func)
    except ScheduleError:
        after = func
    assert [str(f.extent) for f in loops(after.body).values()] == extents
    assert [str(b.type) for b in (*after.inputs, *after.outputs)] == types


def test_two_loops_that_may_run_less_than_no_times_stay_two():
    func = parse("""
        def f(n: size, m: size, *, B: f32[n - 9, m - 9]):
            for i in range(n - 9):
                for j in range(m - 9):
                    B[i, j] = 1.0
    """)
    with pytest.raises(ScheduleError, match="told apart"):
        collapse(func)


def test_sums_and_their_rows_are_collapsed_apart():
    func = parse("""
        def f(A: f32[2, 1, 3, 4, 5], *, s: f32[2, 1, 3, 1]):
            for i in range(2):
                for u in range(1):
                    for j in range(3):
                        s[i, u, j, 0] = 0.0
                        for k in range(4):
                            for m in range(5):
                                s[i, u, j, 0] += A[i, u, j, k, m]
    """)
    after = collapse(func)
    assert_same(func, after)
    assert [str(b.type) for b in (*after.inputs, *after.outputs)] == ["f32[6, 20]", "f32[6]"]


def test_a_result_in_the_place_of_an_operand_keeps_its_shape():
    func = parse("""
        @in_place(B="A")
        def f(A: f32[2, 3, 4], w: f32[2, 3, 4, 1], *, B: f32[2, 3, 4], C: f32[3, 2]):
            for p in range(3):
                for q in range(2):
                    C[p, q] = A[q, p, 3]
            for i in range(2):
                for j in range(3):
                    for k in range(4):
                        B[i, j, k] = w[i, j, k, 0]
    """)
    after = collapse(func)  # or B would be of 24 elements, and A of three dimensions
    assert_same(func, after)
    assert [str(b.type) for b in after.outputs] == ["f32[2, 3, 4]", "f32[3, 2]"]


@pytest.mark.parametrize("kind", ["parallel", "vectorize", "unroll"])
def test_loops_that_are_scheduled_stay(kind):
    func = parse(f"""
        def f(A: f32[3, 4, 1], *, B: f32[3, 4, 1]):
            for i in {kind}(3):
                for j in range(4):
                    B[i, j, 0] = A[i, j, 0]
    """)
    after = collapse(func)
    assert_same(func, after)
    assert [str(b.type) for b in after.outputs] == ["f32[3, 4]"]


def test_a_loop_of_one_iteration_keeps_its_memory():
    func = parse("""
        def f(A: f32[1, 7, 3], *, B: f32[1, 7, 3]):
            for r in range(1):
                t = alloc(f32[3], "local")
                for z in range(3):
                    t[z] = 0.0
                for i in range(7):
                    for k in range(3):
                        t[k] += A[r, i, k]
                        B[r, i, k] = t[k]
    """)
    with pytest.raises(ScheduleError, match="told apart"):
        collapse(func)
