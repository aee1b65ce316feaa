"""Simplified expressions keep their value; what is called sure holds for every value sampled."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlc.core.types import INDEX, DType
from dlc.te.affine import coefficient, coefficients, loop_bounds, split_terms, whole_groups
from dlc.te.expr import Binary, BinOp, Const, Expr, Var, maximum, minimum
from dlc.te.simplify import (
    canonical,
    simplify,
    surely_at_most,
    surely_differ,
    surely_divides,
    surely_equal,
    surely_less,
)
from dlc.te.text import parse_expr

SIZES = ("n", "m")
LOOPS = {"i": Const(7, INDEX), "j": Const(16, INDEX), "k": Var("n")}
BOUNDS = loop_bounds(LOOPS)


def value(expr: Expr, env: dict[str, int]) -> int:
    return eval(str(expr), {"min": min, "max": max}, env)


def leaves(names: tuple[str, ...]) -> st.SearchStrategy[Expr]:
    constants = st.integers(-20, 20).map(lambda v: Const(v, INDEX))
    return st.one_of(constants, st.sampled_from([Var(v) for v in names]))


def grow(children: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    divisor = st.integers(1, 12)
    return st.one_of(
        st.builds(lambda a, b: a + b, children, children),
        st.builds(lambda a, b: a - b, children, children),
        st.builds(lambda a, b: a * b, children, st.integers(-4, 4)),
        st.builds(lambda a, b: a // b, children, divisor),
        st.builds(lambda a, b: a % b, children, divisor),
        st.builds(minimum, children, children),
        st.builds(maximum, children, children),
    )


sizes = st.recursive(leaves(SIZES), grow, max_leaves=6)
indices = st.recursive(leaves((*SIZES, *LOOPS)), grow, max_leaves=7)
values = st.integers(0, 40)


@st.composite
def places(draw: st.DrawFn) -> dict[str, int]:
    """A value for each size, and one for each loop within its range."""
    env = {"n": draw(st.integers(1, 40)), "m": draw(values)}
    return env | {
        "i": draw(st.integers(0, 6)),
        "j": draw(st.integers(0, 15)),
        "k": draw(st.integers(0, env["n"] - 1)),
    }


@given(sizes, values, values)
def test_a_canonical_size_has_the_value_of_the_original(size: Expr, n: int, m: int) -> None:
    env = {"n": n, "m": m}
    assert value(canonical(size), env) == value(size, env)


@given(sizes)
def test_the_canonical_form_is_one(size: Expr) -> None:
    assert canonical(canonical(size)) == canonical(size)


@given(indices, places())
def test_a_simplified_index_has_the_value_of_the_original(index: Expr, env: dict[str, int]) -> None:
    assert value(simplify(index, BOUNDS), env) == value(index, env)


@given(indices, indices, places())
def test_what_is_sure_holds(a: Expr, b: Expr, env: dict[str, int]) -> None:
    x, y = value(a, env), value(b, env)
    assert not surely_less(a, b, BOUNDS) or x < y
    assert not surely_at_most(a, b, BOUNDS) or x <= y
    assert not surely_equal(a, b, BOUNDS) or x == y
    assert not surely_differ(a, b, BOUNDS) or x != y
    assert not surely_divides(4, a, BOUNDS) or x % 4 == 0


@given(indices, indices, places())
def test_a_simplified_comparison_has_the_value_of_the_original(
    a: Expr, b: Expr, env: dict[str, int]
) -> None:
    for op in (BinOp.LT, BinOp.LE, BinOp.EQ, BinOp.NE):
        test = Binary(op, a, b)
        assert value(simplify(test, BOUNDS), env) == value(test, env)


@given(indices, places())
def test_terms_split_into_a_sum(index: Expr, env: dict[str, int]) -> None:
    inner, outer = split_terms(index, {"i", "j"})
    assert value(inner, env) + value(outer, env) == value(index, env)


@pytest.mark.parametrize(
    ("text", "simple"),
    [
        ("(n + 2 - 3) // 1 + 1", "n"),
        ("(io * 14 + ii) // 14", "io"),
        ("(io * 14 + ii) % 14", "ii"),
        ("(io * 32 + jj) // 64", "io // 2"),
        ("(io * 32 + jj) % 64", "jj + io % 2 * 32"),
        ("(n * 6 + 5) // 4", "n + n // 2 + 1"),
        ("n // 3 // 5", "n // 15"),
        ("n // 8 * 8 % 8", "0"),
        ("min(n, n + 3)", "n"),
        ("(n * m) // m", "m * n // m"),  # m may be 0
        ("io * 32 + jj < (m + 31) // 32 * 32", "io < (m + 31) // 32"),
        ("io * 64 + jj + 32 < m * 64", "io < m"),
        ("io * 64 + jj + 33 < m * 64", "io * 64 + jj + 33 < m * 64"),
        ("io * 16 + jj < m * 16", "io * 16 + jj < m * 16"),
        ("31 < io * 32 + jj", "0 < io"),
        ("31 - m * 32 < io * 32 + jj", "0 < io + m"),
        ("30 < io * 32 + jj", "30 < io * 32 + jj"),
    ],
)
def test_index_arithmetic(text: str, simple: str) -> None:
    extents = {"io": Var("n"), "ii": Const(14, INDEX), "jj": Const(32, INDEX)}
    assert str(simplify(parse_expr(text), loop_bounds(extents))) == simple


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ("io * 14", "n"),  # io counts tiles of 14 that begin within n
        ("n % 8", "8"),
        ("n // 2", "n + 1"),
        ("(n + 1) // 16 * 8", "(n + 1) // 2 + 1"),
        ("min(n, 5)", "6"),
        ("n // 14 * 14", "n + 1"),
        ("p // 12", "n"),  # p counts twelve for each of n
        ("n - (p // 12 + 1)", "n"),
        ("max(n - 2, 0) // 8", "(n + 5) // 8 + 1"),  # whole vectors of n - 2, if so many there are
        ("n - max(n - 2, m)", "3"),
        ("some + 2", "n"),
        ("n // 12 * 12", "n - n % 4 + 1"),
        ("0", "(n - min(n - 1, 0) - 1) // 16 + 1"),  # a quotient of what is never negative
        ("0", "(n - min(n - 1, 0) - 1) // 16 * 16 + 1"),
    ],
)
def test_proofs_that_schedules_need(less: str, more: str) -> None:
    counts = {"io": "(n + 13) // 14", "p": "n * 12", "some": "max(n - 2, 0)"}
    bounds = loop_bounds({name: parse_expr(count) for name, count in counts.items()})
    assert surely_less(parse_expr(less), parse_expr(more), bounds)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("i * 32 + j", 1),
        ("min(i, 7) * 5 + j * 3", 3),
        ("min(i, 7)", 0),
        ("i % 4 + 2", 0),
        ("min(j, 7) + j", None),
        ("i * j", None),
        ("j - j", 0),
    ],
)
def test_a_variable_has_a_coefficient_whatever_others_do(text: str, found: int | None) -> None:
    assert coefficient(parse_expr(text), "j") == found


def test_what_is_not_linear_has_no_coefficients() -> None:
    assert coefficients(parse_expr("i * 32 + j - 7")) == {"i": 32, "j": 1}
    assert coefficients(parse_expr("i * j")) is None
    assert coefficients(parse_expr("i // 2")) is None


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ("n", "n // 2 * 2"),
        ("n // 2", "n // 6 * 3"),
        ("1", "n % 4"),
        ("n % 4 + 1", "3"),
        ("i", "5"),
        ("max(n, 3)", "n"),
        ("n", "min(n, 3)"),
        ("max(n, 3)", "n + 2"),  # its one side does, its other does not
        ("max(3, n)", "n + 2"),
        ("i", "max(n, 3)"),
    ],
)
def test_what_may_fail_is_not_sure(less: str, more: str) -> None:
    assert not surely_at_most(parse_expr(less), parse_expr(more), BOUNDS)


@pytest.mark.parametrize("text", ["(i * 8 + j) // 16", "(i * 8 + j) % 16", "(i * 3 + j) // 6"])
def test_digits_that_overlap_keep_their_value(text: str) -> None:
    index = parse_expr(text)
    for i in range(7):
        for j in range(16):
            env = {"i": i, "j": j}
            assert value(simplify(index, BOUNDS), env) == value(index, env)


@pytest.mark.parametrize(
    ("text", "simple"),
    [
        ("h + (4 - h % 4) % 4", "(h + 3) // 4 * 4"),
        ("(h + (4 - h % 4) % 4) % 4", "0"),
        ("(2 - h) % 4", "-h + (h + 1) // 4 * 4 + 2"),
        ("(h % 8 + w) % 4", "(h + w) % 4"),
        ("(h % 6 + w) % 4", "(w + h % 6) % 4"),
        ("(0 - h) % 2", "h % 2"),
        ("(h - h % 4 + 3) // 4", "h // 4"),
        ("(h - h % 4) // 12 * 12", "h // 12 * 12"),
        ("(h * 6 - h % 2 * 2 + 3) // 4", "h + h // 2"),
        ("(h % 4 - h % 4 % 3 + 2) // 3", "h % 4 // 3"),
        ("(h - h % 3) // 4", "(h + h % 3 * 3) // 4 - h % 3"),
    ],
)
def test_what_is_missing_to_a_multiple(text, simple):
    found = canonical(parse_expr(text))
    assert str(found) == simple
    for h in range(9):
        for w in range(9):
            assert eval(text, {}, {"h": h, "w": w}) == eval(simple, {}, {"h": h, "w": w})


def test_multiples_of_six_are_never_35():
    n, m = Var("n"), Var("m")
    assert surely_differ(n * 6 + m * 3, 35)
    assert not surely_differ(n * 6 + m * 3, 36)


def test_what_is_simple_comes_back_as_it_is():
    text = "A[i * 2 + j, max(n, m)] + (A[j, i] if i < n else 0.0)"
    simple = simplify(parse_expr(text, {"A": DType.F32}), BOUNDS)
    again = parse_expr(str(simple), {"A": DType.F32})
    assert simplify(simple, BOUNDS) is simple
    assert again is not simple
    assert again == simple


@pytest.mark.parametrize("size", [1, 2, 6, 8])
@pytest.mark.parametrize("text", ["n", "n - 2", "n // 3", "6 * n", "7", "max(n - 2, 0)", "2 - n"])
def test_whole_groups_are_as_many_as_fit_and_none_where_a_loop_does_not_run(text, size):
    extent = parse_expr(text)
    groups = whole_groups(extent, size)
    for n in range(40):
        count = max(value(extent, {"n": n}), 0)
        assert value(groups, {"n": n}) == count // size * size


def test_what_whole_groups_leave_is_a_remainder_where_that_can_be_told():
    n = Var("n")
    assert str(simplify(n - whole_groups(n, 6))) == "n % 6"
