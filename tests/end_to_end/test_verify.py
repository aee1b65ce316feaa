"""verify() tells right from wrong, and whose fault a difference is."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, parser

import dlc
from dlc import verify_model
from dlc.compare_arrays import Error, measure_error, why_not_close
from dlc.core.errors import UserError
from dlc.core.manifest import SizeSpec
from dlc.core.precision import promised
from dlc.core.types import DType
from dlc.random_inputs import default_sizes, random_array, random_feeds
from dlc.verify_precision import keeps_promise, round_factor
from tests.end_to_end.networks import NETWORKS


@pytest.fixture(scope="module")
def model():
    return NETWORKS["perceptron"].model()


@pytest.fixture(scope="module")
def module(model):
    return dlc.compile(model)


def changed(model):
    """The model with another last bias: what the artefact was not built from."""
    other = type(model).FromString(model.SerializeToString())
    (bias,) = (w for w in other.graph.initializer if w.name == "w_4")
    array = np.frombuffer(bias.raw_data, np.float32) + np.arange(5, dtype=np.float32)
    bias.raw_data = array.tobytes()
    return other


def test_a_right_model_is_right(model, module):
    pytest.importorskip("onnxruntime")
    report = dlc.verify(model, module, trials=2)
    assert report.ok
    assert (report.trials, report.judges) == (2, ("onnxruntime", "float64"))
    (output,) = report.outputs
    assert output.dlc.max_abs < 1e-6
    assert output.peer.max_abs < 1e-6
    report.check()


@pytest.mark.parametrize("judge", ["onnxruntime", "float64"])
def test_a_wrong_model_is_wrong(model, module, judge):
    report = dlc.verify(changed(model), module, against=[judge])
    assert not report.ok
    with pytest.raises(dlc.VerificationError, match=f"output 'y': differs from {judge}"):
        report.check()


def scaled(model, factor):
    """The model with all weights off by a factor."""
    other = type(model).FromString(model.SerializeToString())
    for w in other.graph.initializer:
        if w.data_type == w.FLOAT:
            array = np.frombuffer(w.raw_data, np.float32) * np.float32(factor)
            w.raw_data = array.tobytes()
    return other


@pytest.mark.parametrize("judges", [["float64"], ["onnxruntime", "float64"]])
def test_a_lower_precision_is_judged_by_what_it_promises(model, module, judges):
    if "onnxruntime" in judges:
        pytest.importorskip("onnxruntime")
    medium = dlc.compile(model, precision="medium")
    near, far = scaled(model, 1.002), scaled(model, 1.04)
    assert not dlc.verify(near, module, against=judges).ok
    report = dlc.verify(near, medium, against=judges)
    assert report.ok
    assert report.notes == ("built with precision medium: judged as products of 8 bits",)
    assert not dlc.verify(far, medium, against=judges).ok
    assert not dlc.verify(near, dlc.compile(model, precision="high"), against=judges).ok


def test_16_bit_floats_are_judged_by_the_bits_that_they_have(model, module):
    halves = {half: dlc.compile(model, half=half) for half in ("fp16", "bf16")}
    for times, right in ((1.0003, ["fp16", "bf16"]), (1.002, ["bf16"]), (1.04, [])):
        other = scaled(model, times)
        reports = {half: dlc.verify(other, m, against=["float64"]) for half, m in halves.items()}
        assert [half for half, report in reports.items() if report.ok] == right
    assert reports["fp16"].notes == ("computed in fp16: judged as products of 11 bits",)


@pytest.mark.parametrize(
    ("precision", "half", "wanted"),
    [
        ("highest", "fp16", "tf32"),
        ("high", "bf16", "medium"),
        ("medium", "fp16", "medium"),
        ("high", None, "high"),
    ],
)
def test_the_less_exact_of_two_choices_is_promised(precision, half, wanted):
    assert promised(precision, half) == wanted


def test_only_precisions_there_are(model):
    with pytest.raises(UserError, match="precision 'low' is unknown"):
        dlc.compile(model, precision="low")


def test_what_a_precision_promises():
    wanted = np.array([100.0, 1.0, -50.0])
    never = pytest.fail
    assert keeps_promise(wanted * (1 + 3 * 2**-8), wanted, "medium", never)
    assert not keeps_promise(wanted * (1 + 5 * 2**-8), wanted, "medium", lambda: wanted)
    magnified = wanted * (1 + 2 * 2**-8)  # the model is worse than its factors: so is the reference
    assert keeps_promise(wanted * (1 + 5 * 2**-8), wanted, "medium", lambda: magnified)
    assert not keeps_promise(wanted * (1 + 9 * 2**-8), wanted, "medium", lambda: magnified)
    assert not keeps_promise(np.array([100.0, np.inf, -50]), wanted, "medium", lambda: wanted)
    classes = np.array([3, 4, 5, 6])
    assert not keeps_promise(np.array([3, 4, 5, 7]), classes, "medium", lambda: classes)
    assert keeps_promise(np.array([3, 4, 5, 7]), classes, "medium", lambda: np.array([3, 4, 6, 6]))


def test_factors_are_rounded_to_the_bits_of_a_precision():
    exact = np.array([1.0, -3.0, 0.0, 255.0, 2.0**-130])
    np.testing.assert_array_equal(round_factor(exact, "medium"), exact)
    np.testing.assert_array_equal(round_factor(np.array([257.0, 259.0]), "medium"), [256, 260])
    np.testing.assert_array_equal(round_factor(np.array([257.0, 65537.0]), "high"), [257, 65536])
    assert np.isnan(round_factor(np.array([np.nan]), "high"))


def test_it_compiles_where_nothing_is_compiled_yet(model):
    assert dlc.verify(model, against=["float64"]).ok


def test_given_inputs_are_used(model, module):
    report = dlc.verify(model, module, {"x": np.zeros((4, 13), np.float32)}, trials=3)
    assert report.trials == 1
    with pytest.raises(dlc.InputError):
        dlc.verify(model, module, {"x": np.zeros((4, 12), np.float32)}, against=[])


def renamed(model, old, new):
    """The model with another name for a value."""
    other = type(model).FromString(model.SerializeToString())
    for node in other.graph.node:
        for names in (node.input, node.output):
            names[:] = [new if name == old else name for name in names]
    for value in (*other.graph.input, *other.graph.output):
        value.name = new if value.name == old else value.name
    return other


@pytest.mark.parametrize(("what", "name"), [("input", "x"), ("output", "y")])
def test_a_model_of_other_names_is_refused(model, module, what, name):
    with pytest.raises(UserError, match=f"the compiled model has no {what} 'other'"):
        dlc.verify(renamed(model, name, "other"), module)


def test_a_model_whose_input_became_a_constant_is_refused(model):
    fixed = dlc.compile(model, values={"x": np.zeros((2, 13), np.float32)})
    with pytest.raises(UserError, match="the compiled model has no input 'x'"):
        dlc.verify(model, fixed)


@pytest.mark.parametrize(
    "labels",
    [{"classlabels_int64s": [7, -3, 5]}, {"classlabels_strings": ["c", "a", "b"]}],
    ids=["numbers", "texts"],
)
def test_maps_of_scores_are_compared_label_by_label(labels):
    pytest.importorskip("onnxruntime")
    text = "classlabels_strings" in labels
    maps = helper.make_map_type_proto(
        TensorProto.STRING if text else TensorProto.INT64,
        helper.make_tensor_type_proto(TensorProto.FLOAT, ()),
    )
    scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, [2, 3])
    result = helper.make_value_info("maps", helper.make_sequence_type_proto(maps))
    node = helper.make_node("ZipMap", ["scores"], ["maps"], domain="ai.onnx.ml", **labels)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph([node], "main", [scores], [result])
    zipped = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    (output,) = dlc.verify(zipped, dlc.compile(zipped), against=["onnxruntime"]).outputs
    assert (output.problem, output.apart) == ("", Error(0.0, 0.0))


def test_nobody_asked_is_nothing_known(model, module):
    report = dlc.verify(model, module, against=[])
    assert (report.trials, report.outputs) == (0, ())


def test_without_onnxruntime_the_reference_decides(model, module, monkeypatch):
    monkeypatch.setattr(verify_model, "has_onnxruntime", lambda: False)
    report = dlc.verify(model, module)
    assert report.ok
    assert report.judges == ("float64",)
    assert report.notes == ("onnxruntime is not installed",)


def test_who_is_as_far_off_as_onnxruntime_is_not_wrong(model, module, monkeypatch):
    class FarOff:
        def __init__(self, *_, **__):
            pass

        def run(self, feeds):
            return {"y": module.run(feeds)["y"]}

    monkeypatch.setattr(verify_model, "has_onnxruntime", lambda: True)
    monkeypatch.setattr(verify_model, "OnnxRuntime", FarOff)
    assert dlc.verify(changed(model), module).ok
    assert not dlc.verify(changed(model), module, against=["float64"]).ok


def test_sizes_are_tried_until_somebody_accepts_them():
    network = NETWORKS["images of any size"]
    report = dlc.verify(network.model(), against=["float64"])
    assert report.ok
    assert report.trials == 1


@pytest.mark.parametrize(("kernel", "stride", "length"), [(34, 3, 224), (300, 1, 2048)])
def test_sizes_are_tried_until_there_is_something_to_compare(kernel, stride, length, monkeypatch):
    """A window that just does not fit leaves no result, which nobody should call right."""
    seen = []

    def feeds(specs, sizes, rng):
        seen.append(sizes["l"])
        return random_feeds(specs, sizes, rng)

    monkeypatch.setattr("dlc.verify_model.random_feeds", feeds)
    text = f"""<ir_version: 10, opset_import: ["" : 21]> g (float[1,1,l] x) => (float[1,1,o] y)
        <float[1,1,{kernel}] w = {{{", ".join(["1"] * kernel)}}}> {{
        y = Conv <strides=[{stride}]> (x, w) }}"""
    report = dlc.verify(parser.parse_model(text), against=["float64"])
    assert (report.ok, report.trials, report.notes, seen[-1]) == (True, 1, (), length)


def test_outputs_without_an_element_are_told():
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[1,1,33] x) => (float[1,1,o] y)
        <float[1,1,34] w = {WEIGHTS}> { y = Conv <strides=[2]> (x, w) }"""
    model = parser.parse_model(text.replace("WEIGHTS", ", ".join(["1"] * 34)))
    report = dlc.verify(model, against=["float64"])
    assert "little was compared" in report.notes[0]


