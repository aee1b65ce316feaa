"""What only sizes decide, on a GPU, by the stub of its driver: variants, and what broadcasts."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from onnx import parser

from dlc.compiler import build
from dlc.core.errors import UserError
from dlc.runtime import load
from tests.end_to_end.test_open_sizes import BROADCAST, FIXED
from tests.frontend.text_model import model
from tests.runtime.emulated import build_emulated, build_stub, run_on_stub
from tests.runtime.test_gpu import count
from tests.runtime.test_gpu_indices import Feeds, on_stub

ROWS = "(float[n,4] x) => (float[n,4] y) { a = Relu(x) b = Softmax(a) y = Add(a, b) }"
# Of equal sizes a sum that is as large as the arena; else the run finds out how large one is.
SUM = """(float[n,4] x, float[m,4] w) => (float y) {
    a = Add(x, w)
    b = Softmax(a)
    y = ReduceSum<keepdims=0>(b)
}"""


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_stub(tmp_path_factory.mktemp("stub"))


def rows(count: int, width: int = 4) -> np.ndarray:
    return np.arange(count * width, dtype=np.float32).reshape(count, width) % 7 - 3


def test_a_variant_is_a_graph_of_its_own(
    stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "gpu.so"
    build_emulated(model(ROWS), path, monkeypatch, variants=[{"n": 1}, {"n": 3}])
    launched = set()
    for n in (1, 2, 3):
        found, calls, errors = run_on_stub(path, stub, {"x": rows(n)}, times=3)
        assert not errors
        relu = np.maximum(rows(n), 0)
        e = np.exp(relu - relu.max(1, keepdims=True))
        np.testing.assert_allclose(found["y"], relu + e / e.sum(1, keepdims=True), rtol=1e-6)
        assert (count(calls, "record"), count(calls, "replay")) == (1, 3)
        assert not any(c.startswith("to pinned") for c in calls)
        launched.add(next(c.split()[1] for c in calls if c.startswith("launch")))
    assert len(launched) == 3


@pytest.mark.parametrize("text", [BROADCAST, FIXED])
def test_a_run_decides_what_broadcasts(
    text: str, stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proto = parser.parse_model(text)
    build(proto, tmp_path / "cpu.so")
    build_emulated(proto, tmp_path / "gpu.so", monkeypatch)
    cpu = load(tmp_path / "cpu.so")
    runs: list[Feeds] = []
    for a, b, c in itertools.product((0, 1, 3), repeat=3):
        runs.append({"x": rows(a), "y": rows(b) + 1, "z": rows(c, 1) - 1})
    if text == FIXED:
        runs = [{"x": rows(a, 3), "y": rows(b, 1) > 0} for a in (1, 5, 2) for b in (1, 5)]
    said, found = on_stub(tmp_path / "gpu.so", stub, runs)
    for feeds, message, result in zip(runs, said, found, strict=True):
        if message:
            with pytest.raises(UserError) as refused:
                cpu.run(feeds)
            assert str(refused.value) == message
            continue
        for name, want in cpu.run(feeds).items():
            np.testing.assert_array_equal(result[name], want)
    assert 0 < sum(map(bool, said)) < len(runs)


def test_sizes_that_need_no_memory_of_their_own_are_recorded(
    stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And others are tried once: then each run launches."""
    build_emulated(model(SUM), tmp_path / "gpu.so", monkeypatch)
    for sizes, replays, records in (((3, 3), 3, 1), ((3, 1), 0, 1), ((1, 3), 0, 1)):
        feeds = {"x": rows(sizes[0]), "w": rows(sizes[1]) + 1}
        found, calls, errors = run_on_stub(tmp_path / "gpu.so", stub, feeds, times=3)
        assert not errors
        np.testing.assert_allclose(found["y"], max(sizes), rtol=1e-6)
        assert (count(calls, "replay"), count(calls, "record")) == (replays, records)
        assert count(calls, "launch") % 3 == 0
        for taken, given in (("allocate", "free"), ("pin", "unpin")):
            assert count(calls, taken) == count(calls, given)
