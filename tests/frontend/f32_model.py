"""Models of f32[2] values, as messages; and what is said of those that are refused."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper

from dlc.core.errors import ModelError
from dlc.frontend.onnx.load import load_model


def model(nodes, inputs=("x",), outputs=("y",), constants=(), **more) -> onnx.ModelProto:
    """A model of f32[2] values."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in outputs],
        list(constants),
    )
    opset = more.pop("opset", 17)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], **more)


def relu(x="x", y="y"):
    return helper.make_node("Relu", [x], [y])


def with_constant(tensor: TensorProto) -> onnx.ModelProto:
    return model([helper.make_node("Add", ["x", tensor.name], ["y"])], constants=[tensor])


def refusal(source, **options) -> str:
    with pytest.raises(ModelError) as caught:
        load_model(source, **options)
    return str(caught.value)
