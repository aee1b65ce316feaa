"""Whole groups of iterations are known as such however their number is written."""

import pytest

from dlc.schedule.interpret import evaluate_size
from dlc.te.affine import are_whole_groups, whole_groups
from dlc.te.simplify import canonical, surely_at_most
from dlc.te.text import parse_expr

EXTENTS = (
    "n",
    "(n * 64 + 1) % 264",
    "((n + 1) // 2 + 1) // 2",
    "(max(0, n - 1) + min(1, n) + 1) // 2 - (max(0, n - 1) + min(1, n) + 1) // 2 % 4",
    "max(min(n + 498, 999) - max(0, min((1500 - n if 501 - n < 0 else 501 - n), 999)), 0)",
)


@pytest.mark.parametrize("text", EXTENTS)
@pytest.mark.parametrize("size", [2, 8, 12, 20])
def test_whole_groups_are_no_more_than_there_are(text, size):
    extent = canonical(parse_expr(text))
    for count in (whole_groups(extent, size), canonical(extent // size * size)):
        if not surely_at_most(count, extent):
            assert are_whole_groups(canonical(count), extent)
        for n in range(90):
            assert 0 <= evaluate_size(count, {"n": n}) <= evaluate_size(extent, {"n": n})


def test_some_are_not_known_to_be_there_by_their_ranges():
    extent = parse_expr("(n * 64 + 1) % 264")
    count = canonical(extent // 8 * 8)
    assert not surely_at_most(count, extent)
    assert are_whole_groups(count, extent)


@pytest.mark.parametrize("text", ["n + 8", "n", "n // 8 * 8 + 8", "n // 8", "m // 8 * 8"])
def test_other_counts_are_no_whole_groups(text):
    assert not are_whole_groups(canonical(parse_expr(text)), parse_expr("n"))


def test_of_what_may_be_negative_there_may_be_none():
    assert not are_whole_groups(parse_expr("(n - 3) // 8 * 8"), parse_expr("n - 3"))
