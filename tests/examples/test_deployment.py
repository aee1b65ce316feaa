"""The benchmark of what a deployment sees beside latency."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys

import numpy as np
import pytest

import dlc
from benchmarks.deployment import __main__ as benchmark
from benchmarks.deployment.figures import AIMS, Figure, markdown
from benchmarks.deployment.models import busy_core, save_feeds
from benchmarks.deployment.worker import Failed, sample
from tests.end_to_end.networks import NETWORKS

FIGURES = {*AIMS, "a run, ms"}
MEASURED_BESIDE = {
    "run, µs",
    "peak memory, MB",
    "loading, ms",
    "a run, ms",
    "beside a busy process, ms",
    "busy over quiet",
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny") / "tiny.onnx"
    path.write_bytes(NETWORKS["perceptron"].model().SerializeToString())
    save_feeds(path, path.with_suffix(".npz"))
    dlc.compile(path).save(path.with_suffix(".so"))
    return path


def run(monkeypatch, *arguments):
    words = [str(argument) for argument in arguments]
    monkeypatch.setattr(sys, "argv", ["x", "--rounds", "1", "--seconds", "0.01", *words])
    return benchmark.main()


def test_every_figure_is_there_beside_its_aim(tiny, tmp_path, monkeypatch, capsys):
    pytest.importorskip("onnxruntime")
    out = tmp_path / "found.json"
    assert run(monkeypatch, tiny, "--json", out) == 0
    document = json.loads(out.read_text())
    assert {"date", "device", "commit", "threads", "rounds"} < document.keys()
    figures = document["figures"]
    assert {figure["model"] for figure in figures} == {"does nothing", "tiny"}
    assert {figure["name"] for figure in figures} == FIGURES
    assert len(figures) == len(FIGURES)
    for figure in figures:
        assert figure["aim"] == AIMS.get(figure["name"])
        assert figure["dlc"] > 0 or figure["note"]
        assert (figure["onnxruntime"] is not None) == (figure["name"] in MEASURED_BESIDE)
        assert figure["met"] in {True, False, None}
    assert str(tiny.parent) not in out.read_text()
    assert list(tmp_path.iterdir()) == [out]
    printed = capsys.readouterr().out
    assert all(f" {name} |" in printed for name in FIGURES)


def test_a_path_without_a_model_is_one_line(tmp_path, monkeypatch):
    with pytest.raises(SystemExit, match=r"^error: there is no model .*absent\.onnx$"):
        run(monkeypatch, tmp_path / "absent.onnx")


def test_what_cannot_be_built_is_named_and_the_rest_is_measured(tmp_path, monkeypatch, capsys):
    (tmp_path / "bad.onnx").write_bytes(b"\xff" * 100)
    monkeypatch.setattr(benchmark, "measure_overhead", lambda *_: [Figure("m", "a run, ms", 1.0)])
    monkeypatch.setattr(benchmark, "is_installed", lambda _: False)
    assert run(monkeypatch, tmp_path / "bad.onnx") == 1
    printed = capsys.readouterr().out
    assert "skipped onnxruntime: it is not installed" in printed
    assert "skipped bad.onnx: " in printed
    assert "not an ONNX model" in printed
    assert "| m | a run, ms | 1 | – | – | – |" in printed


def test_an_aim_is_a_limit_or_the_peer():
    assert Figure("m", "loading, ms", 50.0, 1.0).met
    assert Figure("m", "loading, ms", 50.1, 99.0).met is False
    assert Figure("m", "busy over quiet", 1.5, 1.5).met
    assert Figure("m", "busy over quiet", 1.5, 1.4).met is False
    assert Figure("m", "busy over quiet", 1.5).met is None
    assert Figure("m", "a run, ms", 1.5, 1.4).met is None
    missing = Figure("m", "from C++, µs", None, note="no C++ compiler is installed")
    assert missing.met is None
    assert "| – | – | 0.5 | – (no C++ compiler is installed) |" in markdown([missing])


def test_the_process_of_an_artefact_imports_no_compiler(tiny):
    program = (
        "import sys; from pathlib import Path; import numpy\n"
        "from benchmarks.deployment.worker import prepare\n"
        "path, feeds = sys.argv[1:]\n"
        "prepare('dlc', Path(path), dict(numpy.load(feeds)), 1)()\n"
        "print(*({'llvmlite', 'onnx', 'dlc.compiler'} & sys.modules.keys()))"
    )
    files = [str(tiny.with_suffix(suffix)) for suffix in (".so", ".npz")]
    found = subprocess.run([sys.executable, "-c", program, *files], capture_output=True, text=True)
    assert found.stdout.split() == [], found.stderr
    assert found.returncode == 0, found.stderr


def test_memory_is_that_of_the_process_alone(tiny):
    ballast = np.ones(50 << 20)  # 400 MiB
    found = sample("dlc", tiny.with_suffix(".so"), tiny.with_suffix(".npz"), 1)
    assert 5 < found["peak memory, MB"] < 300 < ballast.nbytes / 1e6


@pytest.mark.skipif(not importlib.util.find_spec("onnxruntime"), reason="it is not installed")
def test_an_engine_that_refuses_a_model_says_why_without_its_folder(tiny, tmp_path):
    (tmp_path / "bad.onnx").write_bytes(b"\xff" * 100)
    with pytest.raises(Failed, match=r"^onnxruntime: .*bad\.onnx") as caught:
        sample("onnxruntime", tmp_path / "bad.onnx", tiny.with_suffix(".npz"), 1)
    assert str(tmp_path) not in str(caught.value)


def test_the_neighbour_has_one_core_and_ends_with_the_measurement():
    with contextlib.suppress(KeyboardInterrupt), busy_core() as process:
        assert len(os.sched_getaffinity(process.pid)) == 1
        assert process.poll() is None
        raise KeyboardInterrupt
    assert process.poll() is not None
