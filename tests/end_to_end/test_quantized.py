"""Quantized models from ONNX to kernels of bytes, beside ONNX's own reference.

Not beside onnxruntime: its sums of two products are 16 bits, and saturate, where CPUs have no VNNI.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import dlc
from dlc.core.target_parse import parse_target
from dlc.lowering import lower_model

pytestmark = pytest.mark.fast

VNNI = parse_target("llvm -mcpu=icelake-server")
KINDS = {"u8": (np.uint8, TensorProto.UINT8), "i8": (np.int8, TensorProto.INT8)}
Node = tuple[str, list[str], list[str], dict[str, object]]


def model(
    nodes: list[Node],
    constants: dict[str, np.ndarray],
    shape: tuple[int | str, ...],
    kind: int = TensorProto.FLOAT,
) -> ModelProto:
    """A model of `x`, whose results are those of the last node."""
    made = [helper.make_node(op, ins, outs, **attributes) for op, ins, outs, attributes in nodes]
    graph = helper.make_graph(
        made,
        "quantized",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info(name, 0, None) for name in nodes[-1][2]],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    for out in graph.output:
        out.ClearField("type")
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def weights(*shape: int, most: int = 127) -> np.ndarray:
    return np.random.default_rng(1).integers(-most, most + 1, shape).astype(np.int8)


def image(kind: str, zero: int) -> ModelProto:
    """Two convolutions of one quantized image, 3 x 3 with pads and 1 x 1, added and quantized.

    Its channels do not fill their blocks.
    """
    dtype = KINDS[kind][0]
    constants = {
        "s": np.float32(0.02), "z": dtype(zero), "ws": np.full(32, 0.01, np.float32),
        "wz": np.zeros(32, np.int8), "w": weights(32, 20, 3, 3), "v": weights(32, 20, 1, 1),
        "s2": np.float32(0.5), "b": np.linspace(-3, 3, 32, dtype=np.float32),
    }  # fmt: skip
    return model([
        ("QuantizeLinear", ["x", "s", "z"], ["q"], {}),
        ("DequantizeLinear", ["q", "s", "z"], ["f"], {}),
        ("DequantizeLinear", ["w", "ws", "wz"], ["wf"], {"axis": 0}),
        ("DequantizeLinear", ["v", "ws", "wz"], ["vf"], {"axis": 0}),
        ("Conv", ["f", "wf", "b"], ["c"], {"pads": [1, 1, 1, 1]}),
        ("Conv", ["f", "vf"], ["d"], {}),
        ("Add", ["c", "d"], ["e"], {}),
        ("QuantizeLinear", ["e", "s2", "z"], ["q2"], {}),
        ("DequantizeLinear", ["q2", "s2", "z"], ["y"], {}),
    ], constants, (1, 20, 11, 13))  # fmt: skip


def products(kind: str, zero: int) -> ModelProto:
    """A deep product of integers, whose sums exceed what float32 holds exactly."""
    dtype, code = KINDS[kind]
    constants = {"z": dtype(zero), "w": weights(3072, 40)}
    nodes: list[Node] = [("MatMulInteger", ["x", "w", "z"], ["y"], {})]
    return model(nodes, constants, ("rows", 3072), code)


def dynamic(kind: str, zero: int) -> ModelProto:
    """A product whose left operand is quantized by its own range."""
    constants = {"w": weights(64, 40), "wz": np.int8(0), "ws": np.float32(0.01)}
    return model([
        ("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], {}),
        ("MatMulInteger", ["q", "w", "z", "wz"], ["i"], {}),
        ("Cast", ["i"], ["f"], {"to": TensorProto.FLOAT}),
        ("Mul", ["s", "ws"], ["both"], {}),
        ("Mul", ["f", "both"], ["y"], {}),
    ], constants, (2, 9, 64))  # fmt: skip


def operators(kind: str, zero: int) -> ModelProto:
    """A convolution of the older form, on integers."""
    dtype, code = KINDS[kind]
    constants = {
        "xs": np.float32(0.02), "z": dtype(zero), "w": weights(32, 16, 3, 3),
        "ws": np.float32(0.01), "wz": np.int8(0), "ys": np.float32(0.7),
        "b": np.arange(32, dtype=np.int32) * 100,
    }  # fmt: skip
    inputs = ["x", "xs", "z", "w", "ws", "wz", "ys", "z", "b"]
    nodes: list[Node] = [("QLinearConv", inputs, ["y"], {"pads": [1, 1, 1, 1]})]
    return model(nodes, constants, (1, 16, 11, 13), code)


Make = Callable[[str, int], ModelProto]
CASES: dict[str, tuple[Make, str, int, int]] = {  # maker, type, zero, products of bytes
    "image_u8": (image, "u8", 100, 2),
    "image_of_relu": (image, "u8", 0, 2),
    "image_i8": (image, "i8", -128, 2),
    "image_symmetric": (image, "i8", 0, 2),
    "products_u8": (products, "u8", 90, 3),  # cut twice for float32, which a sum passes through
    "products_i8": (products, "i8", -5, 2),
    "dynamic": (dynamic, "u8", 0, 1),
    "operators_u8": (operators, "u8", 100, 1),
    "operators_i8": (operators, "i8", 3, 1),
}


@pytest.mark.parametrize("name", CASES)
def test_products_of_bytes_are_found(name: str) -> None:
    make, kind, zero, count = CASES[name]
    kernels = lower_model(make(kind, zero), VNNI).program.kernels
    assert sum("bytes" in k.name for k in kernels) == count, [k.name for k in kernels]


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_the_reference(name: str) -> None:
    make, kind, zero, _ = CASES[name]
    made = make(kind, zero)
    rng = np.random.default_rng(0)
    (given,) = made.graph.input
    shape = [d.dim_value or 5 for d in given.type.tensor_type.shape.dim]
    if given.type.tensor_type.elem_type == TensorProto.FLOAT:
        x = rng.standard_normal(shape).astype(np.float32)
    else:
        limits = np.iinfo(KINDS[kind][0])
        x = rng.integers(limits.min, limits.max + 1, shape).astype(limits.dtype)
    (wanted,) = ReferenceEvaluator(made).run(None, {"x": x})
    (found,) = dlc.compile(made, "native").run({"x": x}).values()
    assert found.dtype == wanted.dtype
    if name.startswith("products"):
        np.testing.assert_array_equal(found, wanted)
    elif name.startswith("dynamic"):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    else:  # a tie may be rounded to either side: one step of the last quantization
        step = 0.5 if wanted.dtype == np.float32 else 1
        far = np.abs(found.astype(np.float64) - wanted.astype(np.float64))
        assert far.max() <= step * 1.001
        assert (far > 0).mean() < 0.01


def chain(kind: str, zero: int) -> ModelProto:
    """A convolution behind another one."""
    dtype = KINDS[kind][0]
    constants = {
        "s": np.float32(0.02), "z": dtype(zero), "ws": np.float32(0.01), "wz": np.int8(0),
        "w": weights(32, 16, 3, 3), "v": weights(16, 32, 3, 3),
    }  # fmt: skip
    pads = {"pads": [1, 1, 1, 1]}
    return model([
        ("QuantizeLinear", ["x", "s", "z"], ["q"], {}),
        ("DequantizeLinear", ["q", "s", "z"], ["f"], {}),
        ("DequantizeLinear", ["w", "ws", "wz"], ["wf"], {}),
        ("DequantizeLinear", ["v", "ws", "wz"], ["vf"], {}),
        ("Conv", ["f", "wf"], ["c"], pads),
        ("Relu", ["c"], ["r"], {}),
        ("QuantizeLinear", ["r", "s", "z"], ["q2"], {}),
        ("DequantizeLinear", ["q2", "s", "z"], ["f2"], {}),
        ("Conv", ["f2", "vf"], ["y"], pads),
    ], constants, (1, 16, 11, 13))  # fmt: skip


def test_signed_bytes_are_stored_unsigned_where_they_are_made() -> None:
    """It takes no kernel more than unsigned ones do."""
    signed, unsigned = (
        [k.name for k in lower_model(chain(*given), VNNI).program.kernels]
        for given in (("i8", -128), ("u8", 100))
    )
    assert len(signed) == len(unsigned), (signed, unsigned)
    assert sum("bytes" in name for name in signed) == 2


def sums(kind: str, zero: int) -> ModelProto:
    """A convolution of integers of the largest weights, of images of any size."""
    dtype, code = KINDS[kind]
    choices = np.array([-128, -127, 3, 127], np.int8)
    constants = {"z": dtype(zero), "w": np.random.default_rng(1).choice(choices, (40, 20, 3, 3))}
    nodes: list[Node] = [("ConvInteger", ["x", "w", "z"], ["y"], {"pads": [1, 1, 1, 1]})]
    return model(nodes, constants, ("batch", 20, "high", "wide"), code)


@pytest.mark.parametrize(
    ("cpu", "count"),
    [("haswell", 1), ("skylake-avx512", 1), ("icelake-server", 0), ("sapphirerapids", 0)],
)
def test_kernels_of_three_are_transformed_where_two_products_are_added(
    cpu: str, count: int
) -> None:
    kernels = lower_model(sums("u8", 7), parse_target(f"llvm -mcpu={cpu}")).program.kernels
    assert sum("winograd_bytes" in k.name for k in kernels) == count


@pytest.mark.parametrize(
    ("kind", "zero"), [("u8", 0), ("u8", 255), ("i8", -128), ("i8", 127), ("i8", 0)]
)
def test_sums_of_any_image_are_exact(kind: str, zero: int) -> None:
    made = sums(kind, zero)
    module, rng = dlc.compile(made, "native"), np.random.default_rng(0)
    limits = np.iinfo(KINDS[kind][0])
    (w,) = (numpy_helper.to_array(t) for t in made.graph.initializer if t.name == "w")
    for batch, high, wide in ((1, 1, 1), (2, 5, 9), (1, 12, 8), (0, 4, 4), (3, 7, 2)):
        x = rng.choice([limits.min, 1, limits.max], (batch, 20, high, wide)).astype(limits.dtype)
        (found,) = module.run({"x": x}).values()
        pixels = np.pad(x.astype(np.int64) - zero, [(0, 0), (0, 0), (1, 1), (1, 1)])
        wanted = np.zeros((batch, 40, high, wide), np.int64)
        for i, j in np.ndindex(3, 3):
            part = pixels[:, :, i : i + high, j : j + wide]
            wanted += np.einsum("nchw,oc->nohw", part, w[:, :, i, j].astype(np.int64))
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(("kind", "zero"), [("u8", 128), ("i8", -3)])
@pytest.mark.parametrize("shape", [(1, 4, 8, 16), ("n", 4, 8, 16)], ids=["fixed", "open"])
def test_functions_of_a_byte_are_looked_up(
    kind: str, zero: int, shape: tuple[int | str, ...]
) -> None:
    """SiLU as exporters quantize it, its sigmoid by itself; and a convolution, which pads."""
    dtype, element = KINDS[kind]
    constants = {
        "s": np.float32(0.05), "z": dtype(zero), "t": np.float32(2**-7), "o": dtype(1),
        "w": weights(4, 4, 3, 3), "ws": np.float32(0.01), "u": np.float32(0.5),
    }  # fmt: skip
    proto = model([
        ("DequantizeLinear", ["x", "s", "z"], ["f"], {}),
        ("Sigmoid", ["f"], ["g"], {}),
        ("QuantizeLinear", ["g", "t", "o"], ["h"], {}),
        ("DequantizeLinear", ["h", "t", "o"], ["i"], {}),
        ("Mul", ["f", "i"], ["j"], {}),
        ("QuantizeLinear", ["j", "s", "z"], ["k"], {}),
        ("DequantizeLinear", ["k", "s", "z"], ["l"], {}),
        ("DequantizeLinear", ["w", "ws"], ["v"], {}),
        ("Conv", ["l", "v"], ["c"], {"pads": [1, 1, 1, 1]}),
        ("QuantizeLinear", ["c", "u", "z"], ["y"], {}),
    ], constants, shape, element)  # fmt: skip
    kernels = lower_model(proto, parse_target("llvm -mcpu=haswell")).program.kernels
    assert sum("look_up" in k.name for k in kernels) == 1
    x = np.arange(512).astype(dtype).reshape(1, 4, 8, 16)
    (want,) = ReferenceEvaluator(proto).run(None, {"x": x})
    np.testing.assert_array_equal(dlc.compile(proto).run({"x": x})["y"], want)


def recurrent(hidden: int, batch: int) -> ModelProto:
    """onnxruntime's LSTM of weights of bytes, over seven steps. Two products fit 16 bits."""
    constants = {
        "w": weights(1, 24, 4 * hidden, most=64), "r": weights(1, hidden, 4 * hidden, most=64),
        "s": np.full(1, 0.01, np.float32), "z": np.zeros(1, np.int8),
    }  # fmt: skip
    inputs = ["x", "w", "r", "", "", "", "", "", "s", "z", "s", "z"]
    attributes = {"domain": "com.microsoft", "hidden_size": hidden}
    proto = model([("DynamicQuantizeLSTM", inputs, ["y"], attributes)], constants, (7, batch, 24))
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return proto


@pytest.mark.parametrize("batch", [1, 3])
def test_the_steps_of_a_quantized_lstm_multiply_bytes(batch: int) -> None:
    made = recurrent(32, batch)
    kernels = [k.name for k in lower_model(made, VNNI).program.kernels]
    products = [name for name in kernels if "matmul" in name]
    assert all("matmul_bytes" in name for name in products), kernels
    assert len(products) >= 2, kernels
    x = np.random.default_rng(0).standard_normal((7, batch, 24)).astype(np.float32)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # several quantize rows of the state each by its own range
    session = onnxruntime.InferenceSession(made.SerializeToString(), options)
    (wanted,) = session.run(None, {"x": x})
    (found,) = dlc.compile(made, "native").run({"x": x}).values()
    np.testing.assert_allclose(found, wanted, atol=2e-5)
