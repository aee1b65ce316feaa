"""What the host of a GPU's program fetches, and that nothing else reaches it."""

from __future__ import annotations

import pytest

from dlc.core.errors import VerifyError
from dlc.schedule.gpu import split_launches
from dlc.schedule.gpu_program import launch_program, waits_for_data, with_copy_kernels
from dlc.schedule.host_reads import verify_fetches
from dlc.schedule.program import Program
from dlc.schedule.program_text import parse_program
from dlc.schedule.verify_program import verify_program

KERNEL = """\
def scale(n: size, x: f32[n], *, y: f32[n]):
    for i in range(n):
        y[i] = x[i] * 2.0

def more(k: i64[2, 40], *, c: i64[2, 40], go: bool[1]):
    for i in range(2):
        for j in range(40):
            c[i, j] = k[i, j] + i64(1)
    for i in range(1):
        go[i] = k[0, i] < i64(9)

"""
MAIN = """\
def main(n: size, x: f32[n], k: i64[2, 40], *, y: f32[n]):
    arena(640, 640, 64, n * 4)
    c = place(i64[2, 40], 0)
    sizes = place(i64[2], 2)
    go = place(bool[1], 1)
    t = place(f32[n], 3)
    check(k[0, 1] < i64(9), 'too many')
    a: size = bind(index(k[0, 3]), 'a is negative')
    b: size = bind(index(k[1, 39]) + a, 'b is negative')
    more(k, c, go)
    write(sizes, 1, a)
    for i in range(b, go[0]):
        scale(n, x, t)
        d: size = bind(index(c[0, 0]) + index(sizes[1]), 'd is negative')
        more(k, c, go)
    if c[0, 0] < i64(2):
        scale(n, x, y)
    else:
        scale(n, t, y)
"""
LAUNCHES = """\
    fetch(k, 1, 3)
    fetch(k, 79, 1)
    check(k[0, 1] < i64(9), 'too many')
    a: size = bind(index(k[0, 3]), 'a is negative')
    b: size = bind(index(k[1, 39]) + a, 'b is negative')
    more_launch_1(k, c)
    more_launch_2(k, go)
    write(sizes, 1, a)
    fetch(go, 0, 1)
    for i in range(b, go[0]):
        scale(n, x, t)
        fetch(c, 0, 1)
        d: size = bind(index(c[0, 0]) + index(sizes[1]), 'd is negative')
        more_launch_1(k, c)
        more_launch_2(k, go)
        fetch(go, 0, 1)
    fetch(c, 0, 1)
    if c[0, 0] < i64(2):
        scale(n, x, y)
    else:
        scale(n, t, y)
"""


def launches(text: str) -> Program:
    program = with_copy_kernels(parse_program(text))
    split = {}
    for kernel in program.kernels:
        (split[kernel.name],) = [split_launches(kernel)]
    return launch_program(program, split)


def test_a_segment_fetches_what_it_loads() -> None:
    program = launches(KERNEL + MAIN)
    assert "    sizes = local(i64[2])\n" in str(program)
    assert str(program).endswith(LAUNCHES)
    assert waits_for_data(program)
    assert parse_program(str(program)) == program


@pytest.mark.parametrize(
    ("left_out", "of"),
    [("    fetch(k, 79, 1)\n", "k"), ("        fetch(c, 0, 1)\n", "c"),
     ("        fetch(go, 0, 1)\n", "go"), ("    fetch(go, 0, 1)\n    for", "go")],
)  # fmt: skip
def test_what_is_not_fetched_is_found(left_out: str, of: str) -> None:
    text = str(launches(KERNEL + MAIN))
    verify_fetches(parse_program(text), when="in a test")
    assert left_out in text
    broken = text.replace(left_out, "    for" if left_out.endswith("for") else "")
    with pytest.raises(VerifyError, match=f"the host loads of '{of}' what it has not fetched"):
        verify_fetches(parse_program(broken), when="in a test")


