"""Operators without kernels: those that hold graphs, and the bit cast."""

from __future__ import annotations

import numpy as np
import pytest

from dlc.core.errors import InternalError, ShapeError
from dlc.core.types import DType
from dlc.graph.evaluate import evaluate
from dlc.graph.graph import Value, call
from dlc.graph.ops.bits import BitCast
from dlc.graph.ops.fused import FusedGroup, compose
from dlc.graph.ops.scan import Scan
from dlc.graph.text import parse_graph
from dlc.graph.verify import verify_graph
from dlc.schedule.interpret import run_func
from dlc.schedule.lower import lower_tensors
from dlc.te.tensor import placeholder
from dlc.te.types import TensorType

GROUP = """\
def block(n: size, x: f32[n, 3], w: f32[3, 5], b: f32[5]):
    m: f32[n, 5] = matmul(x, w)
    s: f32[n, 5] = add(m, b)
    p: f32[n, 5] = relu(s)
    q: f32[n, 5] = relu(m)
    y: f32[n, 5] = sub(p, q)
    z: f32[n, 5] = add(y, y)
    return y, z
"""


@pytest.mark.parametrize("n", [0, 1, 4])
def test_the_results_of_a_group_are_those_of_its_body(n):
    body = parse_graph(GROUP)
    random = np.random.default_rng(1)
    arrays = [random.integers(-3, 4, s).astype(np.float32) for s in ((n, 3), (3, 5), (5,))]
    inputs = tuple(placeholder(v.name, v.type) for v in body.inputs)
    func = lower_tensors("kernel", body.sizes, inputs, FusedGroup(body=body).compute(*inputs))
    found = run_func(func, {"n": n}, dict(zip(("x", "w", "b"), arrays, strict=True)))
    m = arrays[0] @ arrays[1]
    y = np.maximum(m + arrays[2], 0) - np.maximum(m, 0)
    for actual, reference, expected in zip(
        found.values(), FusedGroup(body=body).reference(*arrays), (y, 2 * y), strict=True
    ):
        np.testing.assert_array_equal(actual, expected)
        np.testing.assert_array_equal(reference, expected)


def test_tensors_of_a_group_do_not_depend_on_the_names_of_values():
    one = parse_graph(GROUP)
    other = parse_graph(GROUP.replace("m", "mm").replace("mmatmmul", "matmul"))
    texts = []
    for body in (one, other):
        inputs = tuple(placeholder(f"in{i}", v.type) for i, v in enumerate(body.inputs))
        texts.append(str(lower_tensors("kernel", body.sizes, inputs, compose(body, inputs))))
    assert texts[0] == texts[1]


def test_a_group_refuses_operands_of_other_types():
    op = FusedGroup(body=parse_graph(GROUP))
    with pytest.raises(ShapeError, match="'block' takes"):
        op.infer(TensorType((2, 3)), TensorType((3, 5)), TensorType((5,)))


def test_constants_inside_a_group_are_our_fault():
    body = parse_graph(
        "def f(x: f32[2]):\n    c: f32[2] = const()\n    y: f32[2] = add(x, c)\n    return y\n"
    )
    with pytest.raises(InternalError, match="holds constants"):
        FusedGroup(body=body).compute(placeholder("x", TensorType((2,))))


SCAN = """\
def main(t: size, h: f32[2], x: f32[t, 2], k: f32[2]):
    def step(t: size, h: f32[2], x: f32[2], k: f32[2]):
        p: f32[2] = mul(h, k)
        n: f32[2] = add(p, x)
        y: f32[2] = neg(n)
        return n, y
    last: f32[2]
    all: f32[t, 2]
    last, all = scan(h, x, k, body=step, carries=1{reverse})
    return last, all
"""


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("steps", [1, 3])
def test_a_scan_carries_its_state(steps, reverse):
    text = SCAN.format(reverse=", reverse=True" if reverse else "")
    graph = parse_graph(text)
    verify_graph(graph, when="in the test")
    assert str(graph) == text
    x = np.arange(2.0 * steps).reshape(steps, 2)
    found = evaluate(graph, {"h": np.ones(2), "x": x, "k": np.array([2.0, -1.0])})
    h, rows = np.ones(2), np.zeros((steps, 2))
    for step in reversed(range(steps)) if reverse else range(steps):
        h = h * [2.0, -1.0] + x[step]
        rows[step] = -h
    np.testing.assert_array_equal(found["last"], h)
    np.testing.assert_array_equal(found["all"], rows)


def test_a_scan_of_nothing_returns_its_carries():
    graph = parse_graph(SCAN.format(reverse=""))
    found = evaluate(graph, {"h": np.ones(2), "x": np.zeros((0, 2)), "k": np.ones(2)})
    np.testing.assert_array_equal(found["last"], [1, 1])
    assert found["all"].shape == (0, 2)


SCANNED = parse_graph(SCAN.format(reverse="")).nodes[0].op
assert isinstance(SCANNED, Scan)
BODY = SCANNED.body


@pytest.mark.parametrize(
    ("types", "why"),
    [
        ([(2,), (4, 2)], "takes 3 operands"),
        ([(3,), (4, 2), (2,)], "'step' takes"),
        ([(2,), (2,), (2,)], "no sequence"),
        ([(2,), (4, 2), (5, 2)], "differ in length"),
    ],
)
def test_a_scan_refuses_what_does_not_fit(types, why):
    with pytest.raises(ShapeError, match=why):
        Scan(body=BODY, carries=1).infer(*map(TensorType, types))


def test_a_carry_keeps_its_type():
    body = parse_graph(
        "def f(h: f32[2], x: f32[2]):\n    y: f32[4] = concat(h, x, axis=0)\n    return y\n"
    )
    with pytest.raises(ShapeError, match="changes its type"):
        Scan(body=body, carries=1).infer(TensorType((2,)), TensorType((3, 2)))


def test_a_scan_has_no_kernel():
    with pytest.raises(InternalError, match="loop of the host"):
        Scan(body=BODY, carries=1).compute()


def test_a_call_of_a_group_names_its_results():
    body = parse_graph(GROUP)
    inputs = [Value(v.name, v.type) for v in body.inputs]
    node = call(FusedGroup(body=body), *inputs, name=("a", "b"))
    assert [v.type for v in node.outputs] == [v.type for v in body.outputs]


@pytest.mark.parametrize(
    ("of", "to", "given", "bits"),
    [
        (DType.F32, DType.I32, [1.0, -0.0], [0x3F800000, -(2**31)]),
        (DType.I8, DType.F8E5M2, [0x3C, -0x80], [1.0, -0.0]),
        (DType.U4, DType.I4, [3, 15], [3, -1]),
    ],
)
def test_a_bit_cast_keeps_the_bits(of, to, given, bits):
    found = BitCast(of=of, to=to).reference(np.array(given))
    np.testing.assert_array_equal(found, bits)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(bits))


def test_a_bit_cast_refuses_other_widths_and_has_no_kernel():
    op = BitCast(of=DType.F32, to=DType.I16)
    with pytest.raises(ShapeError, match="not as many bits"):
        op.infer(TensorType((2,)))
    with pytest.raises(ShapeError, match="is not f32"):
        op.infer(TensorType((2,), DType.I32))
    with pytest.raises(InternalError, match="a view"):
        op.compute(placeholder("x", TensorType((2,))))
