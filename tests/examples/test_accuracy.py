"""The table of accuracies: what it calls wrong, and one model from end to end."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "examples" / "digits" / "digits.onnx"
EXACT = np.linspace(1, 2, 5)


@pytest.fixture(scope="module")
def accuracy():
    return runpy.run_path(str(ROOT / "benchmarks" / "accuracy.py"))


def off(error: float) -> np.ndarray:
    return (EXACT + error).astype(np.float32)


def test_an_error_may_be_twice_as_large(accuracy):
    judge = accuracy["judge"]
    assert judge(off(1.5e-5), off(1e-5), EXACT)[1] == ""
    ratio, problem = judge(off(3e-5), off(1e-5), EXACT)
    assert ratio == pytest.approx(3, rel=0.05)
    assert "3.0 times the error of onnxruntime" in problem


def test_a_few_roundings_are_no_error(accuracy):
    ratio, problem = accuracy["judge"](off(5e-7), off(1e-7), EXACT)
    assert (ratio > 2, problem) == (True, "")


def test_an_answer_of_the_wrong_kind_is_wrong(accuracy):
    judge = accuracy["judge"]
    assert "not float32" in judge(EXACT, off(0), EXACT)[1]
    assert "(4,)" in judge(off(0)[1:], off(0), EXACT)[1]
    nan = np.where(np.arange(5) == 2, np.nan, off(0)).astype(np.float32)
    assert judge(nan, off(0), EXACT)[1]
    classes = np.arange(3)
    assert judge(classes, classes, classes) == (0.0, "")
    assert judge(classes + 1, classes, classes)[1]


def test_a_model_is_compiled_once_and_run_on_every_size(accuracy, tmp_path, capsys):
    out = tmp_path / "rows.json"
    command = [str(DIGITS), "--dims", "batch=1", "--dims", "batch=3", "--json", str(out)]
    assert accuracy["main"](command) == 0
    report = json.loads(out.read_text())
    assert [row["sizes"] for row in report["rows"]] == ["batch=1", "batch=3"]
    assert not report["failures"]
    assert capsys.readouterr().out.count("pass\n") == 2


def test_what_is_no_model_fails(accuracy, capsys):
    assert accuracy["main"]([__file__]) == 1
    assert "FAIL: " in capsys.readouterr().out
