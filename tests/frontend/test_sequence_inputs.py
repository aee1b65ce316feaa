"""Inputs that are sequences or optionals: the caller says how they are made."""

from __future__ import annotations

import numpy as np
import pytest

from dlc.core.errors import ModelError, UnsupportedModel, UserError
from dlc.frontend.onnx import import_model, load_model
from tests.frontend.text_model import model, run

A = np.arange(6, dtype=np.float32).reshape(2, 3)
B = -np.arange(3, dtype=np.float32).reshape(1, 3)


JOIN = "(seq(float[n,3]) s) => (float[a,3] y) { y = ConcatFromSequence<axis=0>(s) }"


def test_each_element_is_an_input():
    imported = import_model(load_model(model(JOIN)), shapes={"s": [(2, 3), (1, 3)]})
    assert imported.interface.inputs == ("s[0]", "s[1]")
    (y,) = run(JOIN, A, B, shapes={"s": [(2, 3), (1, 3)]})
    np.testing.assert_array_equal(y, np.concatenate([A, B]))


def test_sizes_of_elements_may_stay_open_and_differ():
    (y,) = run(JOIN, A, B, shapes={"s": [(None, 3), (None, None)]})
    np.testing.assert_array_equal(y, np.concatenate([A, B]))


def test_a_sequence_may_be_empty():
    text = """(seq(float[n,3]) s, float[1,3] x) => (float[a,3] y) {
        t = SequenceInsert(s, x)
        y = ConcatFromSequence<axis=0>(t)
    }"""
    np.testing.assert_array_equal(run(text, B, shapes={"s": []})[0], B)


@pytest.mark.parametrize("shapes", [{}, {"s": (2, 3)}, {"s": None}])
def test_the_length_of_a_sequence_must_be_given(shapes):
    with pytest.raises(ModelError, match="nobody says how long it is") as caught:
        import_model(load_model(model(JOIN)), shapes=shapes)
    assert "'s': [(...)" in caught.value.hint


def test_a_given_element_must_fit_the_declared_one():
    with pytest.raises(UserError, match=r"s\[1\]"):
        import_model(load_model(model(JOIN)), shapes={"s": [(2, 3), (2, 4)]})


def test_no_sequence_becomes_a_constant():
    with pytest.raises(UserError, match="cannot be made a constant"):
        import_model(load_model(model(JOIN)), values={"s": A})


OPTIONAL = """(optional(float[2,3]) o, float[2,3] x) => (float[2,3] y) {
    p = OptionalHasElement(o)
    y = If(p) <then_branch = a () => (g) { g = OptionalGetElement(o) },
               else_branch = b () => (h) { h = Neg(x) }>
}"""


def test_an_optional_may_have_a_value_or_not():
    np.testing.assert_array_equal(run(OPTIONAL, A, A + 1)[0], A)
    np.testing.assert_array_equal(run(OPTIONAL, A, shapes={"o": None})[0], -A)


def test_a_tensor_must_have_a_value():
    text = "(float[2,3] x) => (float[2,3] y) { y = Neg(x) }"
    np.testing.assert_array_equal(run(text, A, shapes={"x": None})[0], -A)  # says nothing


MAP = """(seq(float[n,3]) s, float[1] k) => (seq(float[n,3]) t) {
    t = SequenceMap(s, k) <body = f (float[n,3] e, float[1] c) => (float[n,3] r) { r = Mul(e, c) }>
}"""


def test_a_map_over_elements_of_several_shapes():
    k = np.array([3], np.float32)
    found = run(MAP, A, B, k, shapes={"s": [(2, 3), (1, 3)]})
    np.testing.assert_array_equal(found[0], 3 * A)
    np.testing.assert_array_equal(found[1], 3 * B)
    assert run(MAP, k, shapes={"s": []}) == []


