"""Branches and loops that only the data decides; onnxruntime is the oracle."""

from __future__ import annotations

import logging

import numpy as np
import onnxruntime
import pytest

import dlc
from dlc.codegen.llvm import compile
from dlc.codegen.llvm.compile import target_machine
from dlc.core.target_parse import parse_target
from dlc.frontend.onnx import import_model, load_model
from dlc.graph.evaluate import evaluate
from dlc.graph.text import parse_graph, print_graph
from tests.frontend.text_model import model

X = np.arange(6, dtype=np.float32).reshape(2, 3)
EMPTY = np.zeros((0, 3), np.float32)
TRUE, FALSE = np.array(True), np.array(False)


def f32(value: float) -> np.ndarray:
    return np.array(value, np.float32)


def i64(value: int) -> np.ndarray:
    return np.array(value, np.int64)


BRANCHES = """(float[n,3] x, bool c) => (float[a,3] y, float[n,3] z) {
    y, z = If(c) <
        then_branch = yes () => (float[p,3] a, float[n,3] b) {
            a = Concat<axis=0>(x, x)
            b = Neg(x)
        },
        else_branch = no () => (float[q,3] d, float[n,3] e) {
            d = Identity(x)
            e = Abs(x)
        }>
}"""
# What a branch checks is checked only where it runs.
GUARDED = """(float[n,3] x, int64[2] s, bool c) => (float[a,b] y) {
    y = If(c) <
        then_branch = yes () => (float[p,q] a) { a = Reshape(x, s) },
        else_branch = no () => (float[p,q] d) { d = Transpose(x) }>
}"""
NESTED = """(float[n,3] x, bool c, bool d) => (float[n,3] y) {
    y = If(c) <
        then_branch = yes () => (float[n,3] a) {
            a = If(d) <
                then_branch = both () => (float[n,3] e) { e = Neg(x) },
                else_branch = one () => (float[n,3] f) { f = Add(x, x) }>
        },
        else_branch = no () => (float[n,3] b) { b = Mul(x, x) }>
}"""
GROWING = """(float[n,3] x, float limit, int64 most, bool first) => (float[a,3] y, float[k,3] rows)
    <int64[1] zero = {0}> {
    y, rows = Loop(most, first, x) <body = step (int64 i, bool go, float[p,3] s)
        => (bool more, float[q,3] t, float[3] row) {
            t = Concat<axis=0>(s, x)
            row = ReduceSum<keepdims=0>(t, zero)
            total = ReduceSum<keepdims=0>(t)
            more = Less(total, limit)
        }>
}"""
SWAPPED = """(float[3] x, float[3] y, int64 most) => (float[3] a, float[3] b, int64[k] numbers)
    <bool yes = {1}, int64 two = {2}> {
    a, b, numbers = Loop(most, yes, x, y) <body = step (int64 i, bool go, float[3] p, float[3] q)
        => (bool more, float[3] r, float[3] s, int64 doubled) {
            r = Identity(q)
            s = Identity(p)
            doubled = Mul(i, two)
            more = Identity(go)
        }>
}"""
# What a view shows changes under it, unless it is copied first.
SWAPPED_VIEWS = """(float[2,3] x, float[3,2] y, int64 most) => (float[2,3] a, float[3,2] b)
    <bool yes = {1}, int64[2] wide = {2, 3}, int64[2] high = {3, 2}> {
    a, b = Loop(most, yes, x, y) <body = step (int64 i, bool go, float[2,3] p, float[3,2] q)
        => (bool more, float[2,3] r, float[3,2] s) {
            r = Reshape(q, wide)
            s = Reshape(p, high)
            more = Identity(go)
        }>
}"""
# Each step decides what broadcasts: one row before the first one, as many as `w` has behind it.
SPREADING = """(float[a,3] x, float[n,3] w, int64 most) => (float[b,3] y, float[k,c,3] all)
    <bool yes = {1}> {
    y, all = Loop(most, yes, x) <body = step (int64 i, bool go, float[p,3] s)
        => (bool more, float[q,3] t, float[q,3] row) {
            t = Mul(s, w)
            row = Neg(t)
            more = Identity(go)
        }>
}"""
# The rows of an inner loop that grows in each step of the outer one.
TRIANGLE = """(int64 rows) => (int64[k] sizes) <bool yes = {1}, int64[1] minus = {-1}> {
    sizes = Loop(rows, yes) <body = step (int64 i, bool go) => (bool more, int64 size) {
        more = Identity(go)
        all = Loop(i, yes) <body = inner (int64 j, bool on) => (bool still, int64 number) {
            square = Mul(j, j)
            number = Identity(square)
            still = Less(square, rows)
        }>
        size = Size(all)
    }>
}"""
# One branch of a step is a loop, so the step's memory is asked for by steps within steps.
THREE_DEEP = """(float[n,3] x, int64 rows) => (float[n,3] y) <bool yes = {1}, int64 two = {2}> {
    y = Loop(rows, yes, x) <body = step (int64 i, bool go, float[n,3] p)
        => (bool more, float[n,3] q) {
            more = Identity(go)
            odd = Mod(i, two)
            choice = Cast<to=9>(odd)
            q = If(choice) <
                then_branch = again () => (float[n,3] a) {
                    a = Loop(i, yes, p) <body = inner (int64 j, bool on, float[n,3] r)
                        => (bool still, float[n,3] t) {
                            t = Add(r, x)
                            still = Identity(on)
                        }>
                },
                else_branch = once () => (float[n,3] b) { b = Sub(p, x) }>
        }>
}"""
# Names like those of counters and rows; `y_s` is what `s` of the body of `y` may become.
LIKE_COUNTERS = """(float[3] x, float[k,3] z) => (float[3] y, float[k,3] rows, float[3] y_s) {
    y, rows = Scan(x, z) <num_scan_inputs = 1,
        body = step (float[3] s, float[3] e) => (float[3] t, float[3] y_rows_row) {
            t = Add(s, e)
            y_rows_row = Neg(t)
        }>
    y_s = Add(y, y)
}"""
CASES: dict[str, tuple[str, list[tuple[np.ndarray, ...]]]] = {
    "branches": (BRANCHES, [(X, TRUE), (X, FALSE), (EMPTY, TRUE), (EMPTY, FALSE)]),
    "guarded": (GUARDED, [(X, np.array([3, 2]), TRUE), (X, np.array([5, 5]), FALSE)]),
    "nested": (NESTED, [(X, a, b) for a in (TRUE, FALSE) for b in (TRUE, FALSE)]),
    "growing": (
        GROWING,
        [(X, f32(50), i64(9), TRUE), (X, f32(500), i64(9), TRUE), (X, f32(-1), i64(9), TRUE)],
    ),
    "like counters": (LIKE_COUNTERS, [(X[0], np.concatenate([X, X, X]))]),
    "swapped": (SWAPPED, [(X[0], X[1], i64(n)) for n in (1, 2, 5)]),
    "swapped views": (
        SWAPPED_VIEWS,
        [
            (
                np.arange(6, dtype=np.float32).reshape(2, 3),
                np.arange(9, 15, dtype=np.float32).reshape(3, 2),
                i64(n),
            )
            for n in (1, 4)
        ],
    ),
    "three deep": (THREE_DEEP, [(X, i64(n)) for n in (0, 1, 2, 7)]),
    "triangle": (TRIANGLE, [(i64(1),), (i64(5),), (i64(9),)]),
}


