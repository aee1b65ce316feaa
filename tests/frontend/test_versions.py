"""Operators whose form or meaning changed with the opset, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from dlc.core.errors import UnsupportedModel
from dlc.frontend.onnx import import_model, load_model
from dlc.graph.evaluate import evaluate
from tests.frontend.onnx_model import model

NODE = helper.make_node
RNG = np.random.default_rng(3)


def real(*shape) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def i64(*values) -> np.ndarray:
    return np.array(values, np.int64)


def f32(*values) -> np.ndarray:
    return np.array(values, np.float32)


X = real(2, 3, 5, 7)
CASES = {
    "softmax-11 flattens": (NODE("Softmax", ["x"], ["y"], axis=2), {}, 11),
    "softmax-11 default": (NODE("Softmax", ["x"], ["y"]), {}, 11),
    "softmax-13": (NODE("Softmax", ["x"], ["y"], axis=2), {}, 13),
    "softmax-13 default": (NODE("Softmax", ["x"], ["y"]), {}, 13),
    "log_softmax-11": (NODE("LogSoftmax", ["x"], ["y"], axis=1), {}, 11),
    "log_softmax-13": (NODE("LogSoftmax", ["x"], ["y"], axis=1), {}, 13),
    "hardmax-11 flattens": (NODE("Hardmax", ["x"], ["y"], axis=2), {}, 11),
    "hardmax-11 default": (NODE("Hardmax", ["x"], ["y"]), {}, 11),
    "hardmax-13": (NODE("Hardmax", ["x"], ["y"], axis=2), {}, 13),
    "clip-6": (NODE("Clip", ["x"], ["y"], min=-0.5, max=0.25), {}, 10),
    "clip-6 one side": (NODE("Clip", ["x"], ["y"], max=0.25), {}, 10),
    "clip-11": (NODE("Clip", ["x", "a", "b"], ["y"]), {"a": f32(-0.5)[0], "b": f32(0.2)[0]}, 11),
    "clip-13 one side": (NODE("Clip", ["x", "", "b"], ["y"]), {"b": f32(0.2)[0]}, 13),
    "squeeze-11": (NODE("Squeeze", ["u"], ["y"], axes=[0, -1]), {"u": real(1, 3, 1)}, 11),
    "squeeze-13": (NODE("Squeeze", ["u", "a"], ["y"]), {"u": real(1, 3, 1), "a": i64(0)}, 13),
    "squeeze-13 all": (NODE("Squeeze", ["u"], ["y"]), {"u": real(1, 3, 1)}, 13),
    "unsqueeze-11": (NODE("Unsqueeze", ["x"], ["y"], axes=[0, -1]), {}, 11),
    "unsqueeze-13": (NODE("Unsqueeze", ["x", "a"], ["y"]), {"a": i64(4, 1)}, 13),
    "batch_norm-7": (
        NODE("BatchNormalization", ["x", "s", "b", "m", "v"], ["y"], epsilon=0.1, spatial=1),
        {"s": real(3), "b": real(3), "m": real(3), "v": real(3) ** 2}, 8,
    ),
    "batch_norm-15": (
        NODE("BatchNormalization", ["x", "s", "b", "m", "v"], ["y"], momentum=0.5),
        {"s": real(3), "b": real(3), "m": real(3), "v": real(3) ** 2}, 15,
    ),
    "dropout-7": (NODE("Dropout", ["x"], ["y"], ratio=0.9), {}, 7),
    "dropout-13": (NODE("Dropout", ["x", "r"], ["y"]), {"r": f32(0.9)[0]}, 13),
    "reduce_sum-11": (NODE("ReduceSum", ["x"], ["y"], axes=[1, -1], keepdims=0), {}, 11),
    "reduce_sum-13": (NODE("ReduceSum", ["x", "a"], ["y"]), {"a": i64(1, -1)}, 13),
    "reduce_sum-13 all": (NODE("ReduceSum", ["x"], ["y"], keepdims=0), {}, 13),
    "reduce_sum-13 noop": (NODE("ReduceSum", ["x"], ["y"], noop_with_empty_axes=1), {}, 13),
    "reduce_mean-13": (NODE("ReduceMean", ["x"], ["y"], axes=[2]), {}, 13),
    "reduce_mean-18": (NODE("ReduceMean", ["x", "a"], ["y"]), {"a": i64(2)}, 18),
    "reduce_l2-13": (NODE("ReduceL2", ["x"], ["y"], axes=[0, 3]), {}, 13),
    "arg_max-12": (NODE("ArgMax", ["x"], ["y"], axis=-1, keepdims=0), {}, 12),
    "slice-1": (NODE("Slice", ["x"], ["y"], starts=[1, -4], ends=[9, -1], axes=[1, 3]), {}, 9),
    "slice-1 default axes": (NODE("Slice", ["x"], ["y"], starts=[1, 0], ends=[2, 2]), {}, 9),
    "slice-10": (
        NODE("Slice", ["x", "s", "e", "a", "t"], ["y"]),
        {"s": i64(-1, 1), "e": i64(-100, 6), "a": i64(2, 3), "t": i64(-2, 3)}, 13,
    ),
    "pad-2": (NODE("Pad", ["x"], ["y"], pads=[0, 0, 1, 2, 0, 0, 3, 4], value=1.5), {}, 10),
    "pad-2 reflect": (
        NODE("Pad", ["x"], ["y"], pads=[0, 0, 1, 2, 0, 0, 3, 4], mode="reflect"), {}, 10,
    ),
    "pad-11": (
        NODE("Pad", ["x", "p", "v"], ["y"]), {"p": i64(0, 0, 1, 2, 0, 0, 3, 4), "v": f32(2)[0]}, 11,
    ),
    "pad-11 crops": (NODE("Pad", ["x", "p"], ["y"]), {"p": i64(0, 0, -1, 2, 0, -1, 3, -4)}, 13),
    "pad-18 axes": (
        NODE("Pad", ["x", "p", "", "a"], ["y"], mode="edge"),
        {"p": i64(2, 1, 0, 3), "a": i64(3, 2)}, 18,
    ),
    "pad-19 wrap": (
        NODE("Pad", ["x", "p"], ["y"], mode="wrap"), {"p": i64(0, 0, 1, 2, 0, 0, 3, 4)}, 19,
    ),
    "split-11": (NODE("Split", ["x"], ["y", "z"], axis=3, split=[3, 4]), {}, 11),
    "split-13": (NODE("Split", ["x", "s"], ["y", "z"], axis=3), {"s": i64(3, 4)}, 13),
    "split-18 uneven": (NODE("Split", ["x"], ["y", "z"], axis=3, num_outputs=2), {}, 18),
    "upsample-7": (NODE("Upsample", ["x"], ["y"], scales=[1.0, 1, 2, 3]), {}, 8),
    "upsample-9": (NODE("Upsample", ["x", "s"], ["y"]), {"s": f32(1, 1, 2, 3)}, 9),
    "upsample-9 linear": (
        NODE("Upsample", ["x", "s"], ["y"], mode="linear"), {"s": f32(1, 1, 2, 3)}, 9,
    ),
    "resize-10": (NODE("Resize", ["x", "s"], ["y"]), {"s": f32(1, 1, 1.6, 2)}, 10),
    "resize-10 smaller": (NODE("Resize", ["x", "s"], ["y"]), {"s": f32(1, 1, 0.6, 0.5)}, 10),
    "resize-11": (NODE("Resize", ["x", "r", "s"], ["y"]), {"r": f32(), "s": f32(1, 1, 1.6, 2)}, 11),
    "resize-11 middle": (
        NODE("Resize", ["x", "r", "s"], ["y"], mode="nearest", nearest_mode="floor",
             coordinate_transformation_mode="tf_half_pixel_for_nn"),
        {"r": f32(), "s": f32(1, 1, 1.6, 0.5)}, 11,
    ),
    "resize-13 sizes": (
        NODE("Resize", ["x", "", "", "s"], ["y"], mode="linear"), {"s": i64(2, 3, 8, 4)}, 13,
    ),
    "resize-13 corners": (
        NODE("Resize", ["x", "", "", "s"], ["y"], mode="cubic",
             coordinate_transformation_mode="align_corners"),
        {"s": i64(2, 3, 8, 9)}, 13,
    ),
    "resize-18 axes": (
        NODE("Resize", ["x", "", "s"], ["y"], axes=[3, 2], mode="linear"), {"s": f32(2, 1.5)}, 18,
    ),
    "gemm-7": (NODE("Gemm", ["a", "b", "c"], ["y"], alpha=0.5, beta=2.0, transB=1),
               {"a": real(3, 4), "b": real(5, 4), "c": real(5)}, 9),
    "gemm-11": (NODE("Gemm", ["a", "b"], ["y"], transA=1), {"a": real(4, 3), "b": real(4, 5)}, 11),
    "prelu-9": (NODE("PRelu", ["x", "s"], ["y"]), {"s": real(3, 1, 1)}, 9),
    "pow-12": (NODE("Pow", ["x", "e"], ["y"]), {"e": i64(2)}, 12),
    "reshape-14": (NODE("Reshape", ["u", "s"], ["y"], allowzero=1),
                   {"u": real(0, 3), "s": i64(3, 0)}, 14),
    "cast-13": (NODE("Cast", ["x"], ["y"], to=TensorProto.INT32), {}, 13),
    "mod-13": (NODE("Mod", ["x", "m"], ["y"], fmod=1), {"m": f32(0.5)}, 13),
    "average_pool-10": (
        NODE("AveragePool", ["x"], ["y"], kernel_shape=[3, 2], pads=[1, 1, 0, 1], strides=[2, 1]),
        {}, 10,
    ),
    "average_pool-11 includes": (
        NODE("AveragePool", ["x"], ["y"], kernel_shape=[3, 2], pads=[1, 1, 0, 1],
             count_include_pad=1),
        {}, 11,
    ),
    "max_pool-12 ceil": (
        NODE("MaxPool", ["x"], ["y"], kernel_shape=[2, 3], strides=[2, 2], ceil_mode=1), {}, 12,
    ),
    "conv upper": (
        NODE("Conv", ["x", "w", "b"], ["y"], auto_pad="SAME_UPPER", strides=[2, 3]),
        {"w": real(4, 3, 2, 2), "b": real(4)}, 11,
    ),
    "conv lower": (
        NODE("Conv", ["x", "w"], ["y"], auto_pad="SAME_LOWER", strides=[2, 1]),
        {"w": real(4, 3, 2, 2)}, 11,
    ),
    "conv_transpose shape": (
        NODE("ConvTranspose", ["x", "w"], ["y"], strides=[2, 3], output_shape=[11, 21]),
        {"w": real(3, 2, 3, 2)}, 11,
    ),
    "conv_transpose lower": (
        NODE("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2], auto_pad="SAME_LOWER"),
        {"w": real(3, 2, 3, 3)}, 11,
    ),
    "one_hot-11": (NODE("OneHot", ["i", "d", "v"], ["y"], axis=1),
                   {"i": i64(2, -1, 0), "d": i64(4), "v": f32(-1, 5)}, 11),
    "range-11": (NODE("Range", ["a", "b", "c"], ["y"]),
                 {"a": i64(7)[0], "b": i64(-2)[0], "c": i64(-3)[0]}, 11),
    "einsum": (NODE("Einsum", ["x", "w"], ["y"], equation="bchw,cd->bhwd"), {"w": real(3, 4)}, 12),
    "einsum dots": (NODE("Einsum", ["x", "w"], ["y"], equation="...hw,...wd"),
                    {"w": real(2, 3, 7, 2)}, 12),
    "einsum sums one": (NODE("Einsum", ["x", "w"], ["y"], equation="bchw,cd->bd"),
                        {"w": real(3, 4)}, 12),
    "einsum outer": (NODE("Einsum", ["x", "w"], ["y"], equation="bchw,d->bchwd"),
                     {"w": real(4)}, 12),
    "einsum of three": (NODE("Einsum", ["x", "w", "u"], ["y"], equation="bchw,cd,dw->bhd"),
                        {"w": real(3, 4), "u": real(4, 7)}, 12),
    "einsum of four": (NODE("Einsum", ["q", "w", "u", "w"], ["y"], equation="ii,ij,ik,lj->lk"),
                       {"q": real(4, 4), "w": real(4, 3), "u": real(4, 2)}, 12),
    "einsum elements": (NODE("Einsum", ["w", "u"], ["y"], equation="b,ab->ba"),
                        {"w": real(4), "u": real(3, 4)}, 12),
    "einsum small first": (NODE("Einsum", ["w", "u", "v"], ["y"], equation="bi,bj,ij->b"),
                           {"w": real(2, 3), "u": real(2, 4), "v": real(3, 4)}, 12),
    "einsum diagonal": (NODE("Einsum", ["q"], ["y"], equation="ii->i"), {"q": real(4, 4)}, 12),
}  # fmt: skip


def run(node, constants, opset, x=X) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Results of dlc and of onnxruntime; `x` is the input, all else constant."""
    inputs = {"x": x.shape} if "x" in node.input else {}
    proto = model([node], inputs, constants, outputs=node.output, opset=opset)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    want = session.run(None, {name: x for name in inputs})
    graph = import_model(load_model(proto)).graph
    found = evaluate(graph, {v.name: x for v in graph.inputs})
    return [found[v.name] for v in graph.outputs], want


