"""One engine with one model, in a process of its own that imports no compiler.

Run by the benchmark: python -m benchmarks.deployment.worker ENGINE MODEL FEEDS THREADS BATCH
SECONDS. It says its figures as JSON, or {"error": ...}.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.cpu.engines import ENGINES, Array

Run = Callable[[], object]
MEMORY, LOAD, RUN = "peak memory, MB", "loading, ms", "a run, ms"
RUNS = 10  # after which the memory counts


class Failed(Exception):
    """An engine or a program cannot do what it was asked, and why."""


def output(command: Sequence[object], **environment: str) -> str:
    """What a program writes on its standard output.

    Raises:
        Failed: the program failed, with the first line it says about it.
    """
    words = [str(word) for word in command]
    settings = os.environ | environment
    done = subprocess.run(words, env=settings, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip() or f"{Path(words[0]).name} ended with {done.returncode}"
        raise Failed(said.splitlines()[0])
    return done.stdout


def sample(
    engine: str, path: Path, feeds: Path, threads: int, *, batch: int = 1, seconds: float = 0
) -> dict[str, float]:
    """The figures of a new process; the time of a run is the mean of a batch.

    Raises:
        Failed: the engine cannot load or run the model.
    """
    command = [sys.executable, "-m", __name__, engine, path, feeds, threads, batch, seconds]
    found: dict[str, float] | dict[str, str] = json.loads(output(command))
    if "error" in found:
        raise Failed(f"{engine}: {found['error']}".replace(str(path), path.name))
    return {figure: float(value) for figure, value in found.items()}


def prepare(engine: str, path: Path, feeds: Mapping[str, Array], threads: int) -> Run:
    """Load a model; what runs it once."""
    if engine == "onnxruntime":
        return ENGINES[engine](path, feeds, threads)
    os.environ["DLC_NUM_THREADS"] = str(threads)
    import dlc

    module = dlc.load(path)
    if engine == "dlc bound":
        return module.bind(feeds).run
    return partial(module, *feeds.values()) if engine == "dlc call" else partial(module.run, feeds)


def measure(load: Callable[[], Run], batch: int, seconds: float) -> dict[str, float]:
    """Figures of this process, times as medians; memory first, as what follows only adds to it."""
    run = load()
    for _ in range(RUNS):
        run()
    peak, loads, runs = peak_bytes(), list[float](), list[float]()
    for _ in range(3):
        del run  # what was loaded before is freed first
        began = time.perf_counter()
        run = load()
        loads.append(time.perf_counter() - began)
    run()
    end = time.perf_counter() + seconds
    while len(runs) < 3 or time.perf_counter() < end:
        began = time.perf_counter()
        for _ in range(batch):
            run()
        runs.append((time.perf_counter() - began) / batch)
    load_s, run_s = float(np.median(loads)), float(np.median(runs))
    return {MEMORY: peak / 1e6, LOAD: load_s * 1e3, RUN: run_s * 1e3}


def peak_bytes() -> int:
    """The peak resident set. Not ru_maxrss: Linux counts there what the starting process had."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def main() -> None:
    """Measure and answer."""
    engine, path, feeds, threads, batch, seconds = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what engines print is no answer
    try:
        load = partial(prepare, engine, Path(path), dict(np.load(feeds)), int(threads))
        answer: object = measure(load, int(batch), float(seconds))
    except Exception as error:  # whatever an engine raises is its answer
        answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    answers.write(json.dumps(answer))


if __name__ == "__main__":
    main()