@pytest.mark.parametrize("name", CASES)
def test_the_results_are_those_of_onnxruntime(name):
    text, calls = CASES[name]
    proto = model(text)
    compiled = dlc.compile(proto)
    graph = import_model(load_model(proto)).graph
    assert parse_graph(print_graph(graph), {v.name: a for v, a in graph.constants.items()}) == graph
    oracle = onnxruntime.InferenceSession(proto.SerializeToString())
    for arrays in calls:
        feeds = dict(zip((v.name for v in proto.graph.input), arrays, strict=True))
        values = dict(zip((v.name for v in graph.inputs), arrays, strict=True))
        ours = evaluate(graph, values).values()
        for want, got, ref in zip(
            oracle.run(None, feeds), compiled.run(feeds).values(), ours, strict=True
        ):
            assert got.dtype == np.asarray(want).dtype
            np.testing.assert_array_equal(got, want)
            np.testing.assert_array_equal(ref.astype(got.dtype), want)


@pytest.mark.parametrize("name", ["branches", "growing", "three deep"])
def test_a_long_host_program_gives_the_same(name, monkeypatch):
    text, calls = CASES[name]
    short = dlc.compile(model(text))
    monkeypatch.setattr(compile, "_LONG", 0)
    long = dlc.compile(model(text))
    for arrays in calls:
        for want, got in zip(short(*arrays), long(*arrays), strict=True):
            np.testing.assert_array_equal(got, want)


def test_a_long_host_program_is_written_as_it_stands(monkeypatch):
    levels = []

    def seen(target, level=3):
        levels.append(level)
        return target_machine(target, level)

    monkeypatch.setattr(compile, "target_machine", seen)
    host = "define i32 @f(i32 %x) {\n  ret i32 %x\n}\n"
    machine = parse_target("llvm -mcpu=haswell")
    for text in (host, host + "; and so on\n" * 30000):
        compile.compile_host(text, machine)
    assert levels == [3, 0]


