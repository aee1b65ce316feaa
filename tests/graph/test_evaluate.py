"""The reference evaluator: sizes from shapes, floats in float64, shapes checked."""

from __future__ import annotations

import numpy as np
import pytest

from dlc.core.errors import InputError, InternalError, UserError
from dlc.graph.evaluate import evaluate
from dlc.graph.graph import Graph, Node, Value
from dlc.graph.ops.activation import Relu
from dlc.graph.ops.shape import Reshape
from dlc.graph.sizes import bind_op
from dlc.graph.text import parse_graph
from dlc.te.expr import Const, Var
from dlc.te.types import TensorType

TEXT = """\
def main(n: size, m: size, x: f32[n, 2 * m + 1], y: f32[n * m]):
    c: f32[1] = const(0.1)
    s: f32[n, m * 2 + 1] = add(x, c)
    t: f32[m * n + 2] = pad(y, before=(1,), after=(1,))
    u: f32[n * 2 * m + n] = reshape(s, shape=(n * 2 * m + n,))
    return u, t
"""


def test_sizes_follow_from_the_inputs():
    x, y = np.ones((2, 7), np.float32), np.ones(6, np.float32)
    found = evaluate(parse_graph(TEXT), {"x": x, "y": y})
    assert {k: a.shape for k, a in found.items()} == {"u": (14,), "t": (8,)}
    assert found["u"].dtype == np.float64
    np.testing.assert_allclose(found["u"], 1 + np.float64(np.float32(0.1)), rtol=1e-15)


@pytest.mark.parametrize(
    ("arrays", "why"),
    [
        ({"x": np.ones((2, 7))}, "missing"),
        ({"x": np.ones(7), "y": np.ones(6)}, "1 dimension, not 2"),
        ({"x": np.ones((2, 7)), "y": np.ones(5)}, "size 5 where"),
        ({"x": np.ones((2, 8)), "y": np.ones(6)}, "size 8 where"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(arrays, why):
    with pytest.raises(InputError, match=why):
        evaluate(parse_graph(TEXT), arrays)


def test_sizes_may_be_given():
    graph = parse_graph("def f(k: size):\n    r: i64[k] = range(size=k)\n    return r\n")
    np.testing.assert_array_equal(evaluate(graph, {}, {"k": 3})["r"], [0, 1, 2])


def test_an_input_may_be_an_output():
    graph = parse_graph("def f(x: f32[2]):\n    y: f32[2] = relu(x)\n    return x, y\n")
    found = evaluate(graph, {"x": np.array([-1, 1], np.float32)})
    np.testing.assert_array_equal(found["x"], [-1, 1])
    np.testing.assert_array_equal(found["y"], [0, 1])


def test_a_result_of_another_shape_than_declared_is_our_fault():
    x, wrong = Value("x", TensorType((2,))), Value("y", TensorType((3,)))
    graph = Graph("f", (), (x,), (Node(Relu(), (x,), (wrong,)),), (wrong,))
    with pytest.raises(InternalError, match="shape"):
        evaluate(graph, {"x": np.ones(2)})


def test_sizes_that_do_not_fit_an_operator_are_refused():
    add = (
        "def main(n: size, m: size, x: i8[n], y: i8[m]):\n    z: i8[m] = add(x, y)\n    return z\n"
    )
    x, y = np.ones(3, np.int8), np.ones(3, np.int8)
    np.testing.assert_array_equal(evaluate(parse_graph(add), {"x": x, "y": y})["z"], [2, 2, 2])
    with pytest.raises(UserError, match=r"node 'z' \(Add\): the sizes do not fit: .* must hold"):
        evaluate(parse_graph(add), {"x": x, "y": y[:1]})
    with pytest.raises(UserError, match=r"node 'z' \(Add\): the sizes do not fit: .* must hold"):
        evaluate(parse_graph(add), {"x": x, "y": y[:2]})


def test_bind_op_replaces_sizes_and_nothing_else():
    bound = bind_op(Reshape(shape=(Var("n"), Var("m"), 2)), {"n": 3})
    assert bound == Reshape(shape=(3, Var("m"), 2))
    assert isinstance(bound.shape[0], Const)
    assert bind_op(Relu(), {"n": 3}) == Relu()
