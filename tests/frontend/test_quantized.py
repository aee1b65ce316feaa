"""Quantized operators against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from dlc.core.errors import UnsupportedModel
from dlc.frontend.onnx import import_model, load_model
from dlc.graph.evaluate import evaluate
from tests.frontend.onnx_model import model

RNG = np.random.default_rng(8)
NODE = helper.make_node


def scale(*values) -> np.ndarray:
    return np.array(values, np.float32)


def u8(*shape) -> np.ndarray:
    return RNG.integers(0, 256, shape).astype(np.uint8)


def i8(*shape) -> np.ndarray:
    """No larger ones: two products saturate in onnxruntime where a CPU has AVX2 and no VNNI."""
    return RNG.integers(-64, 64, shape).astype(np.int8)


def check(node, x, constants, opset=13, steps=0) -> None:
    """Compare with onnxruntime; integers may differ by `steps`, where a tie is rounded."""
    proto = model([node], {"x": x.shape}, constants, opset=opset)
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    proto.graph.input[0].type.tensor_type.elem_type = kind
    (want,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    graph = import_model(load_model(proto)).graph
    (value,) = graph.outputs
    got = evaluate(graph, {"x": x})[value.name]
    if want.dtype.kind == "f":
        np.testing.assert_allclose(got, want, rtol=1e-6)
    else:
        assert np.abs(got.astype(int) - want.astype(int)).max() <= steps


@pytest.mark.parametrize("zero", [np.uint8(7), np.int8(-9)], ids=["u8", "i8"])
def test_quantization_rounds_to_even_and_saturates(zero):
    x = np.array([-1e9, -3.75, -0.25, 0.25, 0.75, 1.25, 100, 1e9, np.inf, -np.inf], np.float32)
    node = NODE("QuantizeLinear", ["x", "s", "z"], ["y"])
    check(node, x, {"s": np.float32(0.5), "z": zero})


def test_quantization_of_each_channel():
    x = RNG.standard_normal((2, 3, 4)).astype(np.float32) * 9
    constants = {"s": scale(0.25, 0.5, 2), "z": np.array([1, 0, 200], np.uint8)}
    check(NODE("QuantizeLinear", ["x", "s", "z"], ["y"], axis=1), x, constants)
    check(NODE("DequantizeLinear", ["x", "s", "z"], ["y"], axis=1), u8(2, 3, 4), constants)


def test_without_a_zero_point_it_is_zero():
    check(NODE("QuantizeLinear", ["x", "s"], ["y"]), scale(0.3, 9, 77), {"s": np.float32(0.5)})
    check(NODE("DequantizeLinear", ["x", "s"], ["y"]), u8(5), {"s": np.float32(0.5)})


def test_products_of_integers():
    b, constants = i8(6, 5), {"z": np.uint8(100), "w": np.int8(3)}
    node = NODE("MatMulInteger", ["x", "b", "z", "w"], ["y"])
    check(node, u8(4, 6), {"b": b, **constants})


def test_convolution_of_integers():
    """The padding is the zero point, that is 0 once the zero point is taken off."""
    constants = {"w": u8(4, 3, 3, 3), "z": np.uint8(100), "v": np.uint8(3)}
    node = NODE("ConvInteger", ["x", "w", "z", "v"], ["y"], pads=[1, 1, 0, 1], strides=[2, 1])
    check(node, u8(1, 3, 7, 9), constants)


def test_quantized_products():
    constants = {
        "a_s": np.float32(0.02), "a_z": np.uint8(128), "b": u8(6, 5), "b_s": np.float32(0.01),
        "b_z": np.uint8(120), "y_s": np.float32(0.05), "y_z": np.uint8(100),
    }  # fmt: skip
    names = ["x", "a_s", "a_z", "b", "b_s", "b_z", "y_s", "y_z"]
    check(NODE("QLinearMatMul", names, ["y"]), u8(4, 6), constants, steps=1)


def test_quantized_convolution_with_bias():
    constants = {
        "x_s": np.float32(0.02), "x_z": np.uint8(128), "w": i8(4, 3, 3, 3),
        "w_s": scale(0.01, 0.02, 0.03, 0.01), "w_z": np.zeros(4, np.int8),
        "y_s": np.float32(0.1), "y_z": np.uint8(100), "b": np.array([99, -50, 7, 0], np.int32),
    }  # fmt: skip
    names = ["x", "x_s", "x_z", "w", "w_s", "w_z", "y_s", "y_z", "b"]
    node = NODE("QLinearConv", names, ["y"], pads=[1, 1, 1, 1])
    check(node, u8(1, 3, 6, 7), constants, steps=1)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_each_block_has_a_scale_of_its_own(axis):
    """Seven positions in blocks of three; the last block is not full."""
    shape = [7, 7, 7]
    shape[axis] = 3
    constants = {"s": (2.0 ** RNG.integers(-3, 3, shape)).astype(np.float32), "z": u8(*shape)}
    node = NODE("DequantizeLinear", ["x", "s", "z"], ["y"], axis=axis, block_size=3)
    check(node, u8(7, 7, 7), constants, opset=21)
    node = NODE("QuantizeLinear", ["x", "s", "z"], ["y"], axis=axis, block_size=3)
    x = RNG.integers(-300, 300, (7, 7, 7)).astype(np.float32) / 4
    check(node, x, constants, opset=21)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("zeros", [[], ["z"]])
def test_constant_numbers_in_blocks(axis, zeros):
    """Of numbers of a byte or less; the last block is not full."""
    shape = [7, 5]
    shape[axis] = 2
    constants = {
        "q": u8(7, 5), "z": u8(*shape),
        "s": (2.0 ** RNG.integers(-3, 3, shape)).astype(np.float32),
    }  # fmt: skip
    names = ["q", "s", *zeros]
    dequantized = NODE("DequantizeLinear", names, ["w"], axis=axis, block_size=4)
    product = NODE("MatMul", ["x", "w"], ["y"])
    x = RNG.integers(-3, 4, (3, 7)).astype(np.float32)
    proto = model(
        [dequantized, product], {"x": x.shape}, {k: constants[k] for k in names}, opset=21
    )
    (want,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    graph = import_model(load_model(proto)).graph
    np.testing.assert_array_equal(evaluate(graph, {"x": x})[graph.outputs[0].name], want)


@pytest.mark.parametrize("kind", ["INT4", "UINT4"])
def test_four_bits(kind):
    x = np.array([-9, -0.25, 0.25, 0.75, 3.3, 100], np.float32)
    node = NODE("QuantizeLinear", ["x", "s"], ["q"], output_dtype=getattr(TensorProto, kind))
    back = NODE("DequantizeLinear", ["q", "s"], ["y"])
    proto = model([node, back], {"x": x.shape}, {"s": np.float32(0.5)}, opset=21)
    (want,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    graph = import_model(load_model(proto)).graph
    np.testing.assert_array_equal(evaluate(graph, {"x": x})[graph.outputs[0].name], want)


@pytest.mark.parametrize(
    ("node", "word"),
    [
        (NODE("QuantizeLinear", ["x", "s"], ["y"], block_size=2), "blocks of 2"),
        (NODE("DequantizeLinear", ["x", "s"], ["y"], block_size=2), "blocks of 2"),
        (NODE("QuantizeLinear", ["x", "s"], ["y"], output_dtype=TensorProto.STRING), "STRING"),
        (NODE("QuantizeLinear", ["x", "m"], ["y"]), "scale and zero point"),
    ],
)
def test_what_is_not_handled_is_refused(node, word):
    constants = {"s": np.float32(1), "m": np.ones((4, 2), np.float32)}
    proto = model([node], {"x": (4, 4)}, constants, opset=21)
    with pytest.raises(UnsupportedModel, match=word):
        import_model(load_model(proto))
