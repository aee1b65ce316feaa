"""Files that were compared and found right are compared again only where that is asked."""

from __future__ import annotations

import json
import os

import onnx
import pytest

from dlc import verified, verify_model
from dlc.core.errors import UserError
from dlc.core.target_parse import parse_target
from dlc.peer import OnnxRuntime
from dlc.verified import find_comparison, keep_comparison
from dlc.verify_report import OutputReport, VerifyReport

pytest.importorskip("onnxruntime")
BEFORE = "✓ verify    compared before: max abs "


@pytest.fixture
def build(files, dlc_main, monkeypatch):
    """Build a model with a cache of the test's own; what was said."""
    monkeypatch.setenv("DLC_CACHE_DIR", str(files / "cache"))
    monkeypatch.setattr(verified, "find_comparison", find_comparison)
    monkeypatch.setattr(verified, "keep_comparison", keep_comparison)

    def run(model, *words):
        code, printed, said = dlc_main("build", model, "-o", "new.so", *words)
        assert code == 0
        return said or json.loads(printed)

    return run


@pytest.fixture
def calls(monkeypatch):
    """The models that are compared."""
    seen = []
    own = verify_model.verify

    def verify(model, *rest, **kwargs):
        seen.append(model.name)
        return own(model, *rest, **kwargs)

    monkeypatch.setattr(verify_model, "verify", verify)
    return seen


def test_the_same_files_are_compared_once(build, calls):
    assert BEFORE not in build("mlp.onnx")
    assert BEFORE in build("mlp.onnx")
    assert calls == ["mlp.onnx"]


def test_a_report_is_the_same_from_the_cache(build, calls):
    first, second = (build("mlp.onnx", "--json", "-q")["verify"] for _ in range(2))
    assert first == second
    assert first["outputs"][0]["apart"]
    assert len(calls) == 1


def test_verify_compares_anew(build, calls):
    build("mlp.onnx")
    assert BEFORE not in build("mlp.onnx", "--verify")
    assert len(calls) == 2


def test_another_model_of_the_same_artefact_is_compared(build, calls, files):
    """The importer may have overlooked what tells them apart."""
    build("mlp.onnx")
    model = onnx.load("mlp.onnx")
    model.doc_string = "another"
    onnx.save(model, "other_text.onnx")
    assert BEFORE not in build("other_text.onnx")
    assert calls == ["mlp.onnx", "other_text.onnx"]


def test_another_artefact_is_compared(build, calls):
    build("mlp.onnx")
    assert BEFORE not in build("mlp.onnx", "--precision", "medium")
    assert len(calls) == 2


def test_a_changed_dlc_compares_anew(build, calls, monkeypatch):
    build("mlp.onnx")
    monkeypatch.setattr(verified, "compiler_version", lambda: "another")
    build("mlp.onnx")
    assert len(calls) == 2


def test_another_number_of_threads_compares_anew(build, calls, monkeypatch):
    build("mlp.onnx")
    monkeypatch.setattr(verified, "num_threads", lambda: 99)
    build("mlp.onnx")
    assert len(calls) == 2


def test_a_machine_of_other_features_compares_anew(build, calls, monkeypatch):
    build("mlp.onnx")
    machine = parse_target("native -mattr=-fma")
    monkeypatch.setattr(verified, "parse_target", lambda text: machine)
    build("mlp.onnx")
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("types", "told"),
    [
        ("bfloat16 float", "onnxruntime cannot pass bfloat16 from or to Python (input 'x')"),
        ("float bfloat16", "onnxruntime cannot pass bfloat16 from or to Python (output 'y')"),
        ("float8e5m2 float", "onnxruntime cannot pass float8e5m2 from or to Python (input 'x')"),
    ],
)
def test_types_that_onnxruntime_cannot_pass_are_named(
    build, files, monkeypatch, dlc_main, types, told
):
    given, made = types.split()
    to = getattr(onnx.TensorProto, made.upper())
    text = f"m ({given}[3] x) => ({made}[3] y) {{ y = Cast<to={to}>(x) }}"
    head = '<ir_version: 10, opset_import: ["": 21]>'
    onnx.save(onnx.parser.parse_model(f"{head} {text}"), files / "narrow.onnx")
    monkeypatch.setenv("COLUMNS", "150")
    assert f"! verify    skipped: {told}; dlc verify asks float64 " in build("narrow.onnx")
    code, printed, said = dlc_main("verify", "narrow.onnx", "new.so")
    assert (code, said) == (0, f"note: {told}\n")
    assert "0.0e+00 0e+00" in printed


def test_what_onnxruntime_says_stands_without_its_numbers(files, monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : There is no Relu(14)\n...")

    monkeypatch.setattr("onnxruntime.InferenceSession", refuse)
    with pytest.raises(UserError) as caught:
        OnnxRuntime("mlp.onnx", threads=1)
    assert str(caught.value) == "onnxruntime: There is no Relu(14)"


def test_what_was_skipped_is_not_kept(build, monkeypatch):
    def verify(*_, **__):
        return VerifyReport((), (), ("onnxruntime refuses",), 0)

    monkeypatch.setattr(verify_model, "verify", verify)
    for _ in range(2):
        assert "! verify    skipped: onnxruntime refuses" in build("mlp.onnx")


def test_what_was_off_is_not_kept(build, calls, monkeypatch):
    own = verify_model.verify

    def verify(*rest, **kwargs):
        report = own(*rest, **kwargs)
        worse = [OutputReport(o.name, o.apart, o.apart, o.apart, "differs") for o in report.outputs]
        return VerifyReport(tuple(worse), report.judges, report.notes, report.trials)

    monkeypatch.setattr(verify_model, "verify", verify)
    for _ in range(2):
        assert "! verify    more than 2× as far" in build("mlp.onnx")
    assert len(calls) == 4  # each time with the reference as well


def test_a_cache_that_cannot_be_used_compares(build, calls, monkeypatch):
    monkeypatch.setenv("DLC_CACHE_DIR", os.devnull)
    for _ in range(2):
        assert BEFORE not in build("mlp.onnx")
    assert len(calls) == 2
