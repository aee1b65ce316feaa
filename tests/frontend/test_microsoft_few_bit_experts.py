"""Mixtures of experts of few bits, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import dlc
from dlc.core.errors import UnsupportedModel
from dlc.frontend.onnx import import_model, load_model
from dlc.graph.evaluate import evaluate
from tests.frontend.onnx_model import model
from tests.frontend.test_microsoft import microsoft

HIDDEN, SIZE, EXPERTS, BLOCK = 64, 32, 4, 16
ORDER = ("x", "r", "w", "s", "b", "v", "t", "c", "", "", "", "z", "p", "", "g")


def real(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def packed(rng, rows, depth, bits, block):
    """The bytes, scales and zero points of a layer."""
    blocks = depth // block if block else 1
    data = rng.integers(0, 256, (EXPERTS, rows, depth * bits // 8), dtype=np.uint8)
    scale = rng.uniform(0.5, 1.5, (EXPERTS, rows, blocks)) * 2 / (1 << bits) / depth**0.5
    along = (rows, -(-blocks * bits // 8)) if block else (-(-rows * bits // 8),)
    zero = rng.integers(0, 256, (EXPERTS, *along), dtype=np.uint8)
    return data, (scale if block else scale[..., 0]).astype(np.float32), zero


def made(rows=6, bits=4, block=BLOCK, without="bczpg", open_rows=False, **attributes):
    """A model of one mixture, and what it reads at run time."""
    rng = np.random.default_rng(bits + 30)  # of which no number lies between two bytes
    kind = attributes.setdefault("activation_type", "swiglu")
    wide = 2 * SIZE if kind == "swiglu" else SIZE
    w, s, z = packed(rng, wide, HIDDEN, bits, block)
    v, t, p = packed(rng, HIDDEN, SIZE, bits, block)
    constants = {"w": w, "s": s, "z": z, "v": v, "t": t, "p": p}
    constants |= {"b": real(rng, EXPERTS, wide), "c": real(rng, EXPERTS, HIDDEN)}
    names = ["" if n in without else n for n in ORDER]
    while not names[-1]:
        names.pop()
    if kind == "swiglu":
        attributes.setdefault("swiglu_fusion", 1)
    if block:
        attributes["block_size"] = block
    node = microsoft("QMoE", names, expert_weight_bits=bits, **{"k": 2, **attributes})
    arrays = {"x": real(rng, rows, HIDDEN), "r": real(rng, rows, EXPERTS)}
    if "g" in names:
        arrays["g"] = np.abs(real(rng, rows, EXPERTS))
    first = "n" if open_rows else rows
    shapes = {k: (first, *a.shape[1:]) for k, a in arrays.items()}
    proto = model([node], shapes, {k: a for k, a in constants.items() if k in names})
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return proto, arrays


def wanted(proto, arrays):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    return session.run(None, arrays)[0]


def check(proto, arrays):
    graph = import_model(load_model(proto)).graph
    (found,) = evaluate(graph, arrays).values()
    np.testing.assert_allclose(found, wanted(proto, arrays), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("without", ["bczpg", "bcg"], ids=["middle", "zeros"])
@pytest.mark.parametrize("block", [BLOCK, 0])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_experts_are_onnxruntimes(bits, block, without):
    check(*made(bits=bits, block=block, without=without))


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_a_column_may_be_one_block(bits):
    """onnxruntime takes its zero points for those of columns side by side."""
    check(*made(bits=bits, block=SIZE))


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_rows_are_rounded_where_the_model_allows_it(bits):
    proto, arrays = made(bits=bits, accuracy_level=4)
    check(proto, arrays)
    found = str(import_model(load_model(proto)).graph)
    assert ("round(" in found) == (bits > 2)
    plain = str(import_model(load_model(made(bits=bits)[0])).graph)
    assert ("round(" in plain) == (bits == 8)  # of which onnxruntime rounds rows always


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "identity"])
def test_activations_and_biases(activation):
    check(*made(without="zpg", activation_type=activation))


@pytest.mark.parametrize("k", [1, EXPERTS])
@pytest.mark.parametrize("normalized", [0, 1])
def test_shares_are_those_among_the_chosen(k, normalized):
    check(*made(k=k, normalize_routing_weights=normalized))


@pytest.mark.parametrize("normalized", [0, 1])
def test_shares_may_be_given(normalized):
    proto, arrays = made(without="bczp", normalize_routing_weights=normalized)
    check(proto, arrays)
    arrays["g"][1] = 0
    check(proto, arrays)


@pytest.mark.thorough
@pytest.mark.parametrize("level", [0, 4])
@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("open_rows", [False, True])
def test_machine_code_of_few_and_of_many_rows(level, rows, open_rows):
    proto, arrays = made(rows, open_rows=open_rows, accuracy_level=level)
    found = dlc.compile(proto).run(arrays)["y"]
    np.testing.assert_allclose(found, wanted(proto, arrays), rtol=2e-5, atol=2e-6)


def test_a_layer_may_have_bits_of_its_own():
    """onnxruntime has this on GPUs alone."""
    proto, arrays = made(bits=4)
    want = evaluate(import_model(load_model(proto)).graph, arrays)["y"]
    (node,) = proto.graph.node
    node.attribute.extend([helper.make_attribute(f"fc{n}_expert_weight_bits", 4) for n in (1, 2)])
    next(a for a in node.attribute if a.name == "expert_weight_bits").i = 2
    found = evaluate(import_model(load_model(proto)).graph, arrays)["y"]
    np.testing.assert_array_equal(found, want)


def test_a_third_layer_is_the_factor():
    """onnxruntime has this on GPUs alone."""
    proto, arrays = made(bits=4)
    want = evaluate(import_model(load_model(proto)).graph, arrays)["y"]
    constants = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    parts = {"w": constants["w"], "s": constants["s"]}
    halves = {f"{k}{i}": a[:, i::2] for k, a in parts.items() for i in (0, 1)}
    constants = {k: constants[k] for k in ("v", "t")} | halves
    names = ["x", "r", "w0", "s0", "", "v", "t", "", "w1", "s1"]
    attributes = {"k": 2, "activation_type": "swiglu", "block_size": BLOCK}
    shapes = {k: a.shape for k, a in arrays.items()}
    split = model([microsoft("QMoE", names, **attributes)], shapes, constants)
    split.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    found = evaluate(import_model(load_model(split)).graph, arrays)["y"]
    np.testing.assert_allclose(found, want, rtol=1e-12)


@pytest.mark.parametrize(
    ("attributes", "why"),
    [({"quant_type": "fp4"}, "quant_type"), ({"weights_prepacked": 1}, "one kind of GPU"),
     ({"fc1_expert_weight_bits": 3}, "3 bits"), ({"use_sparse_mixer": 1}, "use_sparse_mixer"),
     ({"fc1_expert_weight_bits": 8}, "scales")],
)  # fmt: skip
def test_what_is_not_handled_is_refused(attributes, why):
    with pytest.raises(UnsupportedModel, match=why):
        import_model(load_model(made(**attributes)[0]))
