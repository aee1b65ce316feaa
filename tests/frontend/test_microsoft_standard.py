"""Operators of onnxruntime's own domain that equal ONNX's own but for name, layout or one step."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import helper

from dlc.core.errors import UnsupportedModel
from dlc.frontend.onnx import import_model, load_model
from dlc.graph.evaluate import evaluate
from tests.frontend.onnx_model import model
from tests.frontend.test_microsoft import microsoft

X = (np.arange(24, dtype=np.float32).reshape(2, 3, 4) * 5) % 7 - 3
IMAGE = ((np.arange(120, dtype=np.float32) * 11) % 13 - 6).reshape(2, 3, 5, 4)  # n, h, w, c

MATRICES = X.ravel()[np.arange(150) * 7 % 24].reshape(2, 3, 5, 5) + 20 * np.eye(5, k=2, dtype="f4")
MATRICES += 20 * np.eye(5, k=-3, dtype=np.float32)  # the largest elements are not on the diagonal


def computed(node, x, constants=()) -> list[np.ndarray]:
    proto = made(node, x, constants)
    graph = import_model(load_model(proto)).graph
    found = evaluate(graph, {v.name: x for v in graph.inputs})
    return [found[v.name] for v in graph.outputs]


def made(node, x, constants):
    proto = model([node], {"x": x.shape}, dict(constants), outputs=[o for o in node.output if o])
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    proto.graph.input[0].type.tensor_type.elem_type = kind
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return proto


NODES = {
    "GatherND": (microsoft("GatherND", ["x", "i"]), X, {"i": np.array([[0, 2], [1, -1]])}),
    "Trilu": (microsoft("Trilu", ["x", "k"], upper=0), X, {"k": np.array(1)}),
    "TransposeMatMul": (
        microsoft("TransposeMatMul", ["x", "w"], transA=1, alpha=0.5), X, {"w": X[:, :, :2]},
    ),
    "Pad": (microsoft("Pad", ["x", "p"]), X, {"p": np.array([[0, 1, 0, 2, 0, -1]])}),
    "ExpandDims": (microsoft("ExpandDims", ["x", "a"]), X, {"a": np.array(-2, np.int32)}),
    "GridSample": (
        microsoft("GridSample", ["x", "g"], align_corners=1),
        IMAGE, {"g": np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 2, 3, 2)},
    ),
    "Unique": (microsoft("Unique", ["x"], ["y", "i", "c"]), X.ravel(), {}),
    "squared distances": (microsoft("CDist", ["x", "b"]), X[0], {"b": X[1, :2]}),
    "distances": (microsoft("CDist", ["x", "b"], metric="euclidean"), X[0], {"b": X[1, :2]}),
    "ConvTransposeWithDynamicPads": (
        microsoft("ConvTransposeWithDynamicPads", ["x", "w", "p", "b"], strides=[2, 1]),
        IMAGE, {"w": IMAGE[:1, :, :3].repeat(3, 0), "p": np.array([1, 0, 2, 1]),
                "b": np.float32([1, -2, 3])},
    ),
    "Inverse": (microsoft("Inverse", ["x"]), MATRICES, {}),
    "Inverse of one": (microsoft("Inverse", ["x"]), MATRICES[:, 1, :1, 2:3], {}),
    "NhwcMaxPool": (
        microsoft("NhwcMaxPool", ["x"], kernel_shape=[2, 3], pads=[1, 0, 0, 1]),
        (IMAGE + 6).astype(np.uint8), {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NODES)
def test_it_is_onnxruntimes(name):
    node, x, constants = NODES[name]
    proto = made(node, x, constants)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    want = session.run(None, {"x": x})
    for have, expected in zip(computed(node, x, constants), want, strict=True):
        np.testing.assert_allclose(have, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op", ["NhwcConv", "NhwcFusedConv"])
def test_a_convolution_of_channels_at_the_end(op):
    w = IMAGE[:, :2, :2]
    constants = {"w": w, "b": np.float32([1, -2])}
    more = {"activation": "Relu"} if op == "NhwcFusedConv" else {}
    (found,) = computed(microsoft(op, ["x", "w", "b"], **more), IMAGE, constants)
    conv = helper.make_node("Conv", ["x", "w", "b"], ["y"])
    first = {"w": w.transpose(0, 3, 1, 2), "b": constants["b"]}
    (want,) = computed(conv, IMAGE.transpose(0, 3, 1, 2), first)
    want = np.maximum(want, 0) if more else want
    np.testing.assert_array_equal(found, want.transpose(0, 2, 3, 1))


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("activation", [0, 1])
def test_group_norm(last, activation):
    gamma, beta = np.array([[1, 2, -1, 0.5], [0, 1, 2, 3]], np.float32)
    how = {"groups": 2, "activation": activation, "channels_last": last}
    x = IMAGE if last else IMAGE.transpose(0, 3, 1, 2)
    constants = {"g": gamma, "b": beta}
    (found,) = computed(microsoft("GroupNorm", ["x", "g", "b"], **how), x, constants)
    planes = IMAGE.transpose(0, 3, 1, 2).astype(np.float64).reshape(2, 2, -1)
    norm = (planes - planes.mean(2, keepdims=True)) / np.sqrt(planes.var(2, keepdims=True) + 1e-5)
    want = norm.reshape(2, 4, 3, 5) * gamma[:, None, None] + beta[:, None, None]
    want = want / (1 + np.exp(-want)) if activation else want
    want = want.transpose(0, 2, 3, 1) if last else want
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)
    skip = {"s": IMAGE[:, 0, 0], "c": gamma} if last else {"s": x, "c": gamma[:, None, None]}
    node = microsoft("SkipGroupNorm", ["x", "g", "b", "s", "c"], ["y", "t"], **how)
    normed, total = computed(node, x, constants | skip)
    wide = skip["s"][:, None, None] if last else skip["s"]
    np.testing.assert_array_equal(total, x + wide + skip["c"])
    (want,) = computed(microsoft("GroupNorm", ["x", "g", "b"], **how), total, constants)
    np.testing.assert_allclose(normed, want, rtol=1e-5, atol=1e-5)


def test_sums_and_what_stands_behind_them():
    bias = X[:1, :1]
    (found,) = computed(microsoft("BiasAdd", ["x", "b", "s"]), X, {"b": bias, "s": X})
    np.testing.assert_array_equal(found, X + bias + X)
    (found,) = computed(microsoft("BiasSoftmax", ["x", "b"], axis=2), X, {"b": bias})
    power = np.exp(X.astype(np.float64) + bias)
    np.testing.assert_allclose(found, power / power.sum(-1, keepdims=True), rtol=1e-6)
    (found,) = computed(microsoft("BiasSplitGelu", ["x", "b"]), X, {"b": bias})
    (gelu,) = computed(helper.make_node("Gelu", ["x"], ["y"], domain="com.microsoft"), X + bias)
    np.testing.assert_allclose(found, (X + bias)[..., :2] * gelu[..., 2:], rtol=1e-6)
    bytes_ = {"p": np.uint8(2), "b": (X + 3).astype(np.uint8), "q": np.uint8(1)}
    node = microsoft("MulInteger", ["x", "p", "b", "q"])
    (found,) = computed(node, (X + 3).astype(np.uint8), bytes_)
    np.testing.assert_array_equal(found, (X + 1) * (X + 2))
    node = microsoft("ReduceSumInteger", ["x"], axes=[1], keepdims=0)
    (found,) = computed(node, (X + 100).astype(np.uint8))
    np.testing.assert_array_equal(found, (X + 100).sum(1))


@pytest.mark.parametrize(
    ("value", "flags", "good"),
    [(1, {}, True), (np.inf, {}, False), (np.nan, {}, False), (np.inf, {"isnan_only": 1}, True),
     (np.nan, {"isinf_only": 1}, True), (-np.inf, {"isinf_only": 1}, False)],
)  # fmt: skip
def test_whether_all_is_finite(value, flags, good):
    x = X.copy()
    x[1, 2, 3] = value
    (found,) = computed(microsoft("IsAllFinite", ["x", "b"], **flags), x, {"b": X})
    assert found.shape == ()
    assert bool(found) == good


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (microsoft("CDist", ["x", "x"], metric="cosine"), "metric"),
        (microsoft("BiasSoftmax", ["x", "x"], axis=1), "flattens"),
        (microsoft("Inverse", ["x"]), "no square matrix"),
        (microsoft("GroupNorm", ["x", "x", "x"], groups=1, activation=2), "not known"),
        (microsoft("MulInteger", ["x"]), "one operand"),
        (microsoft("IsAllFinite", ["x"], isnan_only=1, isinf_only=1), "both kinds"),
    ],
)
def test_what_is_not_handled_is_refused(node, why):
    with pytest.raises(UnsupportedModel, match=why):
        computed(node, X)
