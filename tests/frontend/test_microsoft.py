"""Operators of onnxruntime's own domain, against onnxruntime; and ScatterND over boxes."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import helper

from dlc.core.errors import UnsupportedModel
from dlc.frontend.onnx import import_model, load_model
from dlc.graph.evaluate import evaluate
from tests.frontend.onnx_model import model

RNG = np.random.default_rng(4)
X = RNG.standard_normal((2, 5, 8)).astype(np.float32)
ROW = RNG.standard_normal(8).astype(np.float32)


def microsoft(op, inputs, outputs=("y",), **attributes):
    return helper.make_node(op, inputs, outputs, domain="com.microsoft", **attributes)


def proto_of(node, constants, shape=X.shape):
    proto = model([node], {"x": shape}, constants, outputs=[o for o in node.output if o])
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return proto


def check(proto, x=X) -> list[str]:
    """Compare with onnxruntime; gives the names of the operators."""
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    graph = import_model(load_model(proto)).graph
    found = evaluate(graph, {v.name: x for v in graph.inputs})
    for value, want in zip(graph.outputs, session.run(None, {"x": x}), strict=True):
        np.testing.assert_allclose(found[value.name], want, rtol=1e-4, atol=2e-5)
    return [node.op.name for node in graph.nodes]


@pytest.mark.parametrize(
    ("node", "ops"),
    [
        (microsoft("Gelu", ["x"]), ["gelu"]),
        (microsoft("BiasGelu", ["x", "r"]), ["add", "gelu"]),
        (microsoft("FastGelu", ["x"]), ["gelu"]),
        (microsoft("FastGelu", ["x", "r"]), ["add", "gelu"]),
        (microsoft("QuickGelu", ["x"], alpha=1.25), ["silu"]),
        (microsoft("FusedMatMul", ["x", "w"], transB=1, alpha=0.5), ["transpose", "matmul", "mul"]),
        (microsoft("FusedMatMul", ["x", "x"], transA=1), ["transpose", "matmul"]),
        (microsoft("FusedMatMul", ["x", "v"], transBatchA=1), ["transpose", "matmul"]),
        (microsoft("FusedMatMul", ["x", "u"], transA=1, transBatchA=1, transBatchB=1, transB=1),
         ["transpose", "matmul"]),
        (microsoft("SkipLayerNormalization", ["x", "x", "r", "s", "t"], epsilon=0.1),
         ["add", "add", "layer_norm"]),
        (microsoft("SkipLayerNormalization", ["x", "x", "r"], ["y", "", "", "z"]),
         ["add", "layer_norm"]),
        (microsoft("SkipSimplifiedLayerNormalization", ["x", "x", "r"], ["y", "", "", "z"]),
         ["add", "rms_norm"]),
        (helper.make_node("SimplifiedLayerNormalization", ["x", "r"], ["y"], epsilon=0.1),
         ["rms_norm"]),
        (helper.make_node("LayerNormalization", ["x", "r", "s"], ["y"], epsilon=0.1),
         ["layer_norm"]),
    ],
)  # fmt: skip
def test_they_mean_what_onnxruntime_means(node, ops):
    constants = {
        "r": ROW, "s": ROW * 2, "t": ROW - 1,
        "w": RNG.standard_normal((3, 8)).astype(np.float32),
        "u": RNG.standard_normal((3, 5, 2)).astype(np.float32),
        "v": RNG.standard_normal((5, 8, 3)).astype(np.float32),
    }  # fmt: skip
    proto = proto_of(node, {k: v for k, v in constants.items() if k in node.input})
    proto.opset_import[0].version = 14  # before ONNX had a LayerNormalization
    found = check(proto)
    assert [o for o in found if o != "transpose"] == [o for o in ops if o != "transpose"]


def test_statistics_of_training_are_refused():
    node = microsoft("SkipLayerNormalization", ["x", "x", "r"], ["y", "mean"])
    with pytest.raises(UnsupportedModel, match="statistics"):
        import_model(load_model(proto_of(node, {"r": ROW})))


def box(starts, ends) -> np.ndarray:
    ranges = [np.arange(a, b) for a, b in zip(starts, ends, strict=True)]
    return np.stack(np.meshgrid(*ranges, indexing="ij"), axis=-1)


@pytest.mark.parametrize(
    ("indices", "wanted"),
    [
        (box([0, 1], [2, 4]), {"concat", "slice"}),
        (box([0, 0], [2, 5]), set()),
        (box([1, 2, 0], [2, 5, 3]), {"concat", "slice"}),
        (box([-1], [0]), {"concat", "slice"}),
        (box([0, 1], [2, 4])[:, ::-1], {"scatter_nd"}),
        (np.array([[0, 1], [1, 3]]), {"scatter_nd"}),
        (np.array([[0, 1], [0, 1]]), {"scatter_nd"}),
    ],
)
def test_a_box_is_joined_to_what_lies_around_it(indices, wanted):
    shape = (*indices.shape[:-1], *X.shape[indices.shape[-1] :])
    updates = RNG.standard_normal(shape).astype(np.float32)
    if len(np.unique(indices.reshape(-1, indices.shape[-1]), axis=0)) < indices[..., 0].size:
        updates[...] = 1  # onnxruntime promises no order among equal positions
    node = helper.make_node("ScatterND", ["x", "i", "u"], ["y"])
    found = check(proto_of(node, {"i": indices.astype(np.int64), "u": updates}))
    assert wanted <= set(found)
    assert ("scatter_nd" in found) == ("scatter_nd" in wanted)


def test_layouts_of_onnxruntime_for_one_cpu_are_refused():
    node = helper.make_node("ReorderInput", ["x"], ["y"], domain="com.microsoft.nchwc")
    proto = proto_of(node, {})
    proto.opset_import.append(helper.make_opsetid("com.microsoft.nchwc", 1))
    with pytest.raises(UnsupportedModel, match="ORT_ENABLE_EXTENDED"):
        import_model(load_model(proto))
