"""Compiled sequences whose length only a run knows; NumPy is the oracle."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

import dlc
from dlc.core.errors import UserError

X = np.arange(15, dtype=np.float32).reshape(5, 3)

COLLECTED = """(float[n,3] x, int64 k, float top) => (float[a,3] y, int64 count, float[b] z)
    <bool go = {1}, int64 one = {1}> {
    all = SplitToSequence<keepdims=0>(x)
    e = SequenceEmpty()
    s = Loop(k, go, e) <body = step (int64 i, bool c, seq(float[3]) old) => (bool c2, new) {
        r = SequenceAt(all, i)
        m = ReduceMax<keepdims=0>(r)
        c2 = Less(m, top)
        w = Neg(r)
        new = SequenceInsert(old, w)
    }>
    y = ConcatFromSequence<axis=0, new_axis=1>(s)
    count = SequenceLength(s)
    z = ConcatFromSequence<axis=0>(s)
}"""
CHOSEN = """(float[n,3] x, float least) => (float[a,3] y, int64 count) <bool go = {1}> {
    rows = Shape<start=0, end=1>(x)
    k = Squeeze(rows)
    e = SequenceEmpty()
    s = Loop(k, go, e) <body = step (int64 i, bool c, seq(float[3]) old) => (bool c2, new) {
        c2 = Identity(c)
        r = Gather(x, i)
        m = ReduceMax<keepdims=0>(r)
        big = Less(least, m)
        new = If(big) <then_branch = yes () => (u) { u = SequenceInsert(old, r) },
                       else_branch = no () => (v) { v = Identity(old) }>
    }>
    y = ConcatFromSequence<axis=0, new_axis=1>(s)
    count = SequenceLength(s)
}"""
MAPPED = """(float[n,3] x, int64 p) => (float[a,4] y) <int64 two = {2}> {
    s = SplitToSequence<axis=0>(x, two)
    t = SequenceMap(s) <body = each (float[2,3] e) => (float[2,4] f) {
        m = ReduceSum<keepdims=1>(e, axis)
        f = Concat<axis=1>(e, m)
    }>
    d = SequenceErase(t, p)
    l = SequenceAt(t, p)
    u = SequenceInsert(d, l)
    y = ConcatFromSequence<axis=0>(u)
}""".replace("<int64 two = {2}>", "<int64 two = {2}, int64[1] axis = {1}>")


def compiled(text: str) -> dlc.Module:
    return dlc.compile(parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]>\nmain {text}'))


def test_a_loop_collects_until_a_condition_fails():
    module = compiled(COLLECTED)
    for steps, top, count in ((5, 99, 5), (3, 99, 3), (5, 6, 3), (1, 0, 1), (0, 0, 0)):
        y, k, z = module(X, np.array(steps), np.float32(top))
        np.testing.assert_array_equal(y, -X[:count])
        np.testing.assert_array_equal(z, -X[:count].ravel())
        assert k == count
    with pytest.raises(UserError, match="outside of size"):
        module(X, np.array(6), np.float32(99))


def test_a_loop_chooses_what_it_adds():
    module = compiled(CHOSEN)
    for rows in (0, 1, 5):
        for least in (-1, 6, 99):
            x = X[:rows]
            y, k = module(x, np.float32(least))
            np.testing.assert_array_equal(y, x[x.max(1, initial=-1) > least])
            assert k == len(y)


def test_a_map_of_parts_that_a_run_counts():
    module = compiled(MAPPED)
    x = np.concatenate([X, X[::-1], X[:2]])
    wanted = np.concatenate([x, x.sum(1, keepdims=True)], 1).reshape(6, 2, 4)
    for place in (0, 2, -1):
        y = module(x, np.array(place))
        order = [*np.delete(np.arange(6), place), place]
        np.testing.assert_array_equal(y, wanted[order].reshape(12, 4))
    with pytest.raises(UserError, match="no element at the position"):
        module(x, np.array(6))
    x = np.concatenate([X, X.sum(1, keepdims=True)], 1)  # a smaller part at the end
    np.testing.assert_array_equal(module(X, np.array(0)), x[[2, 3, 4, 0, 1]])


PREFIXES = """(float[n,3] x, int64 k, int64 p)
    => (float[a,3] y, float[b,3] z, float[c,3] w, int64 m)
    <bool go = {1}, int64[1] zero = {0}, int64 one = {1}, int64 none = {0}> {
    e = SequenceEmpty()
    s = Loop(k, go, e) <body = step (int64 i, bool c, seq(float[q,3]) old) => (bool c2, new) {
        c2 = Identity(c)
        end = Unsqueeze(i, zero)
        r = Slice(x, zero, end)
        odd = Mod(i, two)
        flag = Equal(odd, one)
        new = If(flag) <then_branch = yes () => (u) { u = SequenceInsert(old, r, none) },
                        else_branch = no () => (v) { v = SequenceInsert(old, r) }>
    }>
    d = SequenceErase(s, p)
    f = SequenceMap(d) <body = each (float[g,3] h) => (o) { t = Neg(h) o = Concat<axis=0>(h, t) }>
    y = ConcatFromSequence<axis=0>(f)
    z = SequenceAt(f, p)
    w = SequenceAt(s, none)
    m = SequenceLength(f)
}""".replace("int64 none = {0}", "int64 none = {0}, int64 two = {2}")
PARTS = """(float[2,n,3] x, int64 p) => (float[2,a,3] y, float[2,b,3] z) <int64 two = {2}> {
    s = SplitToSequence<axis=1>(x, two)
    z = SequenceAt(s, p)
    d = SequenceErase(s, p)
    t = SequenceInsert(d, z)
    y = ConcatFromSequence<axis=1>(t)
}"""


def test_elements_that_differ_in_size_from_step_to_step():
    module = compiled(PREFIXES)
    for steps, place in ((5, 0), (3, 1), (2, -1), (6, -2)):
        parts: list[np.ndarray] = []
        for i in range(steps):
            parts.insert(0 if i % 2 else len(parts), X[:i])
        first = parts[0]
        del parts[place]
        parts = [np.concatenate([part, -part]) for part in parts]
        if not -len(parts) <= place < len(parts):
            continue
        y, z, w, count = module(X, np.array(steps), np.array(place))
        np.testing.assert_array_equal(y, np.concatenate(parts))
        np.testing.assert_array_equal(z, parts[place])
        np.testing.assert_array_equal(w, first)
        assert count == len(parts)
    with pytest.raises(UserError, match="no element at the position"):
        module(X, np.array(3), np.array(3))


def test_a_smaller_part_at_the_end_of_any_axis():
    module = compiled(PARTS)
    for size in (1, 2, 5):
        x = np.arange(size * 6, dtype=np.float32).reshape(2, size, 3)
        parts = np.split(x, range(2, size, 2), 1)
        for place in (0, len(parts) - 1, -1):
            y, z = module(x, np.array(place))
            np.testing.assert_array_equal(z, parts[place])
            rest = [*(p for i, p in enumerate(parts) if i != place % len(parts)), parts[place]]
            np.testing.assert_array_equal(y, np.concatenate(rest, 1))