def test_a_loop_that_never_runs_gives_what_it_was_given():
    compiled = dlc.compile(model(GROWING))
    for most, first in ((0, TRUE), (3, FALSE), (-5, TRUE)):
        y, rows = compiled(X, f32(50), i64(most), first)
        np.testing.assert_array_equal(y, X)
        assert rows.shape == (0, 3)


def test_a_loop_of_any_number_of_steps_has_no_memory_for_their_numbers():
    """A run that asks for 2^60 of them ends at once where a step fails."""
    text = """(int64 m, float[2] x, int64[1] i) => (float[2] y) {
        y = Loop(m, , x) <body = step (int64 number, bool going, float[2] a)
            => (bool go, float[2] b) {
                go = Identity(going)
                c = Gather(a, i)
                b = Add(a, c)
            }>
    }"""
    module = dlc.compile(model(text))
    x = np.array([1, 2], np.float32)
    np.testing.assert_array_equal(module(i64(3), x, np.array([0])), [8, 9])
    with pytest.raises(dlc.UserError, match="index"):
        module(i64(2**60), x, np.array([5]))


def test_a_loop_of_no_steps_stacks_no_results():
    compiled = dlc.compile(
        model("""(float[2,3] x) => (float[2,3] y, float[k,2,3] z)
        <int64 steps = {0}, bool yes = {1}> {
            y, z = Loop(steps, yes, x) <body = step (int64 i, bool go, float[2,3] s)
                => (bool on, float[2,3] a, float[2,3] b) {
                on = Identity(go)
                a = Relu(s)
                b = Neg(s)
            }>
        }""")
    )
    y, z = compiled(-X)
    np.testing.assert_array_equal(y, -X)
    assert z.shape == (0, 2, 3)


@pytest.mark.parametrize("rows", [1, 2])
def test_each_step_decides_what_broadcasts(rows):
    proto = model(SPREADING)
    compiled = dlc.compile(proto)
    oracle = onnxruntime.InferenceSession(proto.SerializeToString())
    for most in (1, 3):
        feeds = {"x": X[:rows], "w": 1 - X, "most": i64(most)}
        for want, got in zip(oracle.run(None, feeds), compiled.run(feeds).values(), strict=True):
            np.testing.assert_array_equal(got, want)


def test_a_branch_that_runs_is_checked():
    compiled = dlc.compile(model(GUARDED))
    with pytest.raises(dlc.UserError, match="the sizes do not fit"):
        compiled(X, np.array([5, 5]), TRUE)


def test_a_branch_that_cannot_be_is_left_to_the_run(caplog):
    text = """(float[2,3] x, bool c) => (float[a,b] y) <int64[2] s = {4, 4}> {
        y = If(c) <
            then_branch = yes () => (float[p,q] a) { a = Reshape(x, s) },
            else_branch = no () => (float[p,q] d) { d = Neg(x) }>
    }"""
    with caplog.at_level(logging.INFO, logger="dlc.frontend"):
        compiled = dlc.compile(model(text))
    found = [r.levelno for r in caplog.records if "then branch cannot run" in r.getMessage()]
    assert set(found) == {logging.INFO}  # a run says it where it matters
    np.testing.assert_array_equal(compiled(X, FALSE), -X)
    with pytest.raises(dlc.UserError, match=r"its then branch cannot run: .*4, 4"):
        compiled(X, TRUE)


def test_an_axis_removed_if_its_size_is_1_has_size_1():
    text = """(float[n,3] x) => (float[b] y)
        <int64[1] axis = {0}, int64 one = {1}, int64 at = {0}> {
        shape = Shape(x)
        rows = Gather(shape, at)
        c = Equal(rows, one)
        s = If(c) <
            then_branch = yes () => (float[q] a) { a = Squeeze(x, axis) },
            else_branch = no () => (float[p,q] d) { d = Identity(x) }>
        y = Neg(s)
    }"""
    compiled = dlc.compile(model(text))
    np.testing.assert_array_equal(compiled(X[:1]), -X[0])
    with pytest.raises(dlc.InputError, match="expected shape"):
        compiled(X)


SQUEEZED = """(float[n,m,3] x) => (float[{declared}] y)
    <int64[1] axis = {{1}}, int64[1] last = {{-1}}, int64 one = {{1}}> {{
    shape = Shape(x)
    size = Gather(shape, one)
    c = Equal(size, one)
    s = If(c) <
        then_branch = yes () => (float[p,q] a) {{ a = Squeeze(x, axis) }},
        else_branch = no () => (float[p,q,r] d) {{ d = Identity(x) }}>
    {rest}
}}"""


