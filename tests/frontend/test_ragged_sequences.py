"""Sequences whose elements differ in size, where only a run knows which or how many."""

from __future__ import annotations

import numpy as np
import pytest

from dlc.core.errors import UserError
from tests.frontend.text_model import run

X = np.arange(1, 16, dtype=np.float32).reshape(5, 3)


GROWING = """(float[n,3] x, int64 k, int64 p) => (float[a,b] y, int64 count, float[c,d] z)
    <bool go = {{1}}, int64[1] zero = {{0}}, int64 none = {{0}}, int64 one = {{1}}> {{
    e = SequenceEmpty()
    s = Loop(k, go, e) <body = step (int64 i, bool c, seq(float[q,3]) old) => (bool c2, new) {{
        c2 = Identity(c)
        m = Add(i, one)
        end = Unsqueeze(m, zero)
        r = Slice(x, zero, end)
        {body}
    }}>
    {then}
    z = ConcatFromSequence<axis=0>(t)
    count = SequenceLength(t)
    y = SequenceAt(t, p)
}}"""
ADD = "new = SequenceInsert(old, r)"
CHANGES = {
    "collected": (ADD, "t = Identity(s)", lambda parts, p: parts),
    "inserted at the front": (
        "new = SequenceInsert(old, r, none)",
        "t = Identity(s)",
        lambda parts, p: parts[::-1],
    ),
    "two at once": (
        "u = SequenceInsert(old, x) new = SequenceInsert(u, r)",
        "t = Identity(s)",
        lambda parts, p: [q for part in parts for q in (X, part)],
    ),
    "one inserted": (
        ADD,
        "t = SequenceInsert(s, x, p)",
        lambda parts, p: parts[:p] + [X] + parts[p:],
    ),
    "one erased": (ADD, "t = SequenceErase(s, none)", lambda parts, p: parts[1:]),
    "the last erased": (ADD, "t = SequenceErase(s)", lambda parts, p: parts[:-1]),
    "mapped": (
        ADD,
        "t = SequenceMap(s) <body = each (float[g,3] e) => (f) { f = Concat<axis=0>(e, e) }>",
        lambda parts, p: [np.concatenate([q, q]) for q in parts],
    ),
    "mapped to one size": (
        ADD,
        """t = SequenceMap(s) <body = each (float[g,3] e) => (f) {
            f = ReduceSum<keepdims=1>(e, zero)
        }>""",
        lambda parts, p: [q.sum(0, keepdims=True) for q in parts],
    ),
    "those of some length": (
        """big = Less(one, i)
        new = If(big) <then_branch = yes () => (u) { u = SequenceInsert(old, r) },
                       else_branch = no () => (v) { v = SequenceInsert(old, x) }>""",
        "t = Identity(s)",
        lambda parts, p: [q if len(q) > 2 else X for q in parts],
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_elements_of_a_loop_may_differ_in_size(name):
    body, then, wanted = CHANGES[name]
    text = GROWING.format(body=body, then=then)
    for steps, place in ((4, 1), (2, 0)):
        parts = wanted([X[: i + 1] for i in range(steps)], place)
        y, count, z = run(text, X, np.array(steps), np.array(place))
        np.testing.assert_array_equal(y, parts[place])
        np.testing.assert_array_equal(z, np.concatenate(parts))
        assert count == len(parts)
    with pytest.raises(UserError, match=r"no element at the position|outside of size"):
        run(text, X, np.array(3), np.array(-9))


def test_a_carried_value_grows_and_is_kept_in_each_state():
    text = """(float[n] x, int64 k) => (float[a] y, float[b] z) <bool go = {1}> {
        e = SequenceEmpty()
        y, s = Loop(k, go, x, e)
            <body = step (int64 i, bool c, float[q] v, seq(float[r]) old) => (bool c2, w, new) {
            c2 = Identity(c)
            w = Concat<axis=0>(v, x)
            new = SequenceInsert(old, w)
        }>
        z = ConcatFromSequence<axis=0>(s)
    }"""
    x = X[0]
    for steps in (0, 1, 3):
        y, z = run(text, x, np.array(steps))
        np.testing.assert_array_equal(y, np.tile(x, steps + 1))
        np.testing.assert_array_equal(z, np.tile(x, sum(range(2, steps + 2))))


def test_a_loop_reads_the_last_element_and_adds_a_longer_one():
    text = """(float[n] x, int64 k) => (float[a] y) <bool go = {1}, int64 last = {-1}> {
        e = SequenceConstruct(x)
        s = Loop(k, go, e) <body = step (int64 i, bool c, seq(float[r]) old) => (bool c2, new) {
            c2 = Identity(c)
            v = SequenceAt(old, last)
            w = Concat<axis=0>(v, x)
            new = SequenceInsert(old, w)
        }>
        y = SequenceAt(s, last)
    }"""
    for steps in (0, 1, 3):
        np.testing.assert_array_equal(run(text, X[0], np.array(steps))[0], np.tile(X[0], steps + 1))


def test_sequences_may_change_places_in_each_step():
    text = """(float[n] x, int64 k) => (int64 p, int64 q, float[a] y, float[b] z)
        <bool go = {1}, int64[1] zero = {0}> {
        e = SequenceEmpty()
        d = SequenceEmpty()
        s, t = Loop(k, go, e, d)
            <body = step (int64 i, bool c, seq(float[r]) u, seq(float[r]) v) => (bool c2, f, g) {
            c2 = Identity(c)
            end = Unsqueeze(i, zero)
            r = Slice(x, zero, end)
            f = Identity(v)
            g = SequenceInsert(u, r)
        }>
        p = SequenceLength(s)
        q = SequenceLength(t)
        y = ConcatFromSequence<axis=0>(s)
        z = ConcatFromSequence<axis=0>(t)
    }"""
    for steps in range(6):
        lists: list[list[np.ndarray]] = [[], []]
        for i in range(steps):
            lists = [lists[1], [*lists[0], X[0][:i]]]
        p, q, y, z = run(text, X[0], np.array(steps))
        assert [p, q] == [len(part) for part in lists]
        for found, part in zip((y, z), lists, strict=True):
            np.testing.assert_array_equal(found, np.concatenate([X[0][:0], *part]))


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("size", [0, 1, 2, 5, 7])
def test_the_last_part_of_a_split_may_be_smaller(axis, size):
    text = f"""(float[n,m,2] x, int64 p) => (float[a,b,2] y, float[c,d,2] z, int64 k)
        <int64 three = {{3}}> {{
        s = SplitToSequence<axis={axis if axis >= 0 else 1}>(x, three)
        y = ConcatFromSequence<axis={axis if axis >= 0 else -2}>(s)
        z = SequenceAt(s, p)
        k = SequenceLength(s)
    }}"""
    shape = (size, 4, 2) if axis == 0 else (4, size, 2)
    x = np.arange(size * 8, dtype=np.float32).reshape(shape)
    parts = np.split(x, range(3, size, 3), axis) if axis == 0 else np.split(x, range(3, size, 3), 1)
    if not size:
        with pytest.raises(UserError):
            run(text, x, np.array(0))
        return
    y, z, k = run(text, x, np.array(-1))
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(z, parts[-1])
    assert k == len(parts)


def test_a_run_says_into_what_it_splits():
    text = """(float[2,n] x, int64[k] sizes) => (float[2,a] y, int64 count) <int64 one = {1}> {
        s = SplitToSequence<axis=1>(x, sizes)
        d = SequenceErase(s, one)
        y = ConcatFromSequence<axis=1>(d)
        count = SequenceLength(s)
    }"""
    x = X[:4].T[:2]
    for sizes in ([1, 3], [0, 2, 2], [2, 0, 1, 1, 0]):
        y, count = run(text, np.ascontiguousarray(x), np.array(sizes))
        parts = np.split(x, np.cumsum(sizes)[:-1], 1)
        np.testing.assert_array_equal(y, np.concatenate([parts[0], *parts[2:]], 1))
        assert count == len(sizes)
    far = (1 << 63) - 1
    for sizes in ([1, 2], [5, -1], [4, 1], [far, far, 6]):  # the sum of the last is 4
        with pytest.raises(UserError, match="do not make up"):
            run(text, np.ascontiguousarray(x), np.array(sizes))


def test_a_position_chooses_among_elements_of_several_sizes():
    text = """(float[n,3] x, float[2,m] z, int64 p) => (float[a,b] y) {
        s = SequenceConstruct(x, z)
        y = SequenceAt(s, p)
    }"""
    for place, wanted in ((0, X), (1, X.T[:2]), (-2, X)):
        found = run(text, X, np.ascontiguousarray(X.T[:2]), np.array(place))
        np.testing.assert_array_equal(found[0], wanted)


def test_branches_may_give_sequences_of_elements_of_several_sizes():
    text = """(float[n,3] x, bool c, int64 p) => (float[a,3] y, int64 k) {
        s = If(c) <
            then_branch = yes () => (u) { w = Concat<axis=0>(x, x) u = SequenceConstruct(x, w) },
            else_branch = no () => (v) { v = SequenceConstruct(x) }>
        y = SequenceAt(s, p)
        k = SequenceLength(s)
    }"""
    for flag in (True, False):
        y, k = run(text, X, np.array(flag), np.array(-1))
        np.testing.assert_array_equal(y, np.concatenate([X, X]) if flag else X)
        assert k == 1 + flag


def test_elements_of_several_sizes_do_not_stack():
    text = GROWING.format(body=ADD, then="t = Identity(s)").replace(
        "z = ConcatFromSequence<axis=0>(t)", "w = ConcatFromSequence<axis=0, new_axis=1>(t)"
        " z = ReduceSum<keepdims=0>(w, zero)"
    )  # fmt: skip
    assert run(text, X, np.array(1), np.array(0))[2].tolist() == X[:1].tolist()
    with pytest.raises(UserError, match="differ in size along axis 0"):
        run(text, X, np.array(3), np.array(0))


def test_branches_may_both_give_the_sequence_there_was():
    text = """(float[n,3] x, float[n,3] z, bool c) => (float[a,3] y) {
        s = SequenceConstruct(x, z)
        t = If(c) <then_branch = yes () => (u) { u = Identity(s) },
                   else_branch = no () => (v) { v = Identity(s) }>
        y = ConcatFromSequence<axis=0>(t)
    }"""
    (found,) = run(text, X, -X, np.array(True))
    np.testing.assert_array_equal(found, np.concatenate([X, -X]))


SCANNED = {
    "a counted loop": """y = Loop(k, go) <body = step (int64 i, bool c) => (bool c2, r) {
        c2 = Identity(c)
        u = Slice(x, zero, e)
        j = CastLike(i, x)
        r = Add(u, j)
    }>""",
    "a loop that may end": """z, y = Loop(k, go, one)
        <body = step (int64 i, bool c, int64 v) => (bool c2, w, r) {
        w = Add(v, one)
        c2 = LessOrEqual(v, k)
        u = Slice(x, zero, e)
        j = CastLike(i, x)
        r = Add(u, j)
    }>""",
    "a scan": """n = Range(none, k, one) y = Scan<num_scan_inputs=1, body = step (int64 i) => (r) {
        u = Slice(x, zero, e)
        j = CastLike(i, x)
        r = Add(u, j)
    }>(n)""",
    "a scan that runs backwards": """n = Range(none, k, one)
        y = Scan<num_scan_inputs=1, scan_input_directions=[1], scan_output_directions=[1],
            body = step (int64 i) => (r) {
        u = Slice(x, zero, e)
        j = CastLike(i, x)
        r = Add(u, j)
    }>(n)""",
    "a map": """n = Range(none, k, one) s = SplitToSequence<keepdims=0>(n)
    t = SequenceMap(s) <body = step (int64 i) => (r) {
        u = Slice(x, zero, e)
        j = CastLike(i, x)
        r = Add(u, j)
    }>
    y = ConcatFromSequence<axis=0, new_axis=1>(t)""",
}


@pytest.mark.parametrize("name", SCANNED)
def test_what_steps_collect_may_have_a_size_that_a_step_finds_out(name):
    text = f"""(float[n,3] x, int64 k, int64[1] e) => (float[a,b,3] y)
        <bool go = {{1}}, int64[1] zero = {{0}}, int64 none = {{0}}, int64 one = {{1}}> {{
        {SCANNED[name]}
    }}"""
    for steps, end in ((3, 2), (1, 5), (2, 0)):
        (y,) = run(text, X, np.array(steps), np.array([end]))
        np.testing.assert_array_equal(y, np.stack([X[:end] + i for i in range(steps)]))
    assert run(text, X, np.array(0), np.array([2]))[0].shape[0] == 0


def test_what_steps_collect_does_not_stack_if_it_differs_in_size():
    text = """(float[n,3] x, int64[k] ends) => (float[a,b,3] y) <int64[1] zero = {0}> {
        y = Scan<num_scan_inputs=1, body = step (int64 e) => (r) {
            end = Unsqueeze(e, zero)
            r = Slice(x, zero, end)
        }>(ends)
    }"""
    np.testing.assert_array_equal(run(text, X, np.array([2, 2]))[0], np.stack([X[:2]] * 2))
    with pytest.raises(UserError, match="differ in size along axis 0"):
        run(text, X, np.array([1, 3, 2]))


REPEATED = """(float[n,3] x, int64[m] times) => (float[a,3] y)
    <bool go = {1}, int64[1] zero = {0}, int64[1] three = {3}> {
    each = Shape(times)
    ones = ConstantOfShape<value = int64[1] {1}>(each)
    rows = SplitToSequence(x, ones)
    counts = SplitToSequence(times, ones)
    steps = Squeeze(each)
    e = SequenceEmpty()
    s = Loop(steps, go, e) <body = step (int64 i, bool c, seq(float[p,3]) old) => (bool c2, new) {
        c2 = Identity(c)
        row = SequenceAt(rows, i)
        count = SequenceAt(counts, i)
        size = Concat<axis=0>(count, three)
        part = Expand(row, size)
        new = SequenceInsert(old, part)
    }>
    y = ConcatFromSequence<axis=0>(s)
}"""


def test_rows_are_repeated_as_often_as_a_step_reads():
    for times in ([2, 1, 3, 1, 4], [1, 1, 1, 1, 1]):
        (y,) = run(REPEATED, X, np.array(times))
        np.testing.assert_array_equal(y, np.repeat(X, times, axis=0))
    with pytest.raises(UserError, match="must hold"):
        run(REPEATED, X, np.array([2, 1]))
