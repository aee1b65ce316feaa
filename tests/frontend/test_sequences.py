"""Sequences whose structure is known while importing."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from dlc.core.errors import UnsupportedModel, UserError
from dlc.frontend.onnx import import_model, load_model
from tests.frontend.text_model import model, run

X = np.arange(12, dtype=np.float32).reshape(4, 3)


MODELS = {
    "insert and erase": """(float[4,3] x) => (float[a,3] y, int64 n)
        <int64 one = {1}, int64 last = {-1}> {
        a = Neg(x)
        b = Abs(x)
        s = SequenceConstruct(x, a)
        t = SequenceInsert(s, b, one)
        u = SequenceErase(t, last)
        e = SequenceAt(u, last)
        w = SequenceInsert(u, e)
        y = ConcatFromSequence<axis=0>(w)
        n = SequenceLength(w)
    }""",
    "insert from the back": """(float[4,3] x) => (float[a,3] y) <int64 last = {-1}> {
        a = Neg(x)
        b = Abs(x)
        s = SequenceConstruct(x, a)
        t = SequenceInsert(s, b, last)
        y = ConcatFromSequence<axis=0>(t)
    }""",
    "stack": """(float[4,3] x) => (float[a,b,c] y) {
        a = Neg(x)
        e = SequenceEmpty()
        s = SequenceInsert(e, x)
        t = SequenceInsert(s, a)
        y = ConcatFromSequence<axis=-1, new_axis=1>(t)
    }""",
    "nothing is computed": """(float[4,3] x) => (float[a,b] y, int64 n) <int64 one = {1}> {
        s = SequenceConstruct(x, x)
        e = SequenceEmpty()
        t = SequenceInsert(s, x, one)
        u = SequenceInsert(e, x)
        y = SequenceAt(t, one)
        n = SequenceLength(u)
    }""",
    "split": """(float[4,3] x) => (float[a,b] y) <int64 three = {3}, int64 zero = {0}> {
        s = SplitToSequence<axis=0>(x, three)
        t = SequenceErase(s, zero)
        y = ConcatFromSequence<axis=0>(t)
    }""",
    "split in ones": """(float[4,3] x) => (float[a] y) <int64 last = {-2}> {
        s = SplitToSequence<axis=1, keepdims=0>(x)
        y = SequenceAt(s, last)
    }""",
}


@pytest.mark.parametrize("name", MODELS)
def test_sequences_leave_no_trace(name):
    wanted = ReferenceEvaluator(model(MODELS[name])).run(None, {"x": X})
    for got, want in zip(run(MODELS[name], X), wanted, strict=True):
        np.testing.assert_array_equal(got, want)


AT = """(float[4,3] x, int64 p) => (float[4,3] y) {
    a = Neg(x)
    s = SequenceConstruct(x, a)
    y = SequenceAt(s, p)
}"""
ERASE = """(float[4,3] x, int64 p) => (float[a,3] y) {
    a = Neg(x)
    b = Add(x, x)
    s = SequenceConstruct(x, a, b)
    t = SequenceErase(s, p)
    y = ConcatFromSequence<axis=0>(t)
}"""
INSERT = """(float[4,3] x, int64 p) => (float[a,3] y) {
    a = Neg(x)
    b = Add(x, x)
    s = SequenceConstruct(x, a)
    t = SequenceInsert(s, b, p)
    y = ConcatFromSequence<axis=0>(t)
}"""


@pytest.mark.parametrize(
    ("text", "places"), [(AT, (0, 1, -1, -2)), (ERASE, (0, 2, -2)), (INSERT, (0, 1, -1, -2))]
)
def test_a_position_may_come_from_the_data(text, places):
    for place in places:
        oracle = ReferenceEvaluator(model(text))
        (wanted,) = list(oracle.run(None, {"x": X, "p": np.array(place)}))
        np.testing.assert_array_equal(run(text, X, np.array(place))[0], wanted)


def test_an_element_may_be_inserted_at_the_end():
    (found,) = run(INSERT, X, np.array(2))  # ONNX's reference puts it at the start
    np.testing.assert_array_equal(found, np.concatenate([X, -X, X + X]))


@pytest.mark.parametrize("text", [ERASE, INSERT])
def test_a_position_that_is_none_is_refused_by_the_run(text):
    for place in (4, -4):
        with pytest.raises(UserError, match="no element at the position"):
            run(text, X, np.array(place))


def test_both_branches_may_give_a_sequence():
    text = """(float[4,3] x, bool c) => (float[4,3] y) <int64 one = {1}> {
        s = If(c) <
            then_branch = yes () => (t) { n = Neg(x) t = SequenceConstruct(x, n) },
            else_branch = no () => (u) { u = SequenceConstruct(x, x) }>
        y = SequenceAt(s, one)
    }"""
    for flag in (True, False):
        np.testing.assert_array_equal(run(text, X, np.array(flag))[0], -X if flag else X)


def test_a_sequence_is_a_list_of_outputs():
    text = "(float[4,3] x) => (seq(float[a,b]) s) { s = SplitToSequence<axis=1>(x) }"
    imported = import_model(load_model(model(text)))
    assert imported.interface.outputs == ("s[0]", "s[1]", "s[2]")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("(float[2] x) => (float[2] y) { s = SequenceConstruct(x) y = Neg(s) }", "tensors only"),
        ("(float[2] x) => (int64 y) { y = SequenceLength(x) }", "a tensor, not a sequence"),
        (
            "(float[2] x) => (float[2] y) <int64 p = {1}>"
            "{ s = SequenceConstruct(x) y = SequenceAt(s, p) }",
            "no position 1",
        ),
        (
            "(float[2] x, int64[3] z, int64 p) => (float[2] y)"
            "{ s = SequenceConstruct(x, z) y = SequenceAt(s, p) }",
            "differ in type",
        ),
        (
            "(float[n] x) => (int64 y) <int64 p = {0}>"
            "{ s = SplitToSequence(x, p) y = SequenceLength(s) }",
            "parts of 0 elements",
        ),
        ("(float[2] x) => (float[2] y) { o = Optional() y = OptionalGetElement(o) }", "no value"),
    ],
)
def test_what_is_not_known_is_refused(text, why):
    with pytest.raises(UnsupportedModel, match=why):
        import_model(load_model(model(text)))


def test_an_optional_is_its_value():
    text = """(float[4,3] x) => (float[4,3] y, bool p, bool q) {
        o = Optional(x)
        y = OptionalGetElement(o)
        p = OptionalHasElement(o)
        q = OptionalHasElement()
    }"""
    y, p, q = run(text, X)
    np.testing.assert_array_equal(y, X)
    assert p.item() is True
    assert q.item() is False