def test_what_follows_branches_of_two_ranks_is_in_both():
    rest = "t = Neg(s) u = ReduceSum<keepdims=0>(t, last) y = Reshape(u, last)"
    compiled = dlc.compile(model(SQUEEZED.format(declared="a", rest=rest)))
    for size in (0, 1, 2, 5):
        x = np.arange(size * 12, dtype=np.float32).reshape(4, size, 3)
        np.testing.assert_array_equal(compiled(x), -x.sum(-1).ravel())


def test_branches_of_two_ranks_may_follow_each_other():
    rest = """t = ReduceMax<keepdims=0>(s) low = Less(t, t)
    u = If(low) <
        then_branch = yes2 () => (e) { e = Neg(s) },
        else_branch = no2 () => (f) { f = Unsqueeze(s, last) }>
    v = Shape(u)
    w = CastLike(v, x)
    y = ReduceSum<keepdims=1>(w)"""
    compiled = dlc.compile(model(SQUEEZED.format(declared="1", rest=rest)))
    for size in (1, 2):
        x = np.arange(size * 12, dtype=np.float32).reshape(4, size, 3)
        sizes = [4, 3, 1] if size == 1 else [4, size, 3, 1]
        np.testing.assert_array_equal(compiled(x), [sum(sizes)])


def test_branches_of_two_ranks_in_a_body_whose_result_has_the_name_of_an_outer_value():
    text = """(float[n,1] x, bool c, int64 k) => (float y) <bool go = {1}, float none = {0}> {
        total = Mul(x, x)
        z = Loop(k, go, none) <body = step (int64 i, bool d, float before) => (bool d2, total) {
            d2 = Identity(d)
            s = If(c) <
                then_branch = yes () => (float[p,q] a) { a = Add(x, x) },
                else_branch = no () => (float[r] b) <int64[1] last = {1}> { b = Squeeze(x, last) }>
            t = ReduceSum<keepdims=0>(s)
            total = Add(before, t)
        }>
        t2 = ReduceSum<keepdims=0>(total)
        y = Add(z, t2)
    }"""
    compiled = dlc.compile(model(text))
    x, steps = np.array([[1], [2], [4]], np.float32), np.array(3)
    np.testing.assert_array_equal(compiled(x, TRUE, steps), 3 * 14 + 21)
    np.testing.assert_array_equal(compiled(x, FALSE, steps), 3 * 7 + 21)


def test_what_follows_branches_of_two_ranks_reads_no_value_of_a_branch():
    text = """(float[n,1] x, bool c) => (float y) <int64[1] last = {1}> {
        t = Mul(x, x)
        s = If(c) <
            then_branch = yes () => (float[p,q] a) { t = Add(x, x) a = Identity(t) },
            else_branch = no () => (float[r] b) { b = Squeeze(x, last) }>
        u = ReduceSum<keepdims=0>(t)
        v = Mul(s, u)
        y = ReduceSum<keepdims=0>(v)
    }"""
    compiled = dlc.compile(model(text))
    x = np.array([[1], [2], [4]], np.float32)
    np.testing.assert_array_equal(compiled(x, FALSE), 7 * 21)
    with pytest.raises(dlc.UserError, match="its then branch cannot run: its result would be"):
        compiled(x, TRUE)


@pytest.mark.parametrize(
    ("declared", "rest"), [("a,b,c", "y = Neg(s)"), ("a,b,c", "y = Transpose<perm=[0,1,2]>(s)")]
)
def test_of_two_ranks_the_one_that_the_outputs_have_is_compiled(declared, rest):
    compiled = dlc.compile(model(SQUEEZED.format(declared=declared, rest=rest)))
    x = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    np.testing.assert_array_equal(compiled(x), -x if "Neg" in rest else x)
    with pytest.raises(dlc.UserError, match="node 's': its then branch cannot run"):
        compiled(x[:, :1])


def test_of_two_ranks_the_lower_one_is_compiled():
    text = """(float[3] x, bool c) => (float[b] y) {
        s = If(c) <
            then_branch = yes () => (float[q] a) { a = Neg(x) },
            else_branch = no () => (float[p,q] d) <int64[2] s = {1, 3}> { d = Reshape(x, s) }>
        y = Neg(s)
    }"""
    compiled = dlc.compile(model(text))
    np.testing.assert_array_equal(compiled(X[0], TRUE), X[0])
    with pytest.raises(dlc.UserError, match="else branch cannot run: its result would be"):
        compiled(X[0], FALSE)
