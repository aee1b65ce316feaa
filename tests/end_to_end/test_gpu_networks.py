"""Small networks for a GPU, emulated from first copy to last, give what onnxruntime gives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

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