@pytest.mark.parametrize("case", CASES)
def test_every_version_means_what_onnxruntime_means(case):
    node, constants, opset = CASES[case]
    for got, want in zip(*run(node, constants, opset), strict=True):
        assert got.shape == want.shape
        # onnxruntime computes in float32; all values are of the order of 1.
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("where", ["SAME_UPPER", "SAME_LOWER"])
def test_an_image_grows_by_its_stride_where_the_kernel_is_smaller(where):
    """As ONNX has it, and its reference; onnxruntime makes the image smaller."""
    node = NODE("ConvTranspose", ["x", "w"], ["y"], strides=[2, 3], auto_pad=where)
    proto = model([node], {"x": X.shape}, {"w": real(3, 2, 3, 1)}, opset=22)
    graph = import_model(load_model(proto)).graph
    (want,) = ReferenceEvaluator(proto).run(None, {"x": X})
    found = evaluate(graph, {"x": X})["y"]
    assert found.shape == (X.shape[0], 2, X.shape[2] * 2, X.shape[3] * 3)
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)


def test_before_opset_7_a_second_operand_is_aligned_at_an_axis():
    node = NODE("Add", ["x", "b"], ["y"], broadcast=1, axis=1)
    b = real(3, 5)
    proto = model([node], {"x": X.shape}, {"b": b}, opset=6)
    graph = import_model(load_model(proto)).graph
    np.testing.assert_allclose(evaluate(graph, {"x": X})["y"], X + b[..., None], rtol=1e-6)


