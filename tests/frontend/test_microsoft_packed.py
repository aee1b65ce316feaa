"""Operators of onnxruntime's own domain on packed operands and weights, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import dlc
from dlc.core.errors import UnsupportedModel
from dlc.frontend.onnx import import_model, load_model
from dlc.graph.evaluate import evaluate
from tests.frontend.onnx_model import model
from tests.frontend.test_microsoft import microsoft
from tests.frontend.test_microsoft_attention import (
    SCALES,
    B,
    D,
    H,
    S,
    check,
    compare,
    onnxruntimes,
    proto_of,
    real,
    u8,
)

RNG = np.random.default_rng(12)


@pytest.mark.parametrize("masked", [False, True])
def test_packed_queries_keys_and_values(masked):
    """onnxruntime has them on a GPU only; here it gets them one by one."""
    constants = {"m": np.array([[1, 1, 1, 0, 0], [1, 0, 1, 1, 1]], np.int32)} if masked else {}
    tail = ["", "m"] if masked else []
    x = real(B, S, H, 3, D)
    parts = {n: x[:, :, :, i].reshape(B, S, H * D) for i, n in enumerate("qkv")}
    apart = microsoft("MultiHeadAttention", ["x", "k", "v", *tail], num_heads=H)
    plain = proto_of(apart, parts["q"], constants | {n: parts[n] for n in "kv"})
    want = onnxruntimes(plain, parts["q"])
    packed = microsoft("MultiHeadAttention", ["x", "", "", *tail], num_heads=H)
    compare(proto_of(packed, x, constants), x, want)
    both = microsoft("MultiHeadAttention", ["x", "k", "", *tail], num_heads=H)
    keys = {"k": np.ascontiguousarray(x[:, :, :, 1:])}
    compare(proto_of(both, parts["q"], constants | keys), parts["q"], want)


def test_keys_of_heads_by_themselves():
    constants = {"k": real(B, H, 7, D), "v": real(B, H, 7, D)}
    node = microsoft("MultiHeadAttention", ["x", "k", "v"], num_heads=H)
    check(node, real(B, S, H * D), constants)


def test_scores_are_a_result():
    constants = {"k": real(B, S, H * D), "v": real(B, S, H * D), "a": real(1, H, S, S)}
    inputs = ["x", "k", "v", "", "", "a"]
    node = microsoft("MultiHeadAttention", inputs, ["y", "kk", "vv", "qk"], num_heads=H)
    proto = proto_of(node, x := real(B, S, H * D), constants)
    proto.graph.output[3].type.tensor_type.elem_type = TensorProto.FLOAT
    compare(proto, x, onnxruntimes(proto, x))


def step(kind):
    """A new token after three: (node, input, constants)."""
    constants = {"k": real(B, 1, H * D), "v": real(B, 1, H * D), "b": real(3 * H * D)}
    room = 3 if kind == "grows" else 6
    constants |= {"pk": real(B, H, room, D), "pv": real(B, H, room, D), "n": np.array([3], "i4")}
    if kind == "masked":
        constants["m"] = np.array([[1, 1, 0, 1], [0, 1, 1, 1]], np.int32)
    mask = "m" if kind == "masked" else ""
    inputs = ["x", "k", "v", mask, "", "pk", "pv", "n", "", "", "b"]
    node = microsoft(
        "DecoderMaskedMultiHeadAttention", inputs, ["y", "kk", "vv"], num_heads=H,
        past_present_share_buffer=int(kind != "grows"),
    )  # fmt: skip
    return node, real(B, 1, H * D), constants


@pytest.mark.parametrize("kind", ["shared", "masked"])
def test_a_step_of_a_decoder_writes_into_its_cache(kind):
    check(*step(kind))


def test_the_length_of_a_cache_is_data():
    """Machine code takes any length, and refuses one beyond the cache."""
    node, x, constants = step("shared")
    length = constants.pop("n")
    proto = model([node], {"x": x.shape}, constants, outputs=["y", "kk"])
    proto.graph.input.append(helper.make_tensor_value_info("n", TensorProto.INT32, [1]))
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    module = dlc.compile(proto)
    graph = import_model(load_model(proto)).graph
    for n in (0, 3, 5):
        found = module.run({"x": x, "n": length * 0 + n})
        want = evaluate(graph, {"x": x, "n": length * 0 + n})
        np.testing.assert_allclose(found["y"], want["y"], rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(found["kk"][:, :, :n], constants["pk"][:, :, :n])
        np.testing.assert_array_equal(found["kk"][:, :, n + 1 :], constants["pk"][:, :, n + 1 :])
    for n in (-1, 6):
        with pytest.raises(dlc.UserError):
            module.run({"x": x, "n": length * 0 + n})


def test_a_choice_of_quantized_values():
    constants = SCALES | {"c": np.array([[True], [False]]), "b": u8(2, 5)}
    constants |= {"v": np.float32(0.07), "w": np.uint8(90)}
    node = microsoft("QLinearWhere", ["c", "x", "s", "z", "b", "v", "w", "t", "u"])
    check(node, u8(2, 5), constants, steps=1)


@pytest.mark.parametrize("last", [0, 1])
def test_quantized_windows_of_channels_at_the_end(last):
    shape = (2, 6, 5, 3) if last else (2, 3, 6, 5)
    constants = SCALES | {"w": u8(4, 3, 3, 2), "v": np.float32(0.03), "k": np.uint8(128)}
    constants |= {"b": np.array([100, -200, 300, 0], np.int32)}
    node = microsoft("QLinearConv", ["x", "s", "z", "w", "v", "k", "t", "u", "b"],
                     channels_last=last, pads=[1, 0, 1, 1], strides=[2, 1])  # fmt: skip
    check(node, u8(*shape), constants, steps=1)
    pool = microsoft("QLinearAveragePool", ["x", "s", "z", "t", "u"], channels_last=last,
                     kernel_shape=[2, 3], strides=[1, 2])  # fmt: skip
    check(pool, u8(*shape), SCALES, steps=1)


@pytest.mark.parametrize("keepdims", [0, 1])
def test_means_of_quantized_values(keepdims):
    node = microsoft("QLinearReduceMean", ["x", "s", "z", "t", "u"], axes=[-1, 1],
                     keepdims=keepdims)  # fmt: skip
    proto = model([node], {"x": (2, 3, 5)}, SCALES)
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    proto.graph.input[0].type.tensor_type.elem_type = TensorProto.UINT8
    x = u8(2, 3, 5)
    graph = import_model(load_model(proto)).graph
    real_mean = ((x - 120.0) * 0.05).mean((1, 2), keepdims=bool(keepdims))
    want = np.clip(np.round(real_mean / 0.1) + 100, 0, 255)
    np.testing.assert_allclose(evaluate(graph, {"x": x})["y"], want, atol=1)


def lstm(scales, directions, lengths=(), **attributes):
    """onnxruntime's LSTM of weights of bytes, with all operands it may have."""
    hidden, size = 6, 4
    shape = (directions,) if scales == "each" else (directions, 4 * hidden)
    constants = {
        "w": u8(directions, size, 4 * hidden), "r": u8(directions, hidden, 4 * hidden),
        "b": real(directions, 8 * hidden), "h0": real(directions, 2, hidden),
        "c0": real(directions, 2, hidden), "p": real(directions, 3 * hidden),
        "wz": np.full(shape, 128, np.uint8), "rz": np.full(shape, 127, np.uint8),
    }  # fmt: skip
    for name, least in (("ws", 0.01), ("rs", 0.02)):
        constants[name] = np.linspace(least, 2 * least, np.prod(shape), dtype=np.float32)
        constants[name] = constants[name].reshape(shape)
    if lengths:
        constants["l"] = np.array(lengths, np.int32)
    inputs = ["x", "w", "r", "b", "l" if lengths else "", "h0", "c0", "p", "ws", "wz", "rs", "rz"]
    node = microsoft("DynamicQuantizeLSTM", inputs, ["y", "h", "c"], hidden_size=hidden,
                     direction="bidirectional" if directions > 1 else "forward",
                     **attributes)  # fmt: skip
    return node, constants