def test_errors_are_measured():
    inf, nan = np.inf, np.nan
    wanted = np.array([1.0, -4.0, inf, nan])
    assert measure_error(np.array([1.5, -4.0, inf, nan]), wanted) == Error(0.5, 0.125)
    assert measure_error(np.array([1.0, -4.0, -inf, nan]), wanted).max_abs == inf
    assert measure_error(np.array([1.0, -4.0, inf, 0.0]), wanted).max_abs == inf
    assert measure_error(np.zeros(3), wanted).max_abs == inf
    assert measure_error(np.zeros(0), np.zeros(0)) == Error(0.0, 0.0)


def test_closeness_has_its_reasons():
    wanted = np.array([1.0, 100.0], np.float32)
    near = np.array([1.0, 100.05], np.float32)
    assert why_not_close(near, wanted, "it", 1e-3, 0) == ""
    assert "max abs 5.0e-02 at [1], 50 %" in why_not_close(near, wanted, "it", 1e-4, 0)
    assert "has shape (1,), it has (2,)" in why_not_close(near[:1], wanted, "it", 1, 1)
    counts = np.array([3, 4])
    assert why_not_close(counts, counts, "it", 0, 0) == ""
    assert why_not_close(counts + 1, counts, "it", 1, 10)  # integers must agree
    far = np.array([1 << 53, 1 << 62])
    assert "max abs 1.0e+00 at [0], 50 %" in why_not_close(far + [1, 0], far, "it", 0, 0)
    infinite = np.array([np.inf, 1.0], np.float32)
    found = why_not_close(wanted, infinite, "it", 1e-3, 1e-3)
    assert found.startswith("differs from it: 1 at [0], not inf, 100 % of the elements")
    unknown = np.array([1.0, np.nan], np.float32)
    assert "it: nan at [1], not 100, 50 %" in why_not_close(unknown, wanted, "it", 0, 0)
    assert "it: 100 at [1], not nan, 50 %" in why_not_close(wanted, unknown, "it", 0, 0)
    assert "it: nan at [], not 1, 100 %" in why_not_close(
        np.array(np.nan), np.array(1.0), "it", 0, 0
    )
    assert why_not_close(unknown, unknown, "it", 0, 0) == ""
    texts = np.array([["a", "bc"]], np.object_)
    assert why_not_close(texts, texts.copy(), "it", 0, 0) == ""
    other = np.array([["a", "b"]])
    assert why_not_close(texts, other, "it", 0, 0) == "differs from it: 'bc' at [0, 1], not 'b'"
    assert "is object, it has int64" in why_not_close(texts, np.zeros((1, 2), int), "it", 0, 0)


def test_default_sizes_respect_bounds():
    sizes = [SizeSpec("Batch"), SizeSpec("h", 40), SizeSpec("w", 0, 16), SizeSpec("c")]
    assert default_sizes(sizes, 32, batch=2) == {"Batch": 2, "h": 40, "w": 16, "c": 32}


def test_random_values_fit_their_type():
    rng = np.random.default_rng(0)
    assert set(np.unique(random_array(DType.I64, (99,), rng, "normal"))) == {0, 1}
    assert random_array(DType.U8, (99,), rng, "normal").max() > 128
    assert random_array(DType.BOOL, (9,), rng, "normal").dtype == bool
    texts = random_array(DType.STR, (99,), rng, "normal")
    assert len(set(texts)) > 5
    assert all(isinstance(text, str) for text in texts)
    uniform = random_array(DType.F32, (99,), rng, "uniform")
    assert uniform.dtype == np.float32
    assert 0 <= uniform.min() < uniform.max() < 1
