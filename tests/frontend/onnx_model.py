"""Models of a few nodes, and what becomes of them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from dlc.core.errors import UnsupportedModel
from dlc.frontend.onnx import import_model, load_model

NODE = helper.make_node
KINDS = {
    "f": TensorProto.FLOAT,
    "i": TensorProto.INT64,
    "b": TensorProto.BOOL,
    "s": TensorProto.STRING,
}


def one(array) -> np.ndarray:
    return np.asarray(array, np.float32)


def model(nodes, inputs, constants=(), outputs=("y",), opset=17, kinds=None) -> onnx.ModelProto:
    """A model; `inputs` is name -> shape, `kinds` name -> letter of the element type."""
    kinds = kinds or {}
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(n, KINDS[kinds.get(n, "f")], s) for n, s in inputs.items()],
        [onnx.ValueInfoProto(name=n) for n in outputs],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in dict(constants).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def graph_of(proto, **options):
    return import_model(load_model(proto), **options).graph


def ops_of(graph) -> list[str]:
    return [node.op.name for node in graph.nodes]


def refusals(proto, **options) -> list[str]:
    with pytest.raises(UnsupportedModel) as caught:
        graph_of(proto, **options)
    return [str(issue) for issue in caught.value.issues]


def refused(node, *, shape=(1, 2, 5, 7), opset=17, constants=()) -> str:
    (only,) = refusals(model([node], {"x": shape}, constants, opset=opset))
    return only
