"""The benchmark of models on CPUs: what it makes of times, and that it goes on where it was."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks.cpu import __main__ as benchmark
from benchmarks.cpu import models, report
from benchmarks.cpu.duel import duel
from benchmarks.cpu.jobs import Job, growth
from benchmarks.cpu.models import Download, Missing, Model, find
from tests.end_to_end.networks import NETWORKS


def result(name, threads=2, growth="", size=0, **times):
    engines = {e.replace("_", " "): {"median_ms": t} for e, t in times.items()}
    return {"name": name, "threads": threads, "growth": growth, "size": size, "engines": engines}


RESULTS = [
    result("a", onnxruntime=8.0, openvino=6.0, dlc_highest=2.0),
    result("b", onnxruntime=3.0, dlc_highest=4.0),
    result("c", openvino=5.0),
    result("a", threads=1, onnxruntime=9.0, dlc_highest=9.0),
    result("a", growth="batch", size=4, onnxruntime=1.0, dlc_highest=9.0),
]


def test_the_fastest_peer_counts():
    assert report.ratio(RESULTS[0], "dlc highest") == 3
    assert report.ratio(RESULTS[1], "dlc highest") == 0.75
    assert report.ratio(RESULTS[2], "dlc highest") is None
    assert report.ratio(RESULTS[0], "dlc medium") is None


def test_the_table_says_where_dlc_loses():
    text = report.markdown(RESULTS, 2)
    assert "| a | 8.00 | 6.00 | 2.00 | 3.00 |" in text
    assert "| b | 3.00 | – | 4.00 | 0.75 |" in text
    assert "| geometric mean | | | | **1.50** |" in text
    assert "dlc highest is slower than the fastest peer on: b (0.75)." in text
    assert "on: none." in report.markdown(RESULTS, 1)


def test_the_plot_holds_ratios_and_growth(tmp_path):
    pytest.importorskip("plotly")
    assert report.plot(RESULTS, tmp_path / "plot.html")
    text = (tmp_path / "plot.html").read_text()
    assert "ms by batch" in text
    assert "onnxruntime (batch)" in text


def test_a_run_goes_on_where_it_stopped(tmp_path, monkeypatch, capsys):
    asked = []

    def fake(path, sizes, engines, threads, rounds, seconds):
        asked.append((path.stem, threads))
        return {engine: {"median_ms": 1.0} for engine in engines}

    def missing(model, cache, folder):
        if model.name == "vgg16":
            raise Missing("it is not here")
        return tmp_path / f"{model.name}.onnx"

    monkeypatch.setattr(benchmark, "duel", fake)
    monkeypatch.setattr("benchmarks.cpu.jobs.find", missing)
    command = ["x", "--out", str(tmp_path), "--threads", "1,2", "--engines", "dlc highest"]
    monkeypatch.setattr(sys, "argv", [*command, "--models", "lstm,vgg16"])
    benchmark.main()
    assert asked == [("lstm", 1), ("lstm", 2)]
    assert "skipped vgg16: it is not here" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", [*command, "--models", "lstm,resnet18"])
    benchmark.main()
    assert asked[2:] == [("resnet18", 1), ("resnet18", 2)]
    document = json.loads((tmp_path / "results.json").read_text())
    assert [r["name"] for r in document["results"]] == ["resnet18", "resnet18", "lstm", "lstm"]
    assert (tmp_path / "results.md").read_text().count("| lstm |") == 2


def test_a_model_that_cannot_be_had_says_why(tmp_path, monkeypatch):
    with pytest.raises(Missing, match="--folder"):
        find(Model("mine", models.GIVEN), tmp_path, None)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "model.onnx").write_bytes(b"x")
    assert find(Model("mine", models.GIVEN), tmp_path, tmp_path).name == "model.onnx"
    (tmp_path / "file").write_bytes(b"abc")
    source = Download((tmp_path / "file").as_uri(), "0" * 64)
    with pytest.raises(Missing, match="not the file it was"):
        find(Model("other", source), tmp_path / "cache", None)
    right = Download(source.url, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
    assert find(Model("other", right), tmp_path / "cache", None).read_bytes() == b"abc"


def test_each_size_of_what_grows_has_a_file():
    files = [job.file for job in growth(2)]
    assert "resnet18-batch-8-2t.json" in files
    assert len(set(files)) == len(files)
    assert Job("m", {}, 1, ()).file == "m-1t.json"


def test_engines_in_processes_of_their_own_agree(tmp_path):
    pytest.importorskip("onnxruntime")
    path = tmp_path / "m.onnx"
    path.write_bytes(NETWORKS["perceptron"].model().SerializeToString())
    found = duel(path, {}, ["onnxruntime", "dlc highest"], 1, rounds=2, seconds=0.001)
    for engine in ("onnxruntime", "dlc highest"):
        assert 0 < float(found[engine]["min_ms"]) <= float(found[engine]["median_ms"])
    assert float(found["dlc highest"]["difference"]) < 1e-5
