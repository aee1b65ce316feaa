"""Small networks for a GPU, emulated from first copy to last, give what onnxruntime gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.end_to_end.networks import NETWORKS
from tests.end_to_end.test_networks import onnxruntime_session
from tests.runtime.emulated import build_emulated, build_stub, run_on_stub


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_stub(tmp_path_factory.mktemp("stub"))


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_network(name: str, stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = NETWORKS[name]
    model = network.model()
    path = tmp_path / "model.so"
    build_emulated(model, path, monkeypatch)
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
