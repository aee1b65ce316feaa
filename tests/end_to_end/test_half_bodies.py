"""Loops and branches in 16-bit floats, run on a CPU and, emulated, on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

from dlc.compiler import build
from dlc.runtime import load
from tests.end_to_end.test_networks import onnxruntime_session
from tests.runtime.emulated import build_emulated, build_stub, run_on_stub

# Each has one product, in a body; `w` and `b` are constants of the model.
BODIES = {
    "branch": """agraph (float[n,11] x, bool c) => (float[n,11] y) {
        y = If(c) <
            then_branch = yes () => (float[n,11] u) { p = MatMul(x, w)  u = Add(p, b) },
            else_branch = no () => (float[n,11] r) { r = Neg(x) }>
    }""",
    "loop": """agraph (float[n,11] x) => (float[n,11] y) <bool on = {1}, int64 most = {3}> {
        y = Loop(most, on, x) <
            body = step (int64 i, bool go, float[n,11] s)
                => (bool more, float[n,11] u) {
                more = Identity(go)
                p = MatMul(s, w)
                q = Add(p, b)
                row = Tanh(q)
                u = Add(s, row)
            }>
    }""",
    "scan": """agraph (float[n,11] x, float[k,n,11] z) => (float[n,11] y, float[k,n,11] rows) {
        y, rows = Scan(x, z) <num_scan_inputs = 1,
            body = step (float[n,11] s, float[n,11] e) => (float[n,11] u, float[n,11] row) {
                p = MatMul(e, w)
                q = Add(p, b)
                row = Tanh(q)
                u = Add(s, row)
            }>
    }""",
}
FEEDS: dict[str, dict[str, Any]] = {
    "branch": {"c": np.array(True)},
    "loop": {},
    "scan": {"z": np.random.default_rng(2).standard_normal((3, 5, 11)).astype(np.float32)},
}


def body_model(kind: str) -> onnx.ModelProto:
    graph = parser.parse_graph(BODIES[kind])
    random = np.random.default_rng(0)
    for name, shape in (("w", (11, 11)), ("b", (11,))):
        array = random.standard_normal(shape).astype(np.float32)
        graph.initializer.append(numpy_helper.from_array(array, name))
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def feeds_of(kind: str) -> dict[str, Any]:
    x = np.random.default_rng(1).standard_normal((5, 11)).astype(np.float32)
    return {"x": x, **FEEDS[kind]}


def check_half(kind: str, found: dict[str, np.ndarray]) -> None:
    """The results are as far off as 16 bits are, and not as near as float32."""
    session = onnxruntime_session(body_model(kind))
    names = [value.name for value in session.get_outputs()]
    for name, want in zip(names, session.run(None, feeds_of(kind)), strict=True):
        assert found[name].dtype == np.float32
        apart = np.abs(found[name] - want).max() / np.abs(want).max()
        assert 1e-5 < apart < 1e-2


@pytest.mark.parametrize("kind", BODIES)
def test_on_a_cpu(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "model.so"
    build(body_model(kind), path, half="fp16")
    check_half(kind, load(path).run(feeds_of(kind)))


@pytest.mark.parametrize("kind", BODIES)
def test_on_a_gpu(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.so"
    build_emulated(body_model(kind), path, monkeypatch, half="fp16")
    found, calls, errors = run_on_stub(path, build_stub(tmp_path / "stub"), feeds_of(kind))
    assert not errors
    assert any(call.startswith("launch ") for call in calls)
    check_half(kind, found)
