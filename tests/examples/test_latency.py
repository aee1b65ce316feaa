"""The example that times a compiled model beside onnxruntime."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("onnxruntime")
EXAMPLE = Path(__file__).parents[2] / "examples" / "latency.py"


@pytest.fixture
def latency():
    spec = importlib.util.spec_from_file_location("latency", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_neither_waiting_nor_cold_runs_count(latency, monkeypatch):
    now_s, since_quiet = 0.0, 0

    def wait():
        nonlocal now_s, since_quiet
        now_s, since_quiet = now_s + 100.0, 0

    def run():
        nonlocal now_s, since_quiet
        now_s += 0.125 if since_quiet >= latency.WARM_UP else 0.5
        since_quiet += 1

    monkeypatch.setattr(latency, "time", SimpleNamespace(perf_counter=lambda: now_s))
    monkeypatch.setattr(latency, "wait_until_quiet", wait)
    bursts = 3
    found = latency.times_ms({"one": run, "other": run}, 0.125 * latency.BURST * bursts)
    warm = [125.0] * (latency.BURST * bursts)
    assert {name: times.tolist() for name, times in found.items()} == {"one": warm, "other": warm}


def test_a_small_model_has_long_bursts(latency, monkeypatch):
    clock = iter(range(10**9))
    monkeypatch.setattr(latency, "time", SimpleNamespace(perf_counter=lambda: next(clock) / 2**12))
    assert len(latency.burst_s(lambda: {})) == math.ceil(latency.BURST_S * 2**12)
