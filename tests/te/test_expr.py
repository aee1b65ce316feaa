"""Expressions compare, hash, pickle, print and parse as values; ill-typed ones cannot exist."""

from __future__ import annotations

import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlc.core.errors import InternalError, UserError
from dlc.core.types import INDEX, DType
from dlc.te.expr import (
    FALSE,
    TRUE,
    Binary,
    BinOp,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Unary,
    UnOp,
    Var,
    binary,
    both,
    cast,
    const,
    either,
    select,
    unary,
)
from dlc.te.text import parse_expr, print_expr

TYPES = {"A": DType.F32, "B": DType.I64, "C": DType.BOOL}

indices = st.recursive(
    st.one_of(
        st.integers(-5, 99).map(lambda v: Const(v, INDEX)),
        st.sampled_from([Var("i"), Var("n")]),
    ),
    lambda inner: st.builds(
        binary,  # folds what is trivial, as the parser does
        st.sampled_from([BinOp.ADD, BinOp.SUB, BinOp.MUL, BinOp.FLOORDIV, BinOp.MOD, BinOp.MIN]),
        inner,
        inner,
    ),
    max_leaves=5,
)
floats = st.recursive(
    st.one_of(
        st.sampled_from([0.0, -0.0, 1.5, -2.25, math.inf, -math.inf, math.nan]).map(
            lambda v: Const(v, DType.F32)
        ),
        indices.map(lambda i: Load("A", (i, Var("i")), DType.F32)),
        indices.map(lambda i: Cast(DType.F32, Load("B", (i,), DType.I64))),
    ),
    lambda inner: st.one_of(
        st.builds(
            lambda op, a, b: Binary(op, a, b),
            st.sampled_from([BinOp.ADD, BinOp.SUB, BinOp.DIV, BinOp.POW, BinOp.MAX]),
            inner,
            inner,
        ),
        st.builds(
            lambda op, a: Unary(op, a),
            st.sampled_from([UnOp.EXP, UnOp.NEG, UnOp.ERF, UnOp.ROUND]),
            inner.filter(lambda e: not isinstance(e, Const)),
        ),
        st.builds(
            lambda a, b, x, y: Select(
                Binary(BinOp.OR, Binary(BinOp.LT, a, b), Unary(UnOp.ISNAN, x)), x, y
            ),
            inner,
            inner,
            inner.filter(lambda e: not isinstance(e, Const)),
            inner,
        ),
    ),
    max_leaves=6,
)


def plain(expr: Expr) -> str:
    return print_expr(expr)


@pytest.mark.thorough
@given(floats)
def test_text_parses_to_what_was_printed(expr: Expr) -> None:
    again = parse_expr(plain(expr), TYPES)
    assert plain(again) == plain(expr)


@given(floats)
def test_expressions_pickle_and_hash(expr: Expr) -> None:
    hash(expr)
    again = pickle.loads(pickle.dumps(expr))
    assert again == expr
    assert hash(again) == hash(expr)


def test_negative_zero_and_nan_are_values() -> None:
    assert Const(0.0, DType.F32) != Const(-0.0, DType.F32)
    assert Const(math.nan, DType.F32) == Const(math.nan, DType.F32)
    assert Const(1, INDEX) != Const(1, DType.I64)


def test_an_expression_has_no_truth_value() -> None:
    with pytest.raises(InternalError, match="truth value"):
        bool(Var("n") < 1)


@pytest.mark.parametrize(
    "build",
    [
        lambda: Binary(BinOp.ADD, Const(1.0, DType.F32), Const(1, INDEX)),
        lambda: Binary(BinOp.AND, Var("i"), Var("j")),
        lambda: Select(Var("i"), Var("i"), Var("j")),
        lambda: Select(TRUE, Var("i"), Const(1.0, DType.F32)),
        lambda: Load("A", (Const(1.0, DType.F32),), DType.F32),
        lambda: Cast(DType.F32, Const(1, INDEX)),
        lambda: Const(1.5, INDEX),
        lambda: Const(1, DType.F32),
    ],
)
def test_ill_typed_nodes_cannot_be_built(build: object) -> None:
    with pytest.raises(InternalError):
        build()  # type: ignore[operator]


def test_constants_fold() -> None:
    i = Var("i")
    assert i + 0 == i
    assert i * 1 == i
    assert (i * 0) == Const(0, INDEX)
    assert (Const(7, INDEX) // 2) == Const(3, INDEX)
    assert (Const(-7, INDEX) // 2) == Const(-4, INDEX)
    assert both(TRUE, i < 3) == (i < 3)
    assert either(FALSE, i < 3) == (i < 3)
    assert select(FALSE, i, 4) == Const(4, INDEX)
    assert unary(UnOp.NEG, Const(2.0, DType.F32)) == Const(-2.0, DType.F32)


def test_casts_of_constants() -> None:
    assert cast(DType.F32, Const(3, INDEX)) == Const(3.0, DType.F32)
    assert cast(INDEX, const(math.nan, DType.F32)) == Const(0, INDEX)
    assert cast(INDEX, Var("i")) == Var("i")


def test_widening_and_back_is_nothing() -> None:
    narrow, wide = Load("A", (), DType.BF16), Load("B", (), DType.F32)
    assert cast(DType.BF16, cast(DType.F32, narrow)) == narrow
    assert cast(DType.F32, cast(DType.BF16, wide)) == Cast(DType.F32, Cast(DType.BF16, wide))
    assert cast(DType.BF16, cast(DType.F16, narrow)) != narrow


def test_denormals_are_flushed_once() -> None:
    once = unary(UnOp.FLUSH, Load("B", (), DType.F32))
    assert unary(UnOp.FLUSH, once) == once
    assert unary(UnOp.FLUSH, unary(UnOp.NEG, once)) != unary(UnOp.NEG, once)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("A[i", "not IR text"),
        ("Z[i]", "no buffer 'Z'"),
        ("foo(i)", "no function 'foo'"),
        ("A[1.0]", "not an index"),
        ("i + 1.0", "joins"),
        ("[1, 2]", "not an expression"),
        ("i < j < n", "not an expression"),
    ],
)
def test_text_that_does_not_parse_says_why(text: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        parse_expr(text, TYPES)
