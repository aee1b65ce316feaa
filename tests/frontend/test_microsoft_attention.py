"""Attention and quantized operators of onnxruntime's own domain, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, helper

import dlc
from dlc.core.errors import UnsupportedModel
from dlc.frontend.onnx import import_model, load_model
from dlc.graph.evaluate import evaluate
from tests.frontend.onnx_model import model
from tests.frontend.test_microsoft import microsoft

RNG = np.random.default_rng(11)
B, S, H, D = 2, 5, 3, 4
"""Batch, length, heads, size of a head."""


def real(*shape) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def u8(*shape) -> np.ndarray:
    return RNG.integers(0, 256, shape).astype(np.uint8)


def proto_of(node, x, constants) -> ModelProto:
    """A model of one node whose input is x."""
    outputs = [o for o in node.output if o]
    proto = model([node], {"x": x.shape}, constants, outputs=outputs)
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    proto.graph.input[0].type.tensor_type.elem_type = kind
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return proto


def onnxruntimes(proto, x, threads=0) -> list[np.ndarray]:
    """What onnxruntime computes, by default with a thread on each core."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    return list(session.run(None, {"x": x}))


def check(node, x, constants, steps=0, atol=5e-5) -> None:
    """Compare with onnxruntime; integers may differ by `steps`, where a tie is rounded."""
    proto = proto_of(node, x, constants)
    compare(proto, x, onnxruntimes(proto, x), steps, atol)


def compare(proto, x, want, steps=0, atol=5e-5) -> None:
    """Compare the reference with what is expected."""
    graph = import_model(load_model(proto)).graph
    found = evaluate(graph, {v.name: x for v in graph.inputs})
    for value, expected in zip(graph.outputs, want, strict=True):
        if expected.dtype.kind == "f":
            np.testing.assert_allclose(found[value.name], expected, rtol=2e-4, atol=atol)
        else:
            assert np.abs(found[value.name].astype(int) - expected.astype(int)).max() <= steps


