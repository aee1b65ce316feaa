"""Text and function are two forms of one thing, and bad text is refused with its line."""

import textwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlc.core.errors import UserError
from dlc.core.types import DType
from dlc.schedule.loop import (
    Alloc,
    Block,
    Buffer,
    For,
    Func,
    If,
    Invoke,
    LoopKind,
    Scope,
    Store,
    block,
)
from dlc.schedule.text import parse_func, print_func
from dlc.te.expr import BinOp, Const, Load, Var, binary, const, maximum
from dlc.te.types import TensorType
from tests.schedule.data import FULL

F32 = TensorType((Var("n"), 3))


def index(draw):
    names = st.sampled_from(["i", "j", "n"])
    leaf = st.one_of(names.map(Var), st.integers(0, 9).map(lambda v: Const(v, DType.INDEX)))
    return draw(
        st.recursive(
            leaf,
            lambda sub: st.tuples(st.sampled_from(["+", "-", "*", "//", "%"]), sub, sub).map(
                lambda t: binary(BinOp(t[0]), t[1], t[2])
            ),
            max_leaves=4,
        )
    )


@st.composite
def values(draw):
    load = Load("A", (index(draw), index(draw)), DType.F32)
    number = const(draw(st.floats(width=32)), DType.F32)
    return draw(st.sampled_from([load, number, load + number, maximum(load, number), load * load]))


@st.composite
def stmts(draw, depth=3, names=None):
    names = names if names is not None else [f"v{k}" for k in range(40)]
    kinds = ["store", "add", "invoke"] + (["for", "if", "block", "alloc"] if depth else [])
    match draw(st.sampled_from(kinds)):
        case "store":
            return Store("B", (index(draw), index(draw)), draw(values()))
        case "add":
            at = (index(draw), index(draw))
            op = draw(st.sampled_from(["+", "*", "max", "min"]))
            return Store("B", at, binary(BinOp(op), Load("B", at, DType.F32), draw(values())))
        case "invoke":
            return Invoke("dot", (("A", (index(draw), index(draw))), ("B", (index(draw),))))
        case "for":
            kind = draw(st.sampled_from(list(LoopKind)))
            notes = (("prefetch", 2),) if draw(st.booleans()) else ()
            extent = draw(st.sampled_from([Const(4, DType.INDEX), Var("n"), Var("n") // 2 + 1]))
            return For(names.pop(), extent, kind, draw(stmts(depth - 1, names)), notes)
        case "if":
            return If(index(draw) < index(draw), draw(stmts(depth - 1, names)))
        case "alloc":
            buffer = Buffer(names.pop(), TensorType((2, 3), draw(st.sampled_from(list(DType)))))
            scope = draw(st.sampled_from(list(Scope)))
            return Alloc(buffer, scope, draw(stmts(depth - 1, names)))
        case _:
            parts = draw(st.lists(stmts(depth - 1, names), min_size=0, max_size=3))
            return block(*parts)


@pytest.mark.thorough
@given(stmts())
@settings(max_examples=150, deadline=None)
def test_parsing_undoes_printing(body):
    func = Func("f", ("n",), (Buffer("A", F32),), (Buffer("B", F32),), body)
    assert parse_func(print_func(func)) == func


def test_everything_has_a_spelling():
    func = parse_func(FULL)
    assert print_func(func) == FULL
    assert func.in_place == (("B", "A"),)
    assert func.sizes == ("n",)


def test_an_allocation_reaches_to_the_end_of_its_block():
    inner = Alloc(Buffer("t", F32), Scope.LOCAL, Block(()))
    store = Store("B", (), const(1, DType.F32))
    assert block(inner, store) == Alloc(Buffer("t", F32), Scope.LOCAL, store)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("    x = 3", "not a statement"),
        ("    for i in zip(3):\n        B[i] = 0.0", "not a statement"),
        ("    for i in range(3):\n        B[i] = 0.0\n    else:\n        B[0] = 0.0", "not a stat"),
        ("    if 1 < 2:\n        B[0] = 0.0\n    else:\n        B[0] = 1.0", "not a statement"),
        ("    B[0] -= 1.0", "only"),
        ("    C[0] = 1.0", "no buffer 'C'"),
        ('    t = alloc(f32[3], "moon")', "no scope 'moon'"),
        ("    for i in range(3, hint=x):\n        B[i] = 0.0", "a note"),
        ('    invoke("dot", 3)', "not an element"),
        ("    B[0] = (", "line 2"),
    ],
)
def test_bad_text_is_refused(line, reason):
    text = f"def f(A: f32[3], *, B: f32[3]):\n{line}\n"
    with pytest.raises(UserError, match=reason) as caught:
        parse_func(text)
    assert "line" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x = 3", "exactly one 'def'"),
        ("def f(A, *, B: f32[3]):\n    B[0] = 0.0", "no type"),
        ("@speed\ndef f(*, B: f32[3]):\n    B[0] = 0.0", "not a decorator"),
        ("@in_place(B=3)\ndef f(*, B: f32[3]):\n    B[0] = 0.0", "not output="),
        ("def f(A: g32[3], *, B: f32[3]):\n    B[0] = 0.0", "not a tensor type"),
    ],
)
def test_a_bad_head_is_refused(text, reason):
    with pytest.raises(UserError, match=reason):
        parse_func(textwrap.dedent(text))


def test_an_allocation_inside_a_block_takes_what_follows_too():
    store = Store("B", (), const(1, DType.F32))
    first = block(store, Alloc(Buffer("t", F32), Scope.LOCAL, store))
    joined = Alloc(Buffer("t", F32), Scope.LOCAL, block(store, store))
    assert block(first, store) == block(store, joined)
