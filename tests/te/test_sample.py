"""Points where a claim fails are real: no variable is outside of its bounds there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlc.core.types import INDEX, DType
from dlc.te.affine import loop_bounds
from dlc.te.expr import Binary, BinOp, Const, Expr, Var
from dlc.te.poly import add
from dlc.te.sample import is_negative_somewhere
from dlc.te.simplify import surely_at_most
from dlc.te.text import parse_expr
from tests.te.test_simplify import BOUNDS, indices


def fails(less: Expr, more: Expr) -> bool:
    """Whether `less <= more` is refuted as it is written: nothing is simplified before."""
    return is_negative_somewhere(add({(more,): 1}, {(less,): -1}), BOUNDS)


@given(indices, indices, st.integers(1, 12))
def test_what_always_holds_fails_nowhere(a: Expr, b: Expr, size: int) -> None:
    quotient = Binary(BinOp.FLOORDIV, a, Const(size, INDEX))
    rest = Binary(BinOp.MOD, a, Const(size, INDEX))
    assert not fails(Binary(BinOp.MUL, quotient, Const(size, INDEX)), a)
    assert not fails(Const(0, INDEX), rest)
    assert not fails(rest, Const(size - 1, INDEX))
    assert not fails(Binary(BinOp.MIN, a, b), a)
    assert not fails(a, Binary(BinOp.MAX, a, b))
    assert not fails(Binary(BinOp.ADD, quotient, rest), Binary(BinOp.ADD, rest, quotient))


@given(indices, indices)
def test_what_is_refuted_is_not_sure(a: Expr, b: Expr) -> None:
    assert not (fails(a, b) and surely_at_most(a, b, BOUNDS))


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ("0", "n"),
        ("0", "i"),
        ("i", "6"),
        ("j", "15"),
        ("k", "n - 1"),  # no k is a value where n is 0
        ("1", "n // n"),  # has no value where n is 0
    ],
)
def test_variables_keep_to_their_bounds(less: str, more: str) -> None:
    assert not fails(parse_expr(less), parse_expr(more))


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ("1", "n"),
        ("n", "4000"),
        ("i", "5"),
        ("1", "j"),
        ("k", "n - 2"),
        ("n % 4 % 3 % 2", "0"),
        ("n // 8 * (m // 8) % 4", "1"),
        ("n * m", "n * m // 32 * 32 + 1"),
        ("n", "max(m, 3)"),
        ("-n", "-1"),
    ],
)
def test_what_may_fail_is_refuted(less: str, more: str) -> None:
    assert fails(parse_expr(less), parse_expr(more))


def test_nobody_knows_what_a_load_gives() -> None:
    load = parse_expr("index(A[i])", {"A": DType.I64})
    assert not is_negative_somewhere({(load,): 1, (): -5}, BOUNDS)
    assert not is_negative_somewhere({(Var("n"), load): -1}, BOUNDS)


def test_bounds_may_speak_of_other_variables() -> None:
    bounds = BOUNDS | loop_bounds({"p": Var("i")})
    assert not is_negative_somewhere({(Var("i"),): 1, (Var("p"),): -1, (): -1}, bounds)
    assert is_negative_somewhere({(Var("i"),): 1, (Var("p"),): -1, (): -2}, bounds)
