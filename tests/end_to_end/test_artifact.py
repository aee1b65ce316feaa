"""A whole network as a file: on another architecture, and where there is nothing but the file."""

from __future__ import annotations

import runpy
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dlc
from dlc.compiler import build
from dlc.core.machine import host_arch
from tests.end_to_end.networks import NETWORKS

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RUNTIME = ROOT / "dlc/runtime/cpp"
CROSS_COMPILER, EMULATOR = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")
LIBRARIES = "/usr/aarch64-linux-gnu"  # the emulated program's libc, where Debian puts it

pytestmark = pytest.mark.slow

SMALL = NETWORKS["perceptron"].model()


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """ResNet-18, an image, and the native artefact and its answer."""
    path = tmp_path_factory.mktemp("native") / "resnet18.so"
    model = runpy.run_path(str(ROOT / "examples" / "resnet18.py"))["resnet18"]()
    build(model, path)
    image = np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(np.float32)
    return model, image, path, dlc.load(path).run({"data": image})["logits"]


def compile_program(compiler: str, folder: Path) -> Path:
    """run_model.cpp and the whole runtime in one program."""
    program = folder / "run_model"
    sources = [HERE / "run_model.cpp", *sorted((RUNTIME / "src").glob("*.cc"))]
    flags = ["-std=c++17", "-O1", "-static-libstdc++", "-static-libgcc", "-pthread"]
    flags += [f"-I{RUNTIME / 'include'}", f"-I{RUNTIME / 'src'}"]
    flags += [f'-DDLC_RUNTIME_VERSION="{dlc.__version__}"']
    subprocess.run([compiler, *flags, *sources, "-o", program, "-ldl"], check=True)
    return program


def logits(command: list[object], image: np.ndarray, **options: Any) -> np.ndarray:
    """What a program makes of an image."""
    words = [str(word) for word in command]
    done = subprocess.run(words, input=image.tobytes(), capture_output=True, check=False, **options)
    assert done.returncode == 0, done.stderr.decode()
    return np.frombuffer(done.stdout, np.float32).reshape(1, -1)


@pytest.mark.skipif(host_arch() != "x86_64", reason="needs an x86-64 machine to differ from")
@pytest.mark.skipif(not CROSS_COMPILER, reason="aarch64-linux-gnu-g++ is not installed")
@pytest.mark.skipif(not EMULATOR, reason="qemu-aarch64 is not installed")
def test_a_network_runs_on_another_architecture(tmp_path, network):
    model, image, native, wanted = network
    path = tmp_path / "resnet18-arm.so"
    build(model, path, "llvm -mtriple=aarch64-linux-gnu")
    with pytest.raises(dlc.ArtifactError, match="not for x86_64"):
        dlc.load(path)
    program = compile_program(str(CROSS_COMPILER), tmp_path)
    emulate = [EMULATOR, "-cpu", "max", "-L", LIBRARIES, program]
    got = logits([*emulate, path], image)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())
    done = subprocess.run([*map(str, emulate), native], capture_output=True, check=False)
    assert done.returncode == 1
    assert b"not for aarch64" in done.stderr


@pytest.mark.skipif(not shutil.which("c++"), reason="no C++ compiler is installed")
def test_an_artefact_needs_nothing_around_it(tmp_path, network):
    _, image, native, wanted = network
    program = compile_program("c++", tmp_path)
    alone = tmp_path / "alone"
    alone.mkdir()
    model = shutil.copy(native, alone / "model.so")
    env = {"PATH": "/nonexistent"}
    got = logits([program, Path(model).name], image, env=env, cwd=alone)
    np.testing.assert_array_equal(got, wanted)
    assert [p.name for p in alone.iterdir()] == ["model.so"]


def elsewhere() -> str:
    """A target that this machine has not the features of."""
    arch = "x86_64" if host_arch() == "aarch64" else "aarch64"
    return f"llvm -mtriple={arch}-linux-gnu"


def test_what_cannot_be_loaded_here_is_not_compiled():
    steps: list[str] = []
    with pytest.raises(dlc.TargetError, match="this machine cannot run") as caught:
        dlc.compile(SMALL, elsewhere(), progress=lambda step: steps.append(step.stage))
    assert "dlc build --target" in caught.value.hint
    assert steps == []


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"target": 3}, "not a text"),
        ({"dims": ["batch"]}, "dims={'batch': 1}"),
        ({"shapes": [1]}, "shapes={'x': (1, 3)}"),
        ({"values": [1]}, "values={'rate': 16000}"),
        ({"shapes": {"x": 5}}, "shapes={'x': (1, 3)}"),
        ({"shapes": {"x": "5,3"}}, "shapes={'x': (1, 3)}"),
        ({"shapes": {"x": b"53"}}, "shapes={'x': (1, 3)}"),
        ({"shapes": {"x": np.array(5)}}, "shapes={'x': (1, 3)}"),
    ],
)
def test_arguments_of_another_kind_are_told(options, word):
    with pytest.raises((dlc.UserError, dlc.TargetError)) as caught:
        dlc.compile(SMALL, **options)
    assert word in str(caught.value)


def test_a_linker_is_missed_before_anything_is_compiled(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    steps: list[str] = []
    with pytest.raises(dlc.TargetError, match="linking needs"):
        build(SMALL, tmp_path / "m.so", progress=lambda step: steps.append(step.stage))
    assert steps == ["import"]