MASKS: dict[str, np.ndarray] = {
    "none": np.zeros(0, np.int32),
    "keys": np.array([[1, 1, 1, 0, 0], [1, 0, 1, 1, 1]], np.int32),
    "negative": np.array([[1, -1, 1, 0, 0], [1, 0, 2, 1, 1]], np.int32),
    "lengths": np.array([3, 5], np.int32),
    "ends and begins": np.array([3, 5, 1, 0], np.int32),
    "queries": (np.arange(B * S * S, dtype=np.int32).reshape(B, S, S) * 7 % 11) - 4,
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("causal", [0, 1])
def test_self_attention(mask, causal):
    constants = {"w": real(8, 3 * H * D), "b": real(3 * H * D)}
    inputs = ["x", "w", "b"]
    if mask != "none":
        constants["m"] = MASKS[mask]
        inputs.append("m")
    node = microsoft("Attention", inputs, num_heads=H, unidirectional=causal)
    check(node, real(B, S, 8), constants)


def test_self_attention_with_a_past():
    constants = {
        "w": real(8, 3 * H * D), "b": real(3 * H * D), "p": real(2, B, H, 2, D),
        "a": real(1, H, S, S + 2),
    }  # fmt: skip
    node = microsoft(
        "Attention", ["x", "w", "b", "", "p"], ["y", "present"], num_heads=H, scale=0.25,
        unidirectional=1,
    )  # fmt: skip
    check(node, real(B, S, 8), {k: v for k, v in constants.items() if k != "a"})


@pytest.mark.parametrize("mask", sorted(MASKS.keys() - {"ends and begins"}))
def test_multi_head_attention(mask):
    constants = {"k": real(B, S, H * D), "v": real(B, S, H * 2), "b": real(2 * H * D + H * 2)}
    inputs = ["x", "k", "v", "b"]
    if mask != "none":
        constants["m"] = MASKS[mask]
        inputs.append("m")
    check(microsoft("MultiHeadAttention", inputs, num_heads=H), real(B, S, H * D), constants)


def test_heads_without_elements_do_not_tell_the_scale():
    """onnxruntime divides by 0 there, and dies of it."""
    node = microsoft("MultiHeadAttention", ["x", "k", "v"], ["y"], num_heads=H)
    proto = model([node], {"x": (B, S, 0)}, {"k": real(B, S, 0), "v": real(B, S, H * 2)})
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    with pytest.raises(UnsupportedModel, match="no elements to tell the scale"):
        import_model(load_model(proto))


def test_multi_head_attention_with_a_past_and_a_bias_of_scores():
    constants = {
        "k": real(B, S, H * D), "v": real(B, S, H * D), "a": real(B, H, S, S + 2),
        "pk": real(B, H, 2, D), "pv": real(B, H, 2, D),
    }  # fmt: skip
    inputs = ["x", "k", "v", "", "", "a", "pk", "pv"]
    node = microsoft("MultiHeadAttention", inputs, ["y", "kk", "vv"], num_heads=H)
    check(node, real(B, S, H * D), constants)


def test_quantized_attention():
    """Larger weights saturate in onnxruntime where a CPU has AVX2 and no VNNI."""
    constants = {
        "w": RNG.integers(-64, 64, (8, 3 * H * D)).astype(np.int8), "b": real(3 * H * D),
        "s": np.float32(0.01), "t": np.float32(0.02), "z": np.uint8(120), "u": np.int8(0),
    }  # fmt: skip
    node = microsoft("QAttention", ["x", "w", "b", "s", "t", "", "z", "u"], num_heads=H)
    check(node, u8(B, S, 8), constants)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("positions", ["start", "each"])
@pytest.mark.parametrize("shape", [(B, S, H * D), (B, H, S, D)])
def test_rotary_embedding(interleaved, positions, shape):
    angles = np.outer(np.arange(9), [1.0, 0.1])
    at = np.array([2]) if positions == "start" else RNG.integers(0, 9, (B, S))
    constants = {"p": at, "c": np.cos(angles).astype(np.float32),
                 "s": np.sin(angles).astype(np.float32)}  # fmt: skip
    node = microsoft("RotaryEmbedding", ["x", "p", "c", "s"], interleaved=interleaved)
    check(node, real(*shape), constants)


def test_embeddings():
    constants = {
        "g": np.array([[0, 1, 1], [1, 0, 0]], np.int32), "w": real(9, 6), "p": real(5, 6),
        "s": real(2, 6), "a": real(6), "b": real(6),
    }  # fmt: skip
    node = microsoft("EmbedLayerNormalization", ["x", "g", "w", "p", "s", "a", "b"],
                     ["y", "i"], epsilon=0.1)  # fmt: skip
    proto = RNG.integers(0, 9, (2, 3)).astype(np.int32)
    check(node, proto, constants)


@pytest.mark.parametrize(
    ("activation", "params"),
    [("Relu", []), ("LeakyRelu", [0.25]), ("Clip", [-0.5, 0.5]), ("HardSigmoid", [0.3, 0.4])],
)
def test_fused_convolution(activation, params):
    constants = {"w": real(4, 3, 3, 3), "b": real(4), "z": real(1, 4, 6, 5)}
    attributes = {"activation_params": params} if params else {}
    node = microsoft("FusedConv", ["x", "w", "b", "z"], activation=activation, pads=[1, 1, 1, 1],
                     **attributes)  # fmt: skip
    check(node, real(1, 3, 6, 5), constants)


def test_fused_gemm():
    constants = {"b": real(5, 4), "c": real(5)}
    node = microsoft("FusedGemm", ["x", "b", "c"], transB=1, alpha=0.5, activation="LeakyRelu",
                     activation_alpha=0.1)  # fmt: skip
    check(node, real(3, 4), constants)


SCALES = {"s": np.float32(0.05), "z": np.uint8(120), "t": np.float32(0.1), "u": np.uint8(100)}


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("QLinearSigmoid", {}),
        ("QLinearLeakyRelu", {"alpha": 0.25}),
        ("QLinearSoftmax", {"opset": 13, "axis": -1}),
        ("QLinearGlobalAveragePool", {}),
        ("QLinearAveragePool", {"kernel_shape": [2, 3], "pads": [0, 1, 0, 1]}),
    ],
)
def test_quantized_functions(op, attributes):
    constants = SCALES | {"t": np.float32(1 / 256), "u": np.uint8(0)}
    inputs = ["x", "s", "z", "t", "u"]
    check(microsoft(op, inputs, **attributes), u8(2, 3, 5, 4), constants, steps=1)


@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
def test_quantized_arithmetic(op):
    constants = SCALES | {"b": u8(3, 1, 4), "v": np.float32(0.07), "w": np.uint8(90)}
    node = microsoft(op, ["x", "s", "z", "b", "v", "w", "t", "u"])
    check(node, u8(2, 3, 5, 4), constants, steps=1)


