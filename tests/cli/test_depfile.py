"""`dlc build --depfile`: what an artefact depends on, as Make reads it."""

from __future__ import annotations

import shutil
import subprocess

import onnx
import pytest

from dlc.autotune.log import TuningLog
from tests.cli.models import perceptron

pytestmark = pytest.mark.fast

BUILD = ("build", "a net.onnx", "-o", "new.so", "--no-verify", "-q", "--depfile", "new.d")


@pytest.fixture
def apart(tmp_path, monkeypatch):
    """The current folder, with a model whose weights lie beside it."""
    monkeypatch.chdir(tmp_path)
    onnx.save(
        perceptron(),
        "a net.onnx",
        save_as_external_data=True,
        location="$w.data",
        size_threshold=0,
    )
    return tmp_path


def test_a_depfile_lists_the_model_and_its_weights(apart, dlc_main):
    assert dlc_main(*BUILD)[0] == 0
    assert (apart / "new.d").read_text() == "new.so: \\\n  a\\ net.onnx \\\n  $$w.data\n"


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_reads_a_depfile(apart, dlc_main):
    assert dlc_main(*BUILD)[0] == 0
    (apart / "Makefile").write_text("new.so:\n\t@echo anew\ninclude new.d\n")

    def make():
        return subprocess.run(["make", "-s"], capture_output=True, text=True, check=True).stdout

    assert "anew" not in make()
    (apart / "$w.data").touch()
    assert "anew" in make()


@pytest.mark.parametrize(
    ("told", "listed"),
    [
        ((), ["a\\ net.tune.db"]),
        (("--tuning", "other.db"), ["other.db"]),
        (("--tuning", "none"), []),
    ],
)
def test_a_depfile_lists_the_log_that_the_build_uses(apart, dlc_main, told, listed):
    for name in ("a net.tune.db", "other.db"):
        TuningLog(apart / name).close()
    assert dlc_main(*BUILD, *told)[0] == 0
    sources = [line.strip(" \\") for line in (apart / "new.d").read_text().splitlines()]
    assert sources[3:] == listed


@pytest.mark.parametrize("name", ["a net.onnx", "$w.data"])
def test_a_depfile_does_not_replace_the_model(apart, dlc_main, name):
    before = (apart / name).read_bytes()
    code, _, said = dlc_main(*BUILD[:-1], name)
    assert code == 2
    assert "--depfile model.d" in said
    assert (apart / name).read_bytes() == before
