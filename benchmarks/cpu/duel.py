"""Several engines with one model, interleaved, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import onnx

Array = np.ndarray[Any, Any]


def make_feeds(path: Path, sizes: Mapping[str, int]) -> dict[str, Array]:
    """Normal floats and ones; an open size that has no value is 1."""
    graph = onnx.load(path, load_external_data=False).graph
    constants = {w.name for w in graph.initializer}
    rng = np.random.default_rng(0)
    feeds = {}
    for value in graph.input:
        if value.name in constants:
            continue
        kind = value.type.tensor_type
        shape = [d.dim_value or sizes.get(d.dim_param, 1) for d in kind.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        normal = np.issubdtype(dtype, np.floating)
        feeds[value.name] = (
            rng.standard_normal(shape).astype(dtype) if normal else np.ones(shape, dtype)
        )
    return feeds


def duel(
    path: Path,
    sizes: Mapping[str, int],
    engines: Sequence[str],
    threads: int,
    rounds: int,
    seconds: float,
) -> dict[str, dict[str, float | str]]:
    """Times of each engine in milliseconds, or why it has none. The rounds go A B C A B C.

    An engine's time is the median over the rounds of the median in a round. `error` is the largest
    difference to the first engine, as a share of the largest magnitude.
    """
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        np.savez(folder / "feeds.npz", **make_feeds(path, sizes))  # type: ignore[arg-type]
        processes: dict[str, subprocess.Popen[str]] = {}
        results: dict[str, dict[str, float | str]] = {}
        for number, engine in enumerate(engines):
            outputs = folder / f"{number}.npz"
            command = [sys.executable, "-m", "benchmarks.cpu.engines", engine, str(path)]
            process = stack.enter_context(
                subprocess.Popen(
                    [*command, str(threads), str(folder / "feeds.npz"), str(outputs)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
            )
            results[engine] = _answer(process) or {"error": "its process died"}
            if "error" not in results[engine]:
                processes[engine] = process
        times: dict[str, list[list[float]]] = {engine: [] for engine in processes}
        for _ in range(rounds):
            for engine, process in processes.items():
                assert process.stdin
                process.stdin.write(f"{seconds}\n")
                process.stdin.flush()
                times[engine].append(_answer(process))
        first = next(iter(processes), None)
        for engine, found in times.items():
            own = folder / f"{list(engines).index(engine)}.npz"
            other = folder / f"{list(engines).index(first)}.npz" if first else own
            results[engine] |= {
                "median_ms": float(np.median([np.median(t) for t in found])) * 1e3,
                "min_ms": min(min(t) for t in found) * 1e3,
                "difference": _difference(own, other),
            }
        return results


def _answer(process: subprocess.Popen[str]) -> Any:
    assert process.stdout
    line = process.stdout.readline()
    return json.loads(line) if line else None


def _difference(found: Path, wanted: Path) -> float:
    ours, theirs = np.load(found), np.load(wanted)
    worst = 0.0
    for name in theirs.files:
        exact = theirs[name].astype(np.float64)
        scale = float(np.abs(exact).max(initial=0.0)) or 1.0
        worst = max(worst, float(np.abs(ours[name] - exact).max(initial=0.0)) / scale)
    return worst