def test_quantized_concatenation():
    constants = SCALES | {"b": u8(2, 1), "v": np.float32(0.07), "w": np.uint8(90)}
    node = microsoft("QLinearConcat", ["t", "u", "x", "s", "z", "b", "v", "w"], axis=1)
    check(node, u8(2, 3), constants, steps=1)


def test_quantized_products_as_floats():
    constants = {
        "b": u8(6, 5), "s": np.float32(0.02), "t": real(5) ** 2, "z": np.uint8(7),
        "u": u8(5), "c": real(5),
    }  # fmt: skip
    node = microsoft("MatMulIntegerToFloat", ["x", "b", "s", "t", "z", "u", "c"])
    check(node, u8(3, 6), constants)
    node = microsoft("DynamicQuantizeMatMul", ["x", "b", "t", "u", "c"])
    check(node, real(3, 6), {k: constants[k] for k in ("b", "t", "u", "c")})


@pytest.mark.parametrize("attributes", [{}, {"transA": 1, "transB": 1, "alpha": 0.5}])
@pytest.mark.parametrize("outside", ["float", "integer"])
def test_quantized_products_of_matrices(outside, attributes):
    turned = bool(attributes)
    constants = SCALES | {
        "b": u8(5, 6) if turned else u8(6, 5), "v": real(5) ** 2, "w": u8(5),
        "c": np.arange(-2, 3, dtype=np.int32) * 1000, "r": np.float32(4.0),
    }  # fmt: skip
    inputs = ["x", "s", "z", "b", "v", "w", "c"]
    if outside == "integer":
        inputs += ["r", "u"]
    node = microsoft("QGemm", inputs, **attributes)
    check(node, u8(6, 3) if turned else u8(3, 6), constants, steps=outside == "integer")