def test_before_opset_5_a_shape_is_an_attribute():
    proto = model([NODE("Reshape", ["x"], ["y"], shape=[0, -1])], {"x": X.shape}, opset=4)
    assert str(import_model(load_model(proto)).graph.outputs[0].type) == "f32[2, 105]"


@pytest.mark.parametrize(
    ("node", "opset", "word"),
    [
        (NODE("Clip", ["x"], ["y"], min=0.0), 11, "attribute 'min'"),
        (NODE("Clip", ["x", "x"], ["y"]), 10, "operand 2"),
        (NODE("Clip", ["k"], ["y"], max=np.inf), 10, "elements of type i64"),
        (NODE("Softmax", ["x"], ["y"], axis=4), 13, "axis 4"),
        (NODE("Squeeze", ["x"], ["y"], axes=[0]), 13, "attribute 'axes'"),
        (NODE("Squeeze", ["x"], ["y"], axes=[0]), 11, "must have size 1"),
        (NODE("Split", ["x"], ["y", "z"], axis=3), 13, "2 equal parts"),
        (NODE("BatchNormalization", ["x"] * 5, ["y"], spatial=0), 8, "spatial"),
        (NODE("Mod", ["x", "x"], ["y"]), 9, "no converter"),
        (NODE("Add", ["x", "x"], ["y"], broadcast=1, axis=-5), 6, "no room for the second"),
        (NODE("ReduceSum", ["x"], ["y"], axes=[1]), 13, "attribute 'axes'"),
        (NODE("Upsample", ["x"], ["y"], scales=[1.0, 1, 0.5, 2]), 8, "another smaller"),
    ],
)
def test_what_a_version_lacks_is_refused(node, opset, word):
    proto = model([node], {"x": X.shape}, {"k": np.int64([1])}, outputs=node.output, opset=opset)
    with pytest.raises(UnsupportedModel, match=word):
        import_model(load_model(proto))


