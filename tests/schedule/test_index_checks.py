"""Checks of indices in programs for a GPU: which call they belong to."""

from __future__ import annotations

import pytest

from dlc.schedule.gpu import split_launches
from dlc.schedule.gpu_program import launch_program, with_copy_kernels
from dlc.schedule.index_checks import looks_of, with_checks_at_readers, with_index_checks
from dlc.schedule.program import Program
from dlc.schedule.program_text import parse_program

KERNELS = """\
def pick(n: size, x: f32[n], i: i64[6], *, y: f32[6]):
    for j in range(6):
        y[j] = x[max(min(index(i[j]), n - 1), 0)]

def pick_pairs(x: f32[7, 5], i: i64[3, 2], *, y: f32[3]):
    for j in range(3):
        y[j] = x[max(min(index(i[j, 0]), 6), 0), max(min(index(i[j, 1]), 4), 0)]

def first(x: f32[4], i: i64[1], *, y: f32[1]):
    for j in range(1):
        y[j] = x[max(min(index(i[j]), 3), 0)]

@in_place(j="i")
def count_on(i: i64[6], *, j: i64[6]):
    for k in range(6):
        j[k] = i[k] + i64(1)

"""
HEAD = "def main(n: size, x: f32[n], t: f32[7, 5], i: i64[6], *, y: f32[6], z: f32[3]):\n"
TO_THE_CALL = """\
    arena(64)
    s = place(f32[3], 0)
    within(i, n, True, 'outside of n')
    within(i, 7, 5, False, 'outside of t')
    a = view(i, i64[3, 2])
    b = view(a, i64[6])
    pick_pairs(t, a, z)
    pick(n, x, b, y)
"""
# Nothing reads all of them, or not as they were, or not always.
IN_PARTS = """\
    arena()
    within(i, 4, True, 'outside')
    a = view(i, i64[1], 3)
    w = view(x, f32[4])
    b = view(y, f32[1])
    first(w, a, b)
"""
IN_A_BRANCH = """\
    arena()
    within(i, n, True, 'outside')
    if n < 5:
        pick(n, x, i, y)
"""
CHANGED = """\
    arena(64)
    k = place(i64[6], 0)
    copy(k, i)
    within(k, n, True, 'outside')
    count_on(k, k)
    pick(n, x, k, y)
"""


def moved(body: str, on_host: tuple[str, ...] = ()) -> Program:
    return with_checks_at_readers(parse_program(KERNELS + HEAD + body), on_host)


def body_of(program: Program) -> str:
    text = str(program)
    return text[text.index("    arena") :]


def launched(program: Program) -> Program:
    program = with_copy_kernels(program)
    looks = looks_of(program)
    found = {
        k.name: with_index_checks(split_launches(k), k, looks.get(k.name, ()))
        for k in program.kernels
    }
    return launch_program(program, found)


def test_a_check_stands_before_the_call_that_reads() -> None:
    """The first reader counts: it takes the same elements under another shape."""
    check = "    within(i, n, True, 'outside of n')\n"
    text = TO_THE_CALL.replace("    within(i, 7, 5, False, 'outside of t')\n", "")
    wanted = text.replace(check, "").replace("    pick_pairs(", f"{check}    pick_pairs(")
    assert body_of(moved(text)) == wanted != text


def test_limits_and_reports_are_sizes_of_the_launch() -> None:
    text = TO_THE_CALL.replace("i, 7, 5,", "a, 7, 5,").split("\n")
    text[3], text[4] = text[4], text[3]
    program = launched(moved("\n".join(text)))
    calls = [line.strip() for line in body_of(program).splitlines() if "pick" in line]
    assert calls == ["pick_pairs(n, 0, 7, 5, 1, t, a, z)", "pick(n, x, b, y)"]
    assert parse_program(str(program)) == program


def test_a_call_without_a_check_asks_for_nothing() -> None:
    body = """\
    arena()
    pick(n, x, i, y)
    within(i, n, True, 'outside')
    pick(n, x, i, y)
"""
    calls = [s.strip() for s in body_of(launched(moved(body))).splitlines() if "pick" in s]
    assert calls == ["pick(n, -1, -1, x, i, y)", "pick(n, n, 0, x, i, y)"]


@pytest.mark.parametrize("body", [IN_PARTS, IN_A_BRANCH, CHANGED])
def test_what_nothing_reads_is_copied(body: str) -> None:
    program = moved(body)
    name = "k" if body is CHANGED else "i"
    assert f"    copy(checked, {name})\n" in body_of(program)
    lines = body_of(program).splitlines()
    at = next(n for n, line in enumerate(lines) if "within(" in line)
    assert "copy(checked" in lines[at + 1]
    assert "copy_i64(6, " in str(launched(program))


def test_a_kernel_on_the_host_does_not_look() -> None:
    body = """\
    arena()
    within(i, n, True, 'outside')
    pick(n, x, i, y)
"""
    assert "copy" not in body_of(moved(body))
    assert "    copy(checked, i)\n" in body_of(moved(body, ("pick",)))
