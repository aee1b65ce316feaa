"""Graph text: what it looks like, that it comes back, and what it says of bad text."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlc.core.errors import UserError
from dlc.core.types import DType
from dlc.graph.graph import Graph, Value, call
from dlc.graph.ops.activation import Clip
from dlc.graph.ops.from_sizes import Range
from dlc.graph.ops.fused import FusedGroup
from dlc.graph.ops.shape import Pad, Reshape
from dlc.graph.text import parse_graph
from dlc.graph.verify import verify_graph
from dlc.te.expr import BinOp, Const, Var, binary
from dlc.te.types import TensorType

WHOLE = """\
def main(batch: size[1, 32], h: size[2, None], x: f32[batch, 3, h, 8], s: f32[()]):
    w: f32[4, 3, 3, 3] = const()
    b: f32[4, 1, 1] = const(1.0, -2.0, -inf, nan)
    i: i64[2] = const(-1, 3)
    f: bool[()] = const(True)
    y: f32[batch, 4, h, 8] = conv(x, w, pads=(1, 1, 1, 1))
    z: f32[batch, 4, h, 8] = add(y, b)
    def relu_mean(batch: size, h: size, z: f32[batch, 4, h, 8]):
        r: f32[batch, 4, h, 8] = relu(z)
        m: f32[batch, 4, 1, 1] = reduce(r, kind='mean', axes=(2, 3))
        return r, m
    r: f32[batch, 4, h, 8]
    m: f32[batch, 4, 1, 1]
    r, m = relu_mean(z)
    q: f32[batch * h * 32] = reshape(r, shape=(batch * h * 32,))
    k: f16[batch * h * 32] = cast(q, to=f16)
    c: f32[()] = clip(s, min=-inf, max=1.5)
    return k, m, c
"""


def test_text_round_trips():
    graph = parse_graph(WHOLE)
    verify_graph(graph, when="in the test")
    assert str(graph) == WHOLE
    assert parse_graph(str(graph)) == graph
    assert graph.size_ranges == {"batch": (1, 32), "h": (2, None)}


def test_the_data_of_constants():
    w = np.arange(108, dtype=np.float32).reshape(4, 3, 3, 3)
    constants = {v.name: a for v, a in parse_graph(WHOLE, {"w": w}).constants.items()}
    np.testing.assert_array_equal(constants["w"], w)
    np.testing.assert_array_equal(constants["b"].reshape(-1), [1, -2, -math.inf, math.nan])
    assert constants["i"].dtype == np.int64
    assert constants["f"].shape == ()
    without = {v.name: a for v, a in parse_graph(WHOLE).constants.items()}
    assert not without["w"].any()
    with pytest.raises(UserError, match="does not fit"):
        parse_graph(WHOLE, {"w": w.astype(np.float64)})
    one = parse_graph("def f():\n    c: f32[2, 3] = const(7.0)\n    return c\n")
    np.testing.assert_array_equal(next(iter(one.constants.values())), np.full((2, 3), 7))


def test_a_group_named_like_an_operator_is_called_by_attribute():
    x = Value("x", TensorType((3,)))
    relu = parse_graph("def relu(x: f32[3]):\n    y: f32[3] = relu(x)\n    return y\n")
    node = call(FusedGroup(body=relu), x, name="y")
    graph = Graph("main", (), (x,), (node,), node.outputs)
    assert "= fused(x, body=relu)" in str(graph)
    assert parse_graph(str(graph)) == graph


def test_bodies_of_one_name_are_told_apart():
    text = """\
def main(x: f32[3]):
    def group(x: f32[3]):
        y: f32[3] = relu(x)
        return y
    y: f32[3] = group(x)
    def group(y: f32[3]):
        z: f32[3] = exp(y)
        return z
    z: f32[3] = group(y)
    return z
"""
    graph = parse_graph(text)
    bodies = [n.op.body for n in graph.nodes if isinstance(n.op, FusedGroup)]
    assert [body.nodes[0].op.name for body in bodies] == ["relu", "exp"]
    assert str(graph) == text


def test_a_graph_without_results():
    text = "def main(x: f32[3]):\n    return ()\n"
    assert str(parse_graph(text)) == text


SIZE_NAMES = st.sampled_from(["n", "m"])
SIZES = st.recursive(
    SIZE_NAMES.map(Var) | st.integers(0, 9).map(lambda n: Const(n, DType.INDEX)),
    lambda inner: st.builds(
        binary, st.sampled_from([BinOp.ADD, BinOp.MUL, BinOp.MIN, BinOp.MAX]), inner, inner
    ) | st.builds(lambda a, b: a // b, inner, st.integers(1, 5))
    | st.builds(lambda a, b: a % b, inner, st.integers(1, 5)),
    max_leaves=6,
)  # fmt: skip


@given(st.lists(SIZES, min_size=1, max_size=3), st.lists(SIZES, min_size=1, max_size=3))
def test_sizes_in_types_and_attributes_round_trip(shape, amounts):
    x = Value("x", TensorType(tuple(shape)))
    elems = x.type.elems
    flat = call(Reshape(shape=(elems,)), x, name="flat")
    moved = call(Pad(before=(amounts[0],), after=(amounts[-1],)), flat.output, name="moved")
    count = call(Range(size=amounts[0], start=amounts[-1]), name="count")
    graph = Graph("main", ("n", "m"), (x,), (flat, moved, count), (moved.output, count.output))
    assert parse_graph(str(graph)) == graph
    assert str(parse_graph(str(graph))) == str(graph)


@given(st.floats(), st.floats())
def test_float_attributes_round_trip(low, high):
    x = Value("x", TensorType((3,)))
    node = call(Clip(min=low, max=high), x, name="y")
    graph = Graph("main", (), (x,), (node,), node.outputs)
    assert str(parse_graph(str(graph))) == str(graph)


LINE = "def main(n: size, x: f32[n]):\n    y: f32[n] = {}\n    return y\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("def main(x: f32[3]:", "line 1"),
        ("x = 1", "exactly one 'def'"),
        (LINE.format("relu(z)"), "line 2: there is no such value: z"),
        (LINE.format("relux(x)"), "line 2: there is no operator 'relux'"),
        (LINE.format("relu(x, alpha=1.0)"), "'relu' has no attribute alpha"),
        (LINE.format("reduce(x, kind='sum')"), "line 2: .*axes"),
        (LINE.format("relu"), "line 2: not a graph statement"),
        (LINE.format("expand(x, shape=(m,))"), "there is no size 'm'"),
        (LINE.format("expand(x, shape=(n + 1.0,))"), "line 2"),
        (LINE.replace("f32[n]):", "f32[m]):").format("relu(x)"), "there is no size 'm'"),
        (LINE.replace("f32[n]):", "float):").format("relu(x)"), "line 1: not a tensor type"),
        (LINE.replace(", x: f32[n]", ", x").format("relu(x)"), "without a type"),
        (LINE.format("const()"), "a constant of unknown size"),
        ("def f():\n    c: f32[2] = const(1.0, 2.0, 3.0)\n    return c\n", "does not fit"),
    ],
)
def test_bad_text_names_the_line(text, why):
    with pytest.raises(UserError, match=why):
        parse_graph(text)
