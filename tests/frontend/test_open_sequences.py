"""Sequences of which only a run knows how many elements they have."""

from __future__ import annotations

import numpy as np
import pytest

from dlc.core.errors import UnsupportedModel, UserError
from dlc.graph.ops.control import Loop
from dlc.graph.ops.scan import Scan
from tests.frontend.onnx_model import graph_of
from tests.frontend.text_model import model, run

X = np.arange(12, dtype=np.float32).reshape(4, 3)


def split(body: str, axis: int = 0) -> str:
    return f"""(float[n,m] x, int64 p) => (float[a,b] y)
        <int64 two = {{2}}, int64 zero = {{0}}> {{
        s = SplitToSequence<axis={axis}, keepdims=0>(x)
        {body}
    }}"""


JOIN = "y = ConcatFromSequence<axis={}, new_axis=1>({})"
SEQUENCES = {
    "stacked again": (0, JOIN.format(0, "s"), lambda x, p: x),
    "stacked along another axis": (0, JOIN.format(-1, "s"), lambda x, p: x.T),
    "split along the last axis": (1, JOIN.format(1, "s"), lambda x, p: x),
    "insert at the end": (
        0,
        f"e = SequenceAt(s, zero) t = SequenceInsert(s, e) {JOIN.format(0, 't')}",
        lambda x, p: np.concatenate([x, x[:1]]),
    ),
    "insert at a position": (
        0,
        f"e = SequenceAt(s, two) t = SequenceInsert(s, e, p) {JOIN.format(0, 't')}",
        lambda x, p: np.insert(x, int(p), x[2], axis=0),
    ),
    "erase a position": (
        0,
        f"t = SequenceErase(s, p) {JOIN.format(0, 't')}",
        lambda x, p: np.delete(x, int(p), axis=0),
    ),
    "erase the last": (0, f"t = SequenceErase(s) {JOIN.format(0, 't')}", lambda x, p: x[:-1]),
    "erase what was inserted": (
        0,
        f"e = Shape(x) f = CastLike(e, x) t = SequenceInsert(s, f) u = SequenceErase(t)"
        f" {JOIN.format(0, 'u')}",
        lambda x, p: x,
    ),
}


@pytest.mark.parametrize("name", SEQUENCES)
@pytest.mark.parametrize("rows", [3, 4])
def test_a_split_of_an_open_axis_is_a_sequence(name, rows):
    axis, body, wanted = SEQUENCES[name]
    x = X[:rows]
    for place in (np.array(1), np.array(-2)):
        (found,) = run(split(body, axis), x, place)
        np.testing.assert_array_equal(found, wanted(x, place))


def test_one_element_and_the_length_of_an_open_sequence():
    text = """(float[n,3] x, int64 p) => (int64 y, float[3] a, float[3] b, float[3] c)
        <int64 last = {-1}, int64 one = {1}> {
        s = SplitToSequence<keepdims=0>(x)
        y = SequenceLength(s)
        before = Sub(y, one)
        a = SequenceAt(s, last)
        b = SequenceAt(s, p)
        c = SequenceAt(s, before)
    }"""
    for rows in (1, 4):
        y, a, b, c = run(text, X[:rows], np.array(rows - 1))
        assert y == rows
        for found in (a, b, c):
            np.testing.assert_array_equal(found, X[rows - 1])
    with pytest.raises(UserError, match="outside of size"):
        run(text, X, np.array(4))


def test_parts_may_be_of_several_elements():
    text = """(float[n,3] x) => (float[a,3] y, int64 k) <int64 two = {2}> {
        s = SplitToSequence<axis=0>(x, two)
        y = ConcatFromSequence<axis=0>(s)
        k = SequenceLength(s)
    }"""
    y, k = run(text, X)
    np.testing.assert_array_equal(y, X)
    assert k == 2


