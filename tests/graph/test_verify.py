"""The graph verifier: every invariant, and that all problems are reported."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dlc.core.errors import VerifyError
from dlc.core.types import DType
from dlc.graph.graph import Graph, Node, Value, call
from dlc.graph.ops.activation import Relu
from dlc.graph.ops.fused import FusedGroup
from dlc.graph.ops.shape import Expand
from dlc.graph.text import parse_graph
from dlc.graph.verify import verify_graph
from dlc.te.expr import Var
from dlc.te.types import TensorType

GOOD = parse_graph("""\
def main(n: size[1, 8], x: f32[n, 3]):
    c: f32[3] = const()
    y: f32[n, 3] = add(x, c)
    z: f32[n, 3] = relu(y)
    return z
""")
X, Y, Z = GOOD.inputs[0], GOOD.nodes[0].output, GOOD.nodes[1].output


def problems(graph: Graph) -> str:
    with pytest.raises(VerifyError) as caught:
        verify_graph(graph, when="in the test")
    assert caught.value.fields["when"] == "in the test"
    return str(caught.value.fields["problems"])


def renamed(name: str) -> Graph:
    return replace(GOOD, nodes=(GOOD.nodes[0], call(Relu(), Y, name=name)), outputs=(Y,))


def test_a_good_graph_passes():
    verify_graph(GOOD, when="in the test")


@pytest.mark.parametrize("name", ["x", "c", "y"])
def test_a_name_is_defined_once(name):
    assert f"'{name}' is defined twice" in problems(renamed(name))


def test_a_value_is_no_size():
    assert "'n' is a size, too" in problems(renamed("n"))


@pytest.mark.parametrize("name", ["a-b", "lambda", "f32", "const", ""])
def test_names_are_words_of_the_text(name):
    assert "cannot be the name of a value" in problems(renamed(name))
    assert "cannot be the name of a size" in problems(replace(GOOD, sizes=("n", name)))


def test_what_is_read_is_defined_before():
    swapped = replace(GOOD, nodes=GOOD.nodes[::-1])
    assert "'z' reads undefined 'y: f32[n, 3]'" in problems(swapped)
    other = Value("y", TensorType((4,)))
    assert "'w' reads undefined 'y: f32[4]'" in problems(
        replace(GOOD, nodes=(*GOOD.nodes, call(Relu(), other, name="w")))
    )


def test_results_have_the_inferred_type():
    wrong = Value("z", TensorType((5, 3)))
    node = Node(Relu(), (Y,), (wrong,))
    found = problems(replace(GOOD, nodes=(GOOD.nodes[0], node), outputs=(wrong,)))
    assert "'z' is declared f32[5, 3] but is f32[n, 3]" in found


def test_operands_that_do_not_fit_are_a_problem():
    two = Node(Relu(), (Y, Y), (Z,))
    assert "relu does not take 2 operands" in problems(replace(GOOD, nodes=(GOOD.nodes[0], two)))
    flags = Value("x", TensorType((Var("n"), 3), DType.BOOL))
    node = Node(Relu(), (flags,), (Z,))
    assert "type bool are not accepted" in problems(
        replace(GOOD, inputs=(flags,), nodes=(node,), outputs=(Z,))
    )


def test_outputs_are_defined():
    assert "output 'w: f32[2]' is undefined" in problems(
        replace(GOOD, outputs=(Value("w", TensorType((2,))),))
    )


def test_sizes_are_declared():
    text = problems(replace(GOOD, sizes=(), size_ranges={}))
    assert "'x: f32[n, 3]' reads undeclared size 'n'" in text
    node = call(Expand(shape=(Var("m") * 2, 3)), Value("c", TensorType((3,))), name="e")
    text = problems(replace(GOOD, nodes=(*GOOD.nodes, node)))
    assert "'e' has an attribute that reads undeclared size 'm'" in text
    assert "size 'n' is declared twice" in problems(replace(GOOD, sizes=("n", "n")))


@pytest.mark.parametrize("bounds", [(-1, 3), (4, 3)])
def test_bounds_hold_numbers(bounds):
    assert "size 'n' cannot be between" in problems(replace(GOOD, size_ranges={"n": bounds}))


def test_bounds_are_of_declared_sizes():
    assert "undeclared size 'm'" in problems(replace(GOOD, size_ranges={"m": (1, 2)}))


@pytest.mark.parametrize("data", [np.zeros(4, np.float32), np.zeros(3)])
def test_constants_have_the_declared_type(data):
    (value,) = GOOD.constants
    assert "'c: f32[3]' has data" in problems(replace(GOOD, constants={value: data}))


def test_graphs_inside_are_verified():
    body = parse_graph("def inner(n: size, a: f32[n, 3]):\n    return b\n".replace("b", "a"))
    broken = replace(body, sizes=("n", "k"), outputs=(Value("b", Y.type),))
    node = Node(FusedGroup(body=broken), (X,), (Value("g", Y.type),))
    text = problems(replace(GOOD, nodes=(*GOOD.nodes, node)))
    assert "in 'inner': output 'b: f32[n, 3]' is undefined" in text
    assert "'inner' has sizes that are unknown outside: k" in text