def test_sequences_that_go_along_must_be_as_long():
    text = """(seq(float[3]) s, seq(float[3]) t) => (seq(float[3]) u) {
        u = SequenceMap(s, t) <body = f (float[3] a, float[3] b) => (float[3] r) { r = Add(a, b) }>
    }"""
    with pytest.raises(UnsupportedModel, match="differ in length"):
        import_model(load_model(model(text)), shapes={"s": [(3,)], "t": [(3,), (3,)]})


BUILD = """(seq(float[n,3]) s, float[1,3] x) => (float[a,3] y, int64[k] numbers)
    <int64 three = {3}, bool yes = {1}> {
    t, numbers = Loop(three, yes, s) <body = b (int64 i, bool c, seq(float[n,3]) old)
        => (bool go, seq(float[n,3]) new, int64 j) {
            two = Constant<value = int64 {2}>()
            go = Less(i, two)
            f = Cast<to=1>(i)
            row = Add(x, f)
            new = SequenceInsert(old, row)
            j = Identity(i)
        }>
    y = ConcatFromSequence<axis=0>(t)
}"""


def test_a_loop_may_build_a_sequence_and_collect_values():
    y, numbers = run(BUILD, A, B, shapes={"s": [(2, 3)]})
    np.testing.assert_array_equal(y, np.concatenate([A, B, B + 1, B + 2]))
    np.testing.assert_array_equal(numbers, [0, 1, 2])


def test_a_loop_that_builds_a_sequence_stops_when_its_condition_fails():
    y, numbers = run(BUILD.replace("int64 {2}", "int64 {1}"), A, B, shapes={"s": [(2, 3)]})
    np.testing.assert_array_equal(y, np.concatenate([A, B, B + 1]))
    np.testing.assert_array_equal(numbers, [0, 1])


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("starts", [True, False])
def test_a_run_may_know_how_long_a_loop_builds_a_sequence(steps, starts):
    text = BUILD.replace("int64 three = {3}, bool yes = {1}", "int64 zero = {0}")
    text = text.replace("float[1,3] x)", "float[1,3] x, int64 three, bool yes)", 1)
    given = (np.array(steps), np.array(starts))
    y, numbers = run(text, B, B, *given, shapes={"s": [(1, 3)]})
    wanted = range(steps) if starts else range(0)
    np.testing.assert_array_equal(y, np.concatenate([B, *(B + i for i in wanted)]))
    np.testing.assert_array_equal(numbers, wanted)


def test_a_loop_may_add_more_elements_than_are_written_out():
    text = BUILD.replace("three = {3}", "three = {65}").replace("int64 {2}", "int64 {99}")
    y, _ = run(text, B, B, shapes={"s": [(1, 3)]})
    np.testing.assert_array_equal(y, np.concatenate([B, *(B + i for i in range(65))]))


def test_a_loop_that_carries_an_optional_has_a_known_number_of_steps():
    text = """(float[3] x, int64 k, bool yes) => (bool y) {
        o = Optional()
        p = Loop(k, yes, o) <body = b (int64 i, bool c, optional(float[3]) old)
            => (bool go, optional(float[3]) new) { go = Identity(c) new = Identity(old) }>
        y = OptionalHasElement(p)
    }"""
    with pytest.raises(UnsupportedModel, match="only a run knows how many steps"):
        import_model(load_model(model(text)))


def test_a_loop_over_elements_of_several_shapes_is_written_out():
    text = """(seq(float[n,3]) s, float[3] z) => (float[3] y) <int64 two = {2}> {
        y = Loop(two, , z) <body = b (int64 i, bool c, float[3] old) => (bool go, float[3] new) {
            go = Identity(c)
            e = SequenceAt(s, i)
            zero = Constant<value_ints=[0]>()
            sum = ReduceSum<keepdims=0>(e, zero)
            new = Add(old, sum)
        }>
    }"""
    (y,) = run(text, A, B, np.zeros(3, np.float32), shapes={"s": [(2, 3), (1, 3)]})
    np.testing.assert_array_equal(y, A.sum(0) + B.sum(0))