@pytest.mark.parametrize(
    ("bits", "zeros"), [(2, ""), (4, ""), (8, ""), (4, "packed"), (8, "packed"), (4, "floats")]
)
def test_products_with_weights_of_few_bits(bits, zeros):
    rows, columns, block = 5, 40, 16
    blocks = -(-columns // block)
    constants = {"b": u8(rows, blocks, block * bits // 8), "s": real(rows * blocks) ** 2}
    inputs = ["x", "b", "s"]
    if zeros:
        packed = u8(rows * -(-blocks * bits // 8))
        constants["z"] = packed if zeros == "packed" else real(rows, blocks)
        inputs.append("z")
    node = microsoft("MatMulNBits", inputs, K=columns, N=rows, bits=bits, block_size=block)
    check(node, real(3, columns), constants)


@pytest.mark.parametrize("columns", [64, 40], ids=["whole", "filled_up"])
@pytest.mark.parametrize(("bits", "zeros"), [(4, ""), (8, ""), (4, "packed"), (8, "packed")])
def test_rows_are_bytes_where_the_model_allows_it(bits, zeros, columns):
    """At level 4 onnxruntime rounds the rows, too: nothing but the order of sums differs."""
    rows, block = 7, 16
    blocks = -(-columns // block)
    constants = {"b": u8(rows, blocks, block * bits // 8), "s": real(rows * blocks) ** 2}
    inputs = ["x", "b", "s"]
    if zeros:
        constants["z"] = u8(rows * -(-blocks * bits // 8))
        inputs.append("z")
    how = {"K": columns, "N": rows, "bits": bits, "block_size": block}
    x = real(3, columns)
    x[1, :block] = 0
    x[2] *= 1e-30
    rounded = microsoft("MatMulNBits", inputs, **how, accuracy_level=4)
    check(rounded, x, constants)
    plain = proto_of(microsoft("MatMulNBits", inputs, **how), x, constants)
    apart = np.abs(onnxruntimes(plain, x)[0] - onnxruntimes(proto_of(rounded, x, constants), x)[0])
    assert apart.max() > 1e-3  # far more than the order of sums


def floats_and_bytes(node, x, constants):
    """What a product has at level 4, of the model and of onnxruntime, and of rows that stay."""
    found = {}
    for level in (0, 4):
        level_of = next(a for a in node.attribute if a.name == "accuracy_level")
        level_of.i = level
        proto = proto_of(node, x, constants)
        graph = import_model(load_model(proto)).graph
        (y,) = evaluate(graph, {v.name: x for v in graph.inputs}).values()
        found[level] = y, onnxruntimes(proto, x)[0]
    return *found[4], found[0][0]


@pytest.mark.parametrize("kept", ["floats", "groups"])
def test_rows_stay_where_onnxruntime_keeps_them(kept):
    """Beside zero points that are floats, and where rows have an order of their own."""
    rows, columns, block = 5, 40, 16
    constants = {"b": u8(rows, 3, block // 2), "s": real(rows * 3) ** 2}
    if kept == "floats":
        constants["z"], inputs = real(rows, 3), ["x", "b", "s", "z"]
    else:
        constants["g"], inputs = (
            np.arange(columns, dtype=np.int32) * 7 % 3,
            ["x", "b", "s", "", "g"],
        )
    how = {"K": columns, "N": rows, "bits": 4, "block_size": block}
    node = microsoft("MatMulNBits", inputs, **how, accuracy_level=4)
    ours, theirs, plain = floats_and_bytes(node, real(3, columns), constants)
    np.testing.assert_array_equal(ours, plain)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
def test_numbers_between_two_bytes_and_tiny_ones_go_onnxruntimes_way():
    """Half of the largest is 63.5 bytes: the inverse of the scale decides, as it is rounded."""
    rows, columns, block = 6, 64, 16
    constants = {"b": u8(rows, 4, block // 2), "s": real(rows * 4) ** 2}
    how = {"K": columns, "N": rows, "bits": 4, "block_size": block}
    node = microsoft("MatMulNBits", ["x", "b", "s"], **how, accuracy_level=4)
    x = RNG.integers(-8, 9, (40, columns)).astype(np.float32)
    x[:, ::block] = 8
    x *= RNG.random((40, 1), np.float32) * np.float32(10) ** RNG.integers(-33, 30, (40, 1))
    session = onnxruntimes(proto_of(node, x, constants), x)[0]
    module = dlc.compile(proto_of(node, x, constants))
    (found,) = module.run({"x": x}).values()
    size = np.abs(session).max(axis=1, keepdims=True)
    np.testing.assert_allclose(found / size, session / size, atol=1e-5)


def test_rows_of_halves_meet_weights_of_few_bits():
    """Sums are float32, and results halves again."""
    constants = {"b": u8(5, 2, 8), "s": (2.0 ** RNG.integers(-3, 1, 10)).astype(np.float16)}
    node = microsoft("MatMulNBits", ["x", "b", "s"], K=32, N=5, bits=4, block_size=16)
    x = RNG.integers(-3, 4, (3, 32)).astype(np.float16)
    data = constants["b"].reshape(5, 16, 1)
    numbers = np.concatenate([data & 15, data >> 4], 2).reshape(5, 2, 16) - 8.0
    weights = (numbers * constants["s"].reshape(5, 2, 1)).reshape(5, 32)
    compare(proto_of(node, x, constants), x, [(x @ weights.T).astype(np.float16)])


@pytest.mark.parametrize("zeros", ["", "z", "w"])
def test_rows_of_weights_in_groups_of_any_order(zeros):
    rows, columns, block = 5, 40, 16
    constants = {
        "b": u8(rows, 3, block // 2), "s": real(rows * 3) ** 2, "z": u8(rows * 2),
        "w": real(rows * 3), "g": np.arange(columns, dtype=np.int32) * 7 % 3,
    }  # fmt: skip
    how = {"K": columns, "N": rows, "bits": 4, "block_size": block}
    node = microsoft("MatMulNBits", ["x", "b", "s", zeros, "g"], **how)
    used = {k: v for k, v in constants.items() if k in node.input}
    x = real(3, columns)
    proto = proto_of(node, x, used)
    want = onnxruntimes(proto, x)
    if zeros == "z":  # where there is a g_idx, onnxruntime reads no zero points of few bits
        packed = constants["z"].reshape(rows, 2, 1)
        shifts = np.concatenate([packed & 15, packed >> 4], 2).reshape(rows, 4) - 8.0
        moved = (constants["s"].reshape(rows, 3) * shifts[:, :3])[:, constants["g"]]
        want = [want[0] - x @ moved.T]
    compare(proto, x, want)
    for wrong in (constants["g"] + 1, constants["g"] - 1, constants["g"][1:]):
        proto = proto_of(node, x, used | {"g": wrong})
        with pytest.raises(UnsupportedModel, match="names no group of the 3"):
            import_model(load_model(proto))


def test_weights_of_three_bits_are_refused():
    constants = {"b": u8(5, 3, 6), "s": real(15)}
    node = microsoft("MatMulNBits", ["x", "b", "s"], K=40, N=5, bits=3, block_size=16)
    with pytest.raises(UnsupportedModel, match="weights of 3 bits are not handled"):
        import_model(load_model(proto_of(node, real(3, 40), constants)))
