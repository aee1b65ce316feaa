"""Whatever is computed of a buffer, and in which order: a ring keeps the result, or is refused."""

from __future__ import annotations

import re
import textwrap

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlc.core.errors import ScheduleError
from dlc.schedule.interpret import run_func
from dlc.schedule.loop import Func
from dlc.schedule.primitives import roll
from dlc.schedule.text import parse_func

# What the next iteration computes again two rows before, and what it does not.
PLACES = ("i",), ("4 - i", "(i + y) % 5")
ROWS = ("5",), ("4",)
VALUES = ("A[i + y * 2] + s[0]", "C[i + y * 2] * 3.0"), ("A[i + y]", "C[i]", "t[i] + 1.0")
LOCALS = ("C[i + y * 2]", "1.0"), ("C[i]",)
GUARDS = ("", "3 <= i + y * 2", "i + y * 2 < 6"), ("i < 2", "y < 2")
AROUND = ("", "for p in range(2):"), ("if y < 2:",)
READ = "B[y] = B[y] * 2.0 + t[0] + 3.0 * t[1] + 5.0 * t[2] + 7.0 * t[3] - t[4]"
FILL = """
for k in range(5):
    if k + y * 2 < 3:
        t[k] = C[k + y * 2] - 1.0
    if 3 <= k + y * 2:
        t[k] = A[k + y * 2] * 2.0
"""


@st.composite
def nest(draw: st.DrawFn, number: int) -> str:
    """A nest over rows, mostly one that the next iteration repeats."""

    def one(choices: tuple[tuple[str, ...], tuple[str, ...]]) -> str:
        return draw(st.sampled_from(choices[draw(st.integers(0, 9)) == 9]))

    body = [
        's = alloc(f32[1], "local")',
        f"s[0] = {one(LOCALS)}",
        f"t[{one(PLACES)}] = {one(VALUES)}",
    ]
    for head in (one(GUARDS), f"for i in range({one(ROWS)}):", one(AROUND)):
        if head:
            body = [f"{head if head[-1] == ':' else f'if {head}:'}", *(f"    {x}" for x in body)]
    return re.sub(r"\b([isp])\b", rf"\g<1>{number}", "\n".join(body))


def a_function(parts: list[str]) -> Func:
    body = textwrap.indent("\n".join(parts), " " * 8)
    return parse_func(
        "def f(A: f32[20], C: f32[20], *, B: f32[6]):\n"
        "    for z in range(6):\n        B[z] = 0.0\n"
        f'    for y in range(6):\n        t = alloc(f32[5], "local")\n{body}\n        {READ}\n'
    )


RANDOM = np.random.default_rng(0)
ARRAYS = {name: RANDOM.integers(-9, 9, 20).astype(np.float32) for name in "AC"}


@settings(max_examples=300, derandomize=True, deadline=None)
@given(st.data())
def test_a_ring_keeps_the_result_of_any_nests(data: st.DataObject) -> None:
    parts = [FILL, *(data.draw(nest(n)) for n in range(data.draw(st.integers(0, 2))))]
    if data.draw(st.integers(0, 9)) == 9:
        parts.insert(1, READ)
    func = a_function(parts)
    try:
        made = roll(func, "t", "y", 0, 2)
    except ScheduleError:
        return
    want, got = (run_func(f, {}, ARRAYS)["B"] for f in (func, made))
    np.testing.assert_array_equal(got, want)


def test_nests_that_the_next_iteration_repeats_are_a_ring() -> None:
    again = FILL.replace("k", "l").replace("3", "5")
    made = str(roll(a_function([FILL, again]), "t", "y", 0, 2))
    assert made.count("if y == 0 or 3 <=") == 2


ROW = "for i in range(3):\n    t[i] = A[i + y] + 1.0"
SECOND = "for j in range(3):\n    t[j] = C[j + y]"
LATER, UNLIKE = "is read before all of it is computed", "are what iterations compute alike"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (ROW.replace("A[i + y]", "A[i]"), UNLIKE),  # other rows hold the same
        (ROW.replace("A[i + y]", "A[i + y // 2 * 2]"), UNLIKE),
        (ROW.replace("1.0", "C[y]"), UNLIKE),
        (ROW.replace("1.0", "C[i]"), UNLIKE),
        (ROW.replace("A[i + y]", "B[i + y]"), UNLIKE),
        (ROW.replace("A[i + y]", "(A[i + y] if i < 2 else 0.0)"), UNLIKE),
        (ROW.replace("t[i]", "t[2 - i]"), UNLIKE),
        (ROW.replace("t[i]", "t[(i + y) % 3]"), UNLIKE),
        (ROW.replace("range(3)", "range(2)"), UNLIKE),  # the last row is of another time
        (f"{ROW}\n    t[2 - i] = A[i + y]", UNLIKE),
        (f"{ROW}\n    if i + y < 2:\n        t[i + 1] = C[i + y]", UNLIKE),
        (f"{ROW}\n    B[0] = 1.0", UNLIKE),
        (f"{ROW}\nt[2] = 4.0", UNLIKE),
        ("for i in range(3):\n    if i < 2:\n        t[i] = A[i + y]", UNLIKE),
        (f"{ROW}\nif y < 2:\n    for j in range(3):\n        t[j] = C[j + y]", UNLIKE),
        (f"{ROW}\n{SECOND.replace('range(3)', 'range(2)').replace('t[j]', 't[j + 1]')}", UNLIKE),
        (
            'for i in range(3):\n    s = alloc(f32[1], "local")\n    s[0] = C[i]\n    t[i] = s[0]',
            UNLIKE,
        ),
        (
            's = alloc(f32[1], "local")\ns[0] = 1.0\nfor i in range(3):\n    t[i] = s[0]',
            UNLIKE,
        ),
        (ROW.replace("1.0", "t[i]"), LATER),
        (f"{ROW}\nfor j in range(3):\n    t[j] = t[j] * 2.0", LATER),
        (f"{ROW}\nB[y] = t[0]\n{SECOND}", LATER),
    ],
)
def test_what_is_no_ring_is_refused(body: str, why: str) -> None:
    func = parse_func(
        "def f(A: f32[9], C: f32[9], *, B: f32[6]):\n    for y in range(6):\n"
        f'        t = alloc(f32[3], "local")\n{textwrap.indent(body, " " * 8)}\n'
        "        B[y] = t[0] + 3.0 * t[1] + 5.0 * t[2]\n"
    )
    with pytest.raises(ScheduleError, match=why):
        roll(func, "t", "y", 0, 1)
