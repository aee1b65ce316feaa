"""Small networks for a GPU, emulated from first copy to last, give what onnxruntime gives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import dlc
from tests.end_to_end.networks import NETWORKS, Network
from tests.end_to_end.test_networks import onnxruntime_session
from tests.end_to_end.whole import WHOLE, bert
from tests.runtime.emulated import build_emulated, build_stub, run_on_stub


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_stub(tmp_path_factory.mktemp("stub"))


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_network(name: str, stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_network(NETWORKS[name], stub, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_whole_network(
    name: str, stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, launches = WHOLE[name]
    calls = run_network(make(), stub, tmp_path, monkeypatch)
    assert sum(call.startswith("launch ") for call in calls) <= launches


# bf16 has 8 significant bits; two of them together have 16, and their sums a few less.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "rtol"),
    [
        ({"precision": "high"}, 3e-4),
        ({"precision": "medium"}, 5e-2),
        ({"half": "fp16", "keep": ["softmax"]}, 1e-2),
        ({"half": "bf16"}, 8e-2),
    ],
)
def test_lower_precision_runs_on_the_engine(
    options: dict[str, Any],
    rtol: float,
    stub: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = replace(bert(), rtol=rtol)
    run_network(network, stub, tmp_path, monkeypatch, **options)
    (source,) = tmp_path.glob("*.cc")
    assert source.read_text().count("multiply_tiles<") >= 4


def smaller_image(model: onnx.ModelProto) -> None:
    """Let a detector take images of 64 by 64; its layers keep what they are."""
    for axis in (2, 3):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_value = 64
    del model.graph.value_info[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")


# Models of the folder `pytest --models DIR` names, and what makes their builds small.
MODELS: dict[str, dict[str, Any]] = {
    "yolox_nano": {},
    "silero_vad": {
        "values": {"sr": 16000},
        "shapes": {"input": (1, 576), "state": (2, 1, 128)},
    },
    # The host chooses by the rate, once it has fetched it.
    "silero_vad of any rate": {"shapes": {"input": (1, 576), "state": (2, 1, 128)}},
}
RATE = np.array(16000)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_trained_model_gives_what_it_gives_on_the_cpu(
    name: str,
    stub: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pytestconfig: pytest.Config,
) -> None:
    folder = pytestconfig.getoption("--models")
    own = name.split()[0]
    source = folder / own / "model.onnx" if folder else None
    if source is None or not source.exists():
        pytest.skip(f"no --models folder with {own}/model.onnx")
    model, options = onnx.load(source), MODELS[name]
    if name == "yolox_nano":
        smaller_image(model)
    path = tmp_path / "model.so"
    build_emulated(model, path, monkeypatch, optimize=True, **options)
    on_cpu = dlc.compile(model, **options)
    random = np.random.default_rng(0)
    feeds = {
        spec.name: random.standard_normal([int(n) for n in spec.shape]).astype(np.float32)
        for spec in on_cpu.inputs
        if spec.name != "sr"
    }
    if len(on_cpu.inputs) > len(feeds):
        feeds["sr"] = RATE
    found, calls, errors = run_on_stub(path, stub, feeds)
    assert not errors
    assert any(call.startswith("launch ") for call in calls)
    for key, wanted in on_cpu.run(feeds).items():
        atol = 1e-4 * float(np.abs(wanted).max())
        np.testing.assert_allclose(found[key], wanted, rtol=1e-3, atol=atol)


def run_network(
    network: Network,
    stub: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    **options: Any,
) -> list[str]:
    """Compare a network with onnxruntime; the calls of the driver in the last run."""
    calls: list[str] = []
    model = network.model()
    path = tmp_path / "model.so"
    build_emulated(model, path, monkeypatch, **options)
    session = onnxruntime_session(model)
    for sizes in network.sizes:
        feeds = network.feeds(sizes)
        found, calls, errors = run_on_stub(path, stub, feeds)
        assert not errors
        assert any(call.startswith("retain") for call in calls)  # not the CPU
        wanted = session.run(None, feeds)
        for value, expected in zip(model.graph.output, wanted, strict=True):
            actual = found[value.name]
            if actual.dtype.kind != "f":
                np.testing.assert_array_equal(actual, expected)
                continue
            # Sums in another order are off by a share of their largest terms.
            atol = network.rtol * max(1.0, float(np.abs(expected).max(initial=0.0)))
            np.testing.assert_allclose(actual, expected, rtol=network.rtol, atol=atol)
    return calls