@pytest.mark.parametrize("scales", ["each", "rows"])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("forget", [0, 1])
def test_an_lstm_with_weights_of_bytes(scales, directions, forget):
    """Several threads of onnxruntime quantize a state each for its own rows."""
    node, constants = lstm(scales, directions, input_forget=forget)
    x = real(3, 2, 4)
    proto = proto_of(node, x, constants)
    compare(proto, x, onnxruntimes(proto, x, threads=1))


def test_nobody_sees_what_is_beyond_the_end_of_a_quantized_sequence():
    """Of what onnxruntime rounds besides the weights, some hundredths of the state are left."""
    node, constants = lstm("rows", 2, lengths=(1, 3))
    x = real(4, 2, 4)
    proto = proto_of(node, x, constants)
    wanted = onnxruntimes(proto, x, threads=1)
    x[1:, 0] = x[3:, 1] = np.nan
    compare(proto, x, wanted, atol=0.05)


@pytest.mark.parametrize("masked", [False, True])
def test_embeddings_of_bytes(masked):
    numbers = {n: u8(*shape) for n, shape in
               (("w", (9, 6)), ("p", (5, 6)), ("t", (2, 6)), ("a", (6,)), ("b", (6,)))}  # fmt: skip
    constants = {"g": np.array([[0, 1, 1], [1, 0, 0]], np.int32)} | numbers
    constants |= {f"{n}s": np.float32(0.01 * (i + 1)) for i, n in enumerate(numbers)}
    constants |= {f"{n}z": np.uint8(120 + i) for i, n in enumerate(numbers)}
    if masked:
        constants["m"] = np.array([[1, 1, 0], [1, 1, 1]], np.int32)
    order = ["x", "g", "w", "p", "t", "a", "b", "m" if masked else ""]
    order += [f"{n}s" for n in "wptab"] + [f"{n}z" for n in "wptab"]
    node = microsoft("QEmbedLayerNormalization", order, ["y", "i"], epsilon=0.1)
    check(node, RNG.integers(0, 9, (2, 3)).astype(np.int32), constants)


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("rows", [5, 4])
def test_weights_of_four_bits_out_of_a_table(kind, rows):
    columns, block = 48, 16
    constants = {"b": u8(rows * columns // 2), "s": real(rows * columns // block) ** 2}
    node = microsoft("MatMulBnb4", ["x", "b", "s"], K=columns, N=rows, quant_type=kind,
                     block_size=block)  # fmt: skip
    check(node, real(3, columns), constants)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("indices", [[[0, 4], [2, 2]], [-1]])
def test_rows_of_a_table_of_few_bits(bits, zeros, indices):
    rows, width, block = 5, 40, 16
    blocks = -(-width // block)
    constants = {"d": u8(rows, width * bits // 8), "s": real(rows, blocks)}
    inputs = ["d", "x", "s"]
    if zeros:
        constants["z"] = u8(rows, -(-blocks * bits // 8))
        inputs.append("z")
    node = microsoft("GatherBlockQuantized", inputs, block_size=block, bits=bits,
                     gather_axis=0, quantize_axis=1)  # fmt: skip
    check(node, np.array(indices), constants)


def test_a_table_may_be_weights_of_another_shape():
    """As exporters share the weights of the first layer with those of the last."""
    constants = {"d": u8(5, 3, 8), "s": real(5, 3), "n": np.array([5, 24])}
    node = microsoft("GatherBlockQuantized", ["t", "x", "s"], block_size=16, bits=4)
    proto = proto_of(node, at := np.array([[0, 4], [2, 2]]), constants)
    proto.graph.node.insert(0, helper.make_node("Reshape", ["d", "n"], ["t"]))
    compare(proto, at, onnxruntimes(proto, at))


@pytest.mark.parametrize("across", [0, 2])
def test_rows_of_a_table_of_int4(across):
    constants = {"s": real(3, 2, 5)}
    proto = model([microsoft("GatherBlockQuantized", ["d", "x", "s"], block_size=16,
                             gather_axis=across, quantize_axis=1)],
                  {"x": (2,)}, constants)  # fmt: skip
    numbers = RNG.integers(-8, 8, (3, 32, 5))
    tensor = helper.make_tensor("d", TensorProto.INT4, numbers.shape, numbers.reshape(-1))
    proto.graph.initializer.append(tensor)
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    proto.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    graph = import_model(load_model(proto)).graph
    whole = numbers * np.repeat(constants["s"], 16, axis=1)
    at = np.array([2, 0])
    np.testing.assert_allclose(evaluate(graph, {"x": at})["y"], whole.take(at, across), rtol=1e-6)


def test_a_spectrum_and_back():
    """onnxruntime has these on a GPU only."""
    flags = {"normalized": 0, "onesided": 1, "signal_ndim": 1}
    nodes = [microsoft("Rfft", ["x"], ["f"], **flags), microsoft("Irfft", ["f"], ["y"], **flags)]
    proto = model(nodes, {"x": (2, 3, 10)}, outputs=["f", "y"])
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    x = real(2, 3, 10)
    found = evaluate(import_model(load_model(proto)).graph, {"x": x})
    want = np.fft.rfft(x.astype(np.float64))
    np.testing.assert_allclose(found["f"][..., 0] + 1j * found["f"][..., 1], want, atol=1e-5)
    np.testing.assert_allclose(found["y"], x, atol=1e-5)


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (microsoft("Rfft", ["x"], normalized=1, onesided=1, signal_ndim=1), "normalized = 1"),
        (microsoft("MatMulBnb4", ["x", "b", "s"], K=4, N=4, block_size=16, quant_type=2), "type"),
        (microsoft("MatMulBnb4", ["x", "b", "s"], K=9, N=4, block_size=16, quant_type=0), "bytes"),
        (microsoft("GatherBlockQuantized", ["b", "x", "s"], gather_axis=0, quantize_axis=0),
         "gather_axis"),
        (microsoft("GatherBlockQuantized", ["s", "x", "s"], gather_axis=0, quantize_axis=1),
         "a table of f32"),
        (microsoft("MatMulNBits", ["x", "b", "s"], K=8, N=2, block_size=16, bits=4), "not 16"),
        (microsoft("MatMulNBits", ["x", "b", "s"], K=8, N=2, block_size=0, bits=4), "blocks of 0"),
        (microsoft("MatMulNBits", ["x", "s", "s"], K=8, N=2, block_size=16, bits=4), "of f32 in"),
        (microsoft("MatMulBnb4", ["x", "b", "s"], K=-1, N=0, block_size=1, quant_type=0), "0 x -1"),
        (microsoft("MatMulBnb4", ["x", "s", "s"], K=1, N=2, block_size=1, quant_type=0), "of f32"),
        (microsoft("MultiHeadAttention", ["x"], num_heads=2), "packed"),
        (microsoft("RotaryEmbedding", ["x", "b", "s", "s"], num_heads=-1), "-1 heads"),
        (microsoft("Attention", ["b", "b"], num_heads=2), "queries, keys and values"),
        (microsoft("MultiHeadAttention", ["x", "x", "s"], num_heads=2), "packed"),
        (microsoft("EmbedLayerNormalization", ["i", "", "s", "s", "", "v", "v"]), "of words are"),
        (microsoft("RotaryEmbedding", ["x", "b", "b", "s"]), "angles"),
        (microsoft("DynamicQuantizeLSTM", ["x", "x", "x"]), "no scale"),
    ],
)  # fmt: skip
def test_what_is_not_handled_is_refused(node, why):
    constants = {"b": u8(8), "s": real(1, 1), "v": real(1), "i": np.int32([0])}
    proto = model([node], {"x": (3, 4, 8)}, {n: c for n, c in constants.items() if n in node.input})
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    with pytest.raises(UnsupportedModel, match=why):
        import_model(load_model(proto))
