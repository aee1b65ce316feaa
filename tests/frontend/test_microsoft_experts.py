"""The mixture of experts of onnxruntime's own domain, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import helper

import dlc
from dlc.core.errors import UnsupportedModel
from dlc.frontend.onnx import import_model, load_model
from dlc.graph.evaluate import evaluate
from dlc.graph.ops.fused import FusedGroup
from dlc.graph.pass_ import run_passes
from dlc.graph.pipeline import PIPELINE
from tests.frontend.onnx_model import NODE, graph_of, model
from tests.frontend.test_microsoft import microsoft
from tests.graph.pass_cases import AVX512

RNG = np.random.default_rng(8)
ROWS, HIDDEN, SIZE, EXPERTS = 6, 5, 7, 4


def real(*shape) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


X, ROUTER = real(ROWS, HIDDEN), real(ROWS, EXPERTS)
LAYERS = {
    "r": ROUTER, "w": real(EXPERTS, SIZE, HIDDEN), "b": real(EXPERTS, SIZE),
    "v": real(EXPERTS, HIDDEN, SIZE), "c": real(EXPERTS, HIDDEN),
}  # fmt: skip
WIDE = LAYERS | {"w": real(EXPERTS, 2 * SIZE, HIDDEN), "b": real(EXPERTS, 2 * SIZE)}


def made(constants, inputs=("x", "r", "w", "b", "v", "c"), x=X, **attributes):
    node = microsoft("MoE", list(inputs), **attributes)
    proto = model([node], {"x": x.shape}, {k: v for k, v in constants.items() if k in inputs})
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return proto


def computed(proto, x=X) -> np.ndarray:
    graph = import_model(load_model(proto)).graph
    (found,) = evaluate(graph, {v.name: x for v in graph.inputs}).values()
    return found


def check(proto, x=X) -> None:
    (want,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(computed(proto, x), want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("normalized", [0, 1])
@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "identity"])
def test_experts_are_onnxruntimes(activation, normalized):
    check(made(LAYERS, k=2, activation_type=activation, normalize_routing_weights=normalized))


@pytest.mark.parametrize("k", [1, EXPERTS])
def test_one_expert_or_all_without_biases(k):
    check(made(LAYERS, ["x", "r", "w", "", "v"], k=k, x=X.reshape(2, 3, 5)), X.reshape(2, 3, 5))


GATED = {"activation_type": "swiglu", "swiglu_fusion": 1, "k": 2}
LIMITED = GATED | {"activation_alpha": 1.5, "activation_beta": 1.0, "swiglu_limit": 0.75}


@pytest.mark.parametrize("how", [GATED, LIMITED], ids=["plain", "limited"])
def test_gates_beside_their_factors(how):
    check(made(WIDE, **how))


def test_gates_lie_in_halves_or_in_a_layer_of_their_own():
    """onnxruntime has neither on CPUs."""
    want = computed(made(WIDE, **LIMITED))
    gate, factor = (slice(start, None, 2) for start in (0, 1))
    halves = {k: np.concatenate([WIDE[k][:, gate], WIDE[k][:, factor]], 1) for k in ("w", "b")}
    found = computed(made(WIDE | halves, **LIMITED | {"swiglu_fusion": 2}))
    np.testing.assert_allclose(found, want, rtol=1e-12)
    layers = WIDE | {k: WIDE[k][:, gate] for k in ("w", "b")}
    layers |= {"t": WIDE["w"][:, factor], "u": WIDE["b"][:, factor]}
    inputs = ["x", "r", "w", "b", "v", "c", "t", "u"]
    found = computed(made(layers, inputs, **LIMITED | {"swiglu_fusion": 0}))
    np.testing.assert_allclose(found, want, rtol=1e-12)
    plain = computed(made(WIDE, **GATED))
    found = computed(made(layers, inputs, k=2, activation_type="silu"))
    np.testing.assert_allclose(found, plain, rtol=1e-12)


def test_machine_code_of_experts_whose_results_may_be_infinite():
    """What is not chosen has no share in the result."""
    layers = LAYERS | {"r": ROUTER.copy(), "c": LAYERS["c"].copy()}
    layers["r"][:, 3], layers["c"][3] = -90, np.inf
    proto = made(layers, k=2)
    found = dlc.compile(proto).run({"x": X})["y"]
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, computed(proto), rtol=2e-5, atol=2e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("count", [1, 2, 50])
@pytest.mark.parametrize("first", ["n", None], ids=["open", "fixed"])
def test_machine_code_of_few_and_of_many_rows(first, count):
    x, r = real(count, HIDDEN), real(count, EXPERTS)
    node = microsoft("MoE", ["x", "r", "w", "b", "v", "c"], k=2, activation_type="silu")
    shapes = {"x": (first or count, HIDDEN), "r": (first or count, EXPERTS)}
    proto = model([node], shapes, {k: LAYERS[k] for k in "wbvc"})
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    (want,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x, "r": r})
    found = dlc.compile(proto).run({"x": x, "r": r})["y"]
    np.testing.assert_allclose(found, want, rtol=2e-5, atol=2e-5)


def test_programs_for_some_sizes_have_tiles_of_their_own():
    node = microsoft("MoE", ["x", "r", "w", "b", "v", "c"], k=2)
    proto = model([node], {"x": ("n", HIDDEN), "r": ("n", EXPERTS)}, {k: LAYERS[k] for k in "wbvc"})
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    several = dlc.compile(proto, variants=[{"n": 3}, {"n": (4, 9)}])
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    for count in (1, 3, 7, 20):
        arrays = {"x": real(count, HIDDEN), "r": real(count, EXPERTS)}
        found, (want,) = several.run(arrays)["y"], session.run(None, arrays)
        np.testing.assert_allclose(found, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("turned", [False, True], ids=["columns", "rows"])
@pytest.mark.parametrize("count", [1, 9])
def test_experts_that_a_model_spells_out_are_read_where_they_lie(count, turned):
    """As PyTorch exports them: a matrix is gathered for each choice, and times one column, or row.

    A choice may count from the end.
    """
    weights = LAYERS["w"].transpose(0, 2, 1).copy() if turned else LAYERS["w"]
    product = ["x", "g"] if turned else ["g", "x"]
    line = (1, HIDDEN) if turned else (HIDDEN, 1)
    proto = model(
        [NODE("GatherND", ["w", "i"], ["g"]), NODE("MatMul", product, ["y"])],
        {"x": (count, *line), "i": (count, 1)}, {"w": weights}, kinds={"i": "i"},
    )  # fmt: skip
    x, i = real(count, *line), np.arange(count).reshape(-1, 1) % EXPERTS - 2
    want = x @ weights[i[:, 0]] if turned else weights[i[:, 0]] @ x
    found = dlc.compile(proto).run({"x": x, "i": i})["y"]
    np.testing.assert_allclose(found, want, rtol=2e-5, atol=2e-5)
    after = run_passes(graph_of(proto), PIPELINE, AVX512)
    bodies = [n.op.body for n in after.nodes if isinstance(n.op, FusedGroup)]
    assert "gather_matmul_packed" in [body.name for body in bodies]
    assert max(v.type.rank for body in bodies for v in body.outputs) == 3  # packed ones have 4


@pytest.mark.parametrize(
    ("attributes", "why"),
    [({"use_sparse_mixer": 1}, "use_sparse_mixer"), ({"activation_type": "tanh"}, "not known"),
     ({"activation_type": "swiglu"}, "swiglu_fusion = 0 without a third")],
)  # fmt: skip
def test_what_is_not_handled_is_refused(attributes, why):
    with pytest.raises(UnsupportedModel, match=why):
        computed(made(LAYERS, **attributes))


@pytest.mark.parametrize(
    ("inputs", "why"),
    [(["x", "r", "w"], "no second layer"),
     (["x", "r", "w", "b", "v", "c", "w"], "a third layer beside the activation 'relu'"),
     (["x", "r", "b", "b", "v"], "experts f32"),
     (["x", "w", "w", "b", "v"], " for f32")],
)  # fmt: skip
def test_layers_that_do_not_belong_are_refused(inputs, why):
    with pytest.raises(UnsupportedModel, match=why):
        computed(made(LAYERS, inputs))