def test_a_map_over_an_open_sequence_is_a_scan():
    text = """(float[n,3] x, float[3] z) => (float[3,a] y) {
        s = SplitToSequence<keepdims=0>(x)
        t = SequenceMap(s, z) <body = each (float[3] e, float[3] f) => (g) { g = Add(e, f) }>
        y = ConcatFromSequence<axis=1, new_axis=1>(t)
    }"""
    assert any(isinstance(node.op, Scan) for node in graph_of(model(text)).nodes)
    for rows in (0, 1, 4):
        (found,) = run(text, X[:rows], X[3])
        np.testing.assert_array_equal(found, (X[:rows] + X[3]).T)


def test_an_open_sequence_is_no_output():
    text = "(float[n,3] x) => (seq(float[a,b]) s) { s = SplitToSequence<axis=0>(x) }"
    with pytest.raises(UnsupportedModel, match="only a run knows how long it is") as caught:
        graph_of(model(text))
    assert caught.value.issues[0].fields["needs"] == "s"  # whose inputs may be made constants


LOOP = """(float[n,3] x) => (float[a,3] y, int64 k) <bool go = {{1}}> {{
    sh = Shape<start=0, end=1>(x)
    n = Squeeze(sh)
    {start}
    s = Loop(n, go, e) <body = step (int64 i, bool c, seq(float[3]) before) => (bool c2, t) {{
        c2 = Identity(c)
        r = Gather(x, i)
        {body}
    }}>
    y = ConcatFromSequence<axis=0, new_axis=1>(s)
    k = SequenceLength(s)
}}"""
EMPTY = "e = SequenceEmpty()"
FULL = "z = ReduceSum<keepdims=0>(x, zero) e = SequenceConstruct(z)"
ADD = "t = SequenceInsert(before, r)"


def loop(start: str, body: str) -> str:
    return LOOP.format(start=start, body=body).replace(
        "<bool go = {1}>", "<bool go = {1}, int64[1] zero = {0}, int64 front = {0}>"
    )


@pytest.mark.parametrize("rows", [0, 1, 4])
def test_a_loop_collects_what_it_adds_to_a_sequence(rows):
    text = loop(EMPTY, ADD)
    assert any(isinstance(node.op, Scan) for node in graph_of(model(text)).nodes)
    y, k = run(text, X[:rows])
    np.testing.assert_array_equal(y, X[:rows])
    assert k == rows


@pytest.mark.parametrize("rows", [1, 4])
def test_a_loop_may_add_several_elements_to_some(rows):
    text = loop(FULL, "u = SequenceInsert(before, r) w = Neg(r) t = SequenceInsert(u, w)")
    x = X[:rows]
    y, k = run(text, x)
    both = np.stack([x, -x], 1).reshape(-1, 3)
    np.testing.assert_array_equal(y, np.concatenate([x.sum(0, keepdims=True), both]))
    assert k == 1 + 2 * rows


GROWN = {
    "inserted at the front": (
        EMPTY,
        "t = SequenceInsert(before, r, front)",
        lambda x: x[::-1],
    ),
    "with its length": (
        EMPTY,
        "l = SequenceLength(before) f = CastLike(l, r) q = Add(r, f) t = SequenceInsert(before, q)",
        lambda x: x + np.arange(len(x), dtype=np.float32)[:, None],
    ),
    "with its last element": (
        FULL,
        "l = SequenceAt(before, i) q = Add(r, l) t = SequenceInsert(before, q)",
        lambda x: np.cumsum(np.concatenate([x.sum(0, keepdims=True), x]), 0),
    ),
    "if a condition holds": (
        EMPTY,
        """sum = ReduceSum<keepdims=0>(r) lim = ReduceMax<keepdims=0>(r) w = Sub(sum, lim)
        th = ReduceSum<keepdims=0>(r, zero) go2 = Less(lim, w)
        t = If(go2) <then_branch = yes () => (u) { u = SequenceInsert(before, r) },
                     else_branch = no () => (v) { v = Identity(before) }>""",
        lambda x: x[x.max(1) < x.sum(1) - x.max(1)],
    ),
}


