"""The estimate of a nest's instructions: what counts, and what is free."""

from __future__ import annotations

import pytest

from dlc.core.errors import ScheduleError
from dlc.schedule.text import parse_func
from dlc.schedule.work import MOST_WRITTEN_OUT, POLYNOMIAL, operations, refuse_giant, written_out


def nest(body: str) -> str:
    head = "def f(n: size, A: f32[64, 64], *, B: f32[64, 64]):\n"
    return head + "\n".join(f"    {line}" for line in body.splitlines())


ROW = "for i in range(10):\n    for j in vectorize(16):\n"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("B[0, 0] = A[0, 0]", 1),
        (ROW + "        B[i, j] = A[i * 2 + 1, j]", 10),  # an address is free
        (ROW + "        B[i, j] += A[i, j] * A[i, j]", 10),  # one multiply-add
        (ROW + "        B[i, j] = A[i, j] * A[i, j] + 1.0", 20),
        (ROW + "        B[i, j] = exp(A[i, j])", 10 * POLYNOMIAL),
        (ROW + "        B[i, j] = abs(A[i, j])", 10),
        (ROW + "        B[i, j] = A[i, j]\nB[0, 0] = 1.0", 11),
        ("for i in unroll(4):\n    if A[i, 0] < 0.0:\n        B[i, 0] = 1.0", 4),
        ("for i in range(n):\n    B[i, 0] = 1.0", None),
        ("for i in range((n + 7) // 8 - n // 8):\n    B[i, 0] = 1.0", 1),  # once, or not at all
        ("B[0, 0] = 1.0\nfor i in range(n):\n    B[i, 0] = 1.0", None),
        ("for i in range(n):\n    for j in range(0):\n        B[i, j] = 1.0", None),
    ],
)
def test_operations(body: str, expected: int | None) -> None:
    assert operations(parse_func(nest(body)).body) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("B[0, 0] = A[0, 0]", 1),
        (ROW + "        B[i, j] = A[i, j] * A[i, j] + 1.0", 2),  # a loop is text once
        ("for i in unroll(4):\n    if A[i, 0] < 0.0:\n        B[i, 0] = 1.0", 4),
        ("for i in unroll(4):\n    for j in unroll(8):\n        B[i, j] = exp(A[i, j])", 512),
        ("for i in range(n):\n    B[i, 0] = 1.0\nB[0, 0] = 1.0", 2),
    ],
)
def test_written_out(body: str, expected: int) -> None:
    assert written_out(parse_func(nest(body)).body) == expected


def test_a_giant_is_refused() -> None:
    body = "for i in unroll({}):\n    for j in unroll(256):\n        B[i, j] = 0.0"
    refuse_giant(parse_func(nest(body.format(MOST_WRITTEN_OUT // 256))))
    with pytest.raises(ScheduleError, match="16,640 operations would be written out one by one"):
        refuse_giant(parse_func(nest(body.format(MOST_WRITTEN_OUT // 256 + 1))))
