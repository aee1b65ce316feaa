"""dlc.backend: ONNX's own backend interface."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

import dlc.backend
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
    with pytest.raises(dlc.InputError, match="1 arrays are given; the inputs are x, z"):
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


def test_only_the_processor():
    model = NETWORKS["perceptron"].model()
    assert dlc.backend.supports_device("CPU")
    assert dlc.backend.supports_device("cpu:0")
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