# Recurrent layers.

SEQ, BATCH, INPUT, HIDDEN = 5, 3, 4, 6
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def recurrent(kind, direction, *, bias=True, state=True, peepholes=False, layout=0, **attributes):
    """A layer and its constants."""
    d, g = (2 if direction == "bidirectional" else 1), GATES[kind]
    constants = {"w": real(d, g * HIDDEN, INPUT), "r": real(d, g * HIDDEN, HIDDEN)}
    names = ["x", "w", "r", "", "", ""]
    start = (BATCH, d, HIDDEN) if layout else (d, BATCH, HIDDEN)
    if bias:
        constants["b"], names[3] = real(d, 2 * g * HIDDEN), "b"
    if state:
        constants["h"], names[5] = real(*start), "h"
    if kind == "LSTM" and state:
        constants["c"] = real(*start)
        names.append("c")
    if peepholes:
        constants["p"] = real(d, 3 * HIDDEN)
        names += [""] * (7 - len(names)) + ["p"]
    outputs = ["y", "y_h", "y_c"][: 3 if kind == "LSTM" else 2]
    if layout:
        attributes["layout"] = 1
    node = NODE(kind, names, outputs, hidden_size=HIDDEN, direction=direction, **attributes)
    return node, constants, real(BATCH, SEQ, INPUT) if layout else real(SEQ, BATCH, INPUT)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("LSTM", {}),
        ("LSTM", {"bias": False, "state": False}),
        ("LSTM", {"peepholes": True}),
        ("LSTM", {"clip": 0.4}),
        ("LSTM", {"input_forget": 1}),
        ("LSTM", {"input_forget": 1, "peepholes": True}),
        ("GRU", {}),
        ("GRU", {"linear_before_reset": 1}),
        ("GRU", {"linear_before_reset": 1, "bias": False, "state": False}),
        ("RNN", {}),
        ("RNN", {"clip": 0.4, "state": False}),
    ],
    ids=str,
)
def test_recurrent_layers_mean_what_onnxruntime_means(kind, options, direction):
    node, constants, x = recurrent(kind, direction, **options)
    for got, want in zip(*run(node, constants, 14, x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_activations_of_each_direction_are_used():
    node, constants, x = recurrent("RNN", "bidirectional", activations=["Relu", "Sigmoid"])
    for got, want in zip(*run(node, constants, 14, x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


NUMBERS = [
    ("LSTM", {"activations": ["HardSigmoid", "ScaledTanh", "LeakyRelu"],
              "activation_alpha": [0.3, 0.7, 0.2], "activation_beta": [0.4, 1.5]}),
    ("GRU", {"activations": ["Affine", "Elu"],
             "activation_alpha": [0.0625, 0.5], "activation_beta": [0.125]}),
    ("RNN", {"activations": ["ThresholdedRelu"], "activation_alpha": [0.25]}),
    ("RNN", {"activations": ["HardSigmoid"]}),
    ("RNN", {"activations": ["LeakyRelu"]}),
    ("RNN", {"activation_alpha": [0.5]}),  # Tanh has no numbers
]  # fmt: skip


@pytest.mark.parametrize(("kind", "options"), NUMBERS, ids=str)
def test_activations_take_numbers(kind, options):
    node, constants, x = recurrent(kind, "reverse", **options)
    for got, want in zip(*run(node, constants, 14, x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_activations_of_two_directions_take_the_numbers_in_turn():
    names = {"activations": ["Sigmoid", "LeakyRelu"] * 2, "activation_alpha": [0.1, 0.5]}
    node, constants, x = recurrent("GRU", "bidirectional", **names)
    for got, want in zip(*run(node, constants, 14, x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", sorted(GATES))
def test_layout_1_is_layout_0_with_the_batch_first(kind):
    """onnxruntime does not know layout 1."""
    node, constants, x = recurrent(kind, "bidirectional", layout=1)
    proto = model([node], {"x": x.shape}, constants, outputs=node.output, opset=14)
    graph = import_model(load_model(proto)).graph
    got = evaluate(graph, {"x": x})
    for name in ("h", "c"):
        if name in constants:
            constants[name] = constants[name].swapaxes(0, 1)
    for attribute in list(node.attribute):
        if attribute.name == "layout":
            node.attribute.remove(attribute)
    _, (y, *ends) = run(node, constants, 14, x.swapaxes(0, 1).copy())
    np.testing.assert_allclose(got["y"], y.transpose(2, 0, 1, 3), rtol=1e-5, atol=1e-5)
    for name, end in zip(("y_h", "y_c"), ends, strict=False):
        np.testing.assert_allclose(got[name], end.swapaxes(0, 1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "options", "word"),
    [
        ("LSTM", {"activations": ["Softmax", "Tanh", "Tanh"]}, "activation 'Softmax'"),
        ("RNN", {"activations": ["ScaledTanh"], "activation_alpha": [0.5]}, "has no beta"),
        ("RNN", {"activations": ["Tanh", "Tanh"]}, "2 activations"),
    ],
)
def test_recurrent_layers_refuse_what_they_do_not_know(kind, options, word):
    node, constants, x = recurrent(kind, "forward", **options)
    proto = model([node], {"x": x.shape}, constants, outputs=node.output, opset=14)
    with pytest.raises(UnsupportedModel, match=word):
        import_model(load_model(proto))


@pytest.mark.parametrize("kind", sorted(GATES))
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("lengths", [(5, 5, 5), (5, 2, 4), (1, 5, 3)])
def test_sequences_may_differ_in_length(kind, direction, lengths):
    node, constants, x = recurrent(kind, direction)
    node.input[4] = "lengths"
    constants["lengths"] = np.array(lengths, np.int32)
    for got, want in zip(*run(node, constants, 14, x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_lengths_that_do_not_fit_the_batch_are_refused():
    node, constants, x = recurrent("RNN", "forward")
    node.input[4] = "lengths"
    constants["lengths"] = np.array([5, 5], np.int32)
    proto = model([node], {"x": x.shape}, constants, outputs=node.output, opset=14)
    with pytest.raises(UnsupportedModel, match="sequence_lens is"):
        import_model(load_model(proto))


@pytest.mark.parametrize("seq", [0, 1, 4])
def test_a_recurrent_layer_runs_for_any_length(seq):
    node, constants, _ = recurrent("LSTM", "bidirectional")
    proto = model([node], {"x": ("seq", BATCH, INPUT)}, constants, outputs=node.output, opset=14)
    graph = import_model(load_model(proto)).graph
    x = real(seq, BATCH, INPUT)
    found = evaluate(graph, {"x": x})
    assert found["y"].shape == (seq, 2, BATCH, HIDDEN)
    if not seq:
        np.testing.assert_array_equal(found["y_h"], constants["h"])
