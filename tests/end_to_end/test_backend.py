"""dlc.backend: ONNX's own backend interface."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, parser

import dlc.backend
from dlc.runtime import why_no_gpu
from tests.end_to_end.networks import NETWORKS

RELU = helper.make_node("Relu", ["x"], ["y"])
X = np.array([-1.0, 2.0], np.float32)
Y = np.array([0.0, 2.0], np.float32)


@pytest.fixture(scope="module")
def split():
    network = NETWORKS["concat and split"]
    return network.feeds({"batch": 2}), dlc.backend.prepare(network.model())


def test_inputs_by_name_in_order_or_alone(split):
    feeds, prepared = split
    first = prepared.run(feeds)
    assert first._fields == ("a", "b")
    for inputs in (list(feeds.values()), tuple(feeds.values())):
        for found, expected in zip(prepared.run(inputs), first, strict=True):
            np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(dlc.backend.run_node(RELU, [X])[0], Y)


def test_the_number_of_inputs_must_be_right(split):
    _, prepared = split
    with pytest.raises(dlc.InputError, match="1 array given; the inputs are x, z"):
        prepared.run(X)


def test_one_node():
    np.testing.assert_array_equal(dlc.backend.run_node(RELU, [X])[0], Y)
    np.testing.assert_array_equal(dlc.backend.run_node(RELU, {"x": X}, opset_version=13)[0], Y)
    clip = helper.make_node("Clip", ["x", "", "top"], ["y"])
    found = dlc.backend.run_node(clip, [X, np.float32(1.5)])
    np.testing.assert_array_equal(found[0], np.array([-1.0, 1.5], np.float32))


def test_one_model():
    network = NETWORKS["the same result twice"]
    found = dlc.backend.run_model(network.model(), [X.reshape(1, 2).repeat(2, 1)])
    assert len(found) == 3
    np.testing.assert_array_equal(found[0], -found[2])


def test_a_sequence_is_compiled_for_the_shapes_of_its_elements():
    text = """<ir_version: 8, opset_import: ["": 18]>
        main (seq(float[n]) s, optional(float[m]) o) => (seq(float[k]) t, bool there) {
            e = SequenceEmpty()
            t = SequenceMap(s) <body = f (float[n] x) => (float[n] y) { y = Neg(x) }>
            there = OptionalHasElement(o)
        }"""
    prepared = dlc.backend.prepare(parser.parse_model(text))
    first = prepared.run([[X, X[:1]], None])
    assert [e.tolist() for e in first.t] == [[1.0, -2.0], [1.0]]
    assert not first.there
    second = prepared.run({"s": [], "o": X})
    assert second.t == []
    assert second.there


def test_only_the_processor():
    model = NETWORKS["perceptron"].model()
    assert dlc.backend.supports_device("CPU")
    assert dlc.backend.supports_device("cpu:0")
    if not why_no_gpu():
        pytest.skip("this machine has a GPU")
    assert not dlc.backend.supports_device("CUDA")
    with pytest.raises(dlc.UserError, match="no device 'CUDA'"):
        dlc.backend.prepare(model, "CUDA")
    with pytest.raises(dlc.UserError, match="no option 'strict'"):
        dlc.backend.prepare(model, strict=True)
    assert not dlc.backend.is_compatible(model, "CUDA")


def test_compatible_is_what_would_compile():
    model = NETWORKS["perceptron"].model()
    assert dlc.backend.is_compatible(model)
    other = onnx.ModelProto.FromString(model.SerializeToString())
    other.graph.node[0].op_type = "Fancy"
    assert not dlc.backend.is_compatible(other)


def test_inputs_that_must_be_constants_are_fixed_for_each_run():
    """The elements of a kernel are loops; `block` is computed from the input `half`."""
    x = np.arange(8, dtype=np.float32).reshape(1, 4, 2)
    inputs = [
        helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 4, 2]),
        helper.make_tensor_value_info("half", onnx.TensorProto.INT64, [1]),
    ]
    nodes = [
        helper.make_node("Add", ["half", "half"], ["block"]),
        helper.make_node("Col2Im", ["x", "size", "block"], ["y"], strides=[2]),
    ]
    size = onnx.numpy_helper.from_array(np.array([4]), "size")
    graph = helper.make_graph(nodes, "g", inputs, [onnx.ValueInfoProto(name="y")], [size])
    rep = dlc.backend.prepare(helper.make_model(graph, ir_version=10))
    assert rep.fixed_inputs == ("half",)
    for _ in range(2):
        (y,) = rep.run([x, np.array([1])])
        np.testing.assert_array_equal(y, [[[0, 2, 1, 3], [4, 6, 5, 7]]])
    assert len(rep._modules) == 1
    with pytest.raises(dlc.ShapeError, match="col2im"):
        rep.run([x, np.array([2])])
    with pytest.raises(dlc.InputError, match="half"):
        rep.run({"x": x})


def test_a_sequence_of_as_many_elements_as_an_input_says_is_compiled_for_each_number():
    text = """<ir_version: 8, opset_import: ["": 18]>
        main (seq(float[n]) s, int64 steps, float[2] x) => (seq(float[n]) t) {
            t = Loop(steps, , s) <body = b (int64 i, bool go, seq(float[n]) old)
                                       => (bool on, seq(float[n]) new) {
                on = Identity(go)
                new = SequenceInsert(old, x)
            }>
        }"""
    prepared = dlc.backend.prepare(parser.parse_model(text))
    for steps in (0, 2):
        found = prepared.run({"s": [Y], "steps": np.int64(steps), "x": X})
        assert [e.tolist() for e in found.t] == [[0.0, 2.0], *[[-1.0, 2.0]] * steps]


def test_what_no_constant_helps_is_refused_at_once():
    node = helper.make_node("Fancy", ["x"], ["y"])
    with pytest.raises(dlc.ModelError, match="Fancy"):
        dlc.backend.run_node(node, [X])


def test_a_region_from_the_data_is_compiled_for_its_values():
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> '
        "main (float[1,1,4,4] x, float[8] roi, int64[4] sizes) => (float[1,1,p,q] y) {"
        ' y = Resize<mode="linear", coordinate_transformation_mode="tf_crop_and_resize">'
        "(x, roi, , sizes) }"
    )
    rep = dlc.backend.prepare(model)
    x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    roi = np.array([0, 0, 0, 0, 1, 1, 1, 1], np.float32)
    (found,) = rep.run([x, roi, np.array([1, 1, 4, 4])])
    np.testing.assert_array_equal(found, x)