@pytest.mark.parametrize("name", GROWN)
@pytest.mark.parametrize("rows", [1, 4])
def test_a_loop_carries_the_sequence_that_it_changes(name, rows):
    start, body, wanted = GROWN[name]
    text = loop(start, body)
    assert any(isinstance(node.op, Loop) for node in graph_of(model(text)).nodes)
    y, k = run(text, X[:rows])
    np.testing.assert_array_equal(y, wanted(X[:rows]))
    assert k == len(wanted(X[:rows]))


def test_a_loop_goes_through_a_sequence_that_it_leaves_alone():
    text = """(float[n,3] x) => (float[a,3] y) <bool go = {1}> {
        xs = SplitToSequence<keepdims=0>(x)
        n = SequenceLength(xs)
        e = SequenceEmpty()
        a, s = Loop(n, go, xs, e)
            <body = step (int64 i, bool c, seq(float[3]) all, seq(float[3]) before)
                 => (bool c2, same, t) {
            c2 = Identity(c)
            same = Identity(all)
            r = SequenceAt(all, i)
            w = Neg(r)
            t = SequenceInsert(before, w)
        }>
        y = ConcatFromSequence<axis=0, new_axis=1>(s)
    }"""
    assert any(isinstance(node.op, Scan) for node in graph_of(model(text)).nodes)
    for rows in (0, 1, 4):
        np.testing.assert_array_equal(run(text, X[:rows])[0], -X[:rows])


def test_a_loop_that_ends_by_its_condition_collects_elements():
    text = """(float[4,3] x, float top) => (float[a,3] y) <bool go = {1}, int64 one = {1}> {
        e = SequenceEmpty()
        zero = Sub(one, one)
        j, s = Loop("", go, zero, e)
            <body = step (int64 i, bool c, int64 at, seq(float[3]) before) => (bool c2, next, t) {
            r = Gather(x, at)
            m = ReduceMax<keepdims=0>(r)
            c2 = Less(m, top)
            next = Add(at, one)
            t = SequenceInsert(before, r)
        }>
        y = ConcatFromSequence<axis=0, new_axis=1>(s)
    }"""
    np.testing.assert_array_equal(run(text, X, np.float32(4))[0], X[:2])
    np.testing.assert_array_equal(run(text, X, np.float32(0))[0], X[:1])


def test_branches_may_give_sequences_of_any_lengths():
    text = """(float[n,3] x, bool c) => (float[a,3] y, int64 k) {
        s = SplitToSequence<keepdims=0>(x)
        t = If(c) <
            then_branch = yes () => (u) { f = ReduceMax<keepdims=0>(x, zero)
                                          u = SequenceInsert(s, f) },
            else_branch = no () => (v) { v = Identity(s) }>
        y = ConcatFromSequence<axis=0, new_axis=1>(t)
        k = SequenceLength(t)
    }""".replace(
        "=> (float[a,3] y, int64 k) {", "=> (float[a,3] y, int64 k) <int64[1] zero = {0}> {"
    )
    for flag in (True, False):
        y, k = run(text, X, np.array(flag))
        np.testing.assert_array_equal(y, np.concatenate([X, X[-1:]]) if flag else X)
        assert k == 4 + flag


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            loop(EMPTY, "q = Unsqueeze(r, zero) u = SequenceInsert(before, r)"
                 " t = SequenceInsert(u, q)"),
            r"differ in type: f32\[3\] and f32\[1, 3\]",
        ),
        (
            "(float[2] x, bool c) => (float[a] y) {"
            " s = If(c) <then_branch = a () => (t) { t = SequenceEmpty() },"
            "            else_branch = b () => (u) { u = Neg(x) }>"
            " y = ConcatFromSequence<axis=0>(s) }",
            "whether a result is a sequence",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_rows_is_refused(text, why):
    with pytest.raises(UnsupportedModel, match=why):
        graph_of(model(text))