def test_what_was_fetched_before_a_launch_is_old() -> None:
    text = str(launches(KERNEL + MAIN))
    early = text.replace("        scale(n, x, t)\n        fetch(c, 0, 1)\n",
                         "        fetch(c, 0, 1)\n        scale(n, x, t)\n")  # fmt: skip
    assert early != text
    with pytest.raises(VerifyError, match="the host loads of 'c' what it has not fetched"):
        verify_fetches(parse_program(early), when="in a test")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("    fetch(go, 0, 1)", "    fetch(go, 1, 1)", "elements outside of 'go"),
        ("    fetch(go, 0, 1)", "    fetch(go, 0, 0)", "elements outside of 'go"),
        ("    fetch(go, 0, 1)", "    fetch(q, 0, 1)", "buffer 'q' is not defined"),
        ("    fetch(go, 0, 1)", "    fetch(t, 0, 1)", "'t: f32.*' is fetched"),
        ("    fetch(go, 0, 1)", "    fetch(sizes, 0, 1)", "'sizes: i64.*' is fetched"),
        ("    write(sizes, 1, a)", "    u = view(sizes, i64[1])", "which lies on the host"),
        ("    write(sizes, 1, a)", "    copy(sizes, sizes)", "which lies on the host"),
        ("    go = place(bool[1]", "    go = local(bool[1])\n    g = place(bool[1]",
         "kernel 'more_launch_2' takes 'go', which lies on the host"),
    ],
)  # fmt: skip
def test_a_broken_invariant_is_reported(old: str, new: str, problem: str) -> None:
    text = str(launches(KERNEL + MAIN))
    assert old in text
    with pytest.raises(VerifyError, match=problem):
        verify_program(parse_program(text.replace(old, new, 1)), when="in a test")


def test_what_is_fetched_keeps_its_memory() -> None:
    text = (
        KERNEL
        + """\
def main(k: i64[2, 40], x: f32[1], *, y: f32[1]):
    arena(640)
    c = place(i64[2, 40], 0)
    t = place(f32[1], 0)
    g = place(bool[1], 0, 64)
    scale(1, x, t)
    scale(1, t, y)
    fetch(c, 0, 1)
    a: size = bind(index(c[0, 0]), 'a is negative')
"""
    )
    verify_program(parse_program(text.replace("    scale(1, t, y)\n", "")), when="in a test")
    late = text.replace("    scale(1, t, y)\n", "").replace(
        "'a is negative')\n", "'')\n    scale(1, t, y)\n"
    )
    with pytest.raises(VerifyError, match="may share memory"):
        verify_program(parse_program(late), when="in a test")


def test_a_size_that_kernels_read_is_stored_by_a_launch() -> None:
    text = (
        KERNEL
        + """\
def main(n: size, k: i64[2, 40], *, c: i64[2, 40], go: bool[1]):
    arena(640)
    s = place(i64[2, 40], 0)
    e = view(s, i64[80])
    write(e, 3, n)
    more(s, c, go)
"""
    )
    program = launches(text)
    assert "write_size(n, write_1_to)" in str(program)
    assert not waits_for_data(program)


def test_scratch_memory_of_a_size_of_data_lives_for_its_kernel() -> None:
    text = """\
def turn(n: size, x: f32[n], *, y: f32[n]):
    t = alloc(f32[n], "local")
    for i in range(n):
        t[i] = x[i] * 2.0
    for i in range(n):
        y[i] = t[n - 1 - i]

def main(k: i64[1], *, y: f32[a]):
    arena()
    a: size = bind(index(k[0]), 'a is negative')
    r = allocate(f32[a])
    provide(y)
    turn(a, r, y)
"""
    found = str(launches(text))
    assert found.endswith(
        "    scratch_1_t = allocate(f32[a])\n"
        "    turn_launch_1(a, r, scratch_1_t)\n"
        "    turn_launch_2(a, scratch_1_t, y)\n"
        "    release(scratch_1_t)\n"
    )
