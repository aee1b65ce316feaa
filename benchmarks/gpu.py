"""Models on a real GPU: right against the CPU's artefact, and how fast.

    python -m benchmarks.gpu [--limit SECONDS] MODEL.onnx ...

Each model is built for the GPU at each precision, and in 16-bit floats, and for this CPU, run on
the same random inputs and compared, and timed as its user sees it: inputs and outputs in the memory
of the CPU, copies included. Where `compute-sanitizer` is installed, one run goes through its
memcheck, its racecheck and its synccheck. Results go to benchmarks/results/gpu-MODEL-MODE.json;
what has one is skipped, so a run that was cut short goes on where it stopped. What PyTorch takes is
measured by benchmarks/gpu_peers.py.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.provenance import provenance
from dlc.compiler import build
from dlc.core.precision import Precision
from dlc.runtime import Module, load, why_no_gpu

# Name, precision, 16-bit floats.
MODES: tuple[tuple[str, Precision, str | None], ...] = (
    ("highest", "highest", None), ("high", "high", None), ("tf32", "tf32", None),
    ("medium", "medium", None),
    ("fp16", "highest", "fp16"), ("bf16", "highest", "bf16"),
)  # fmt: skip
RESULTS = Path(__file__).parent / "results"
# Of the largest output: sums of float32 in another order; products of two bf16, and of one; 11
# and 8 significant bits of every tensor.
TOLERANCES = {
    "highest": 1e-4,
    "high": 1e-3,
    "tf32": 1e-2,
    "medium": 5e-2,
    "fp16": 2e-2,
    "bf16": 1e-1,
}
SIZE = 2  # of dimensions without a constant
RUNS = 100
_ONE_RUN = """
import sys
import numpy as np
from dlc.runtime import load
load(sys.argv[1]).run(dict(np.load(sys.argv[2])))
"""


def random_inputs(module: Module) -> dict[str, np.ndarray]:
    """Small numbers of the types and shapes that a model takes."""
    random = np.random.default_rng(0)
    found = {}
    for spec in module.inputs:
        shape = [n if isinstance(n, int) else SIZE for n in spec.shape]
        kind = np.dtype(spec.dtype.numpy_name)
        data = random.standard_normal(shape) if kind.kind == "f" else random.integers(0, 2, shape)
        found[spec.name] = np.asarray(data).astype(kind)
    return found


def difference(actual: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> float:
    """The largest difference of any output, as a share of its largest element."""
    worst = 0.0
    for name, array in wanted.items():
        scale = max(1e-30, float(np.abs(array).max(initial=0.0)))
        apart = np.abs(actual[name].astype(np.float64) - array.astype(np.float64))
        worst = max(worst, float(apart.max(initial=0.0)) / scale)
    return worst


def milliseconds(module: Module, inputs: dict[str, np.ndarray]) -> list[float]:
    """The times of runs, the first few left out, sorted."""
    times = []
    for _ in range(RUNS + 5):
        began = time.perf_counter()
        module.run(inputs)
        times.append((time.perf_counter() - began) * 1e3)
    return sorted(times[5:])


def sanitize(path: Path, inputs: dict[str, np.ndarray], folder: Path) -> dict[str, str]:
    """What NVIDIA's checkers say of one run, by tool; nothing where they are not installed."""
    checker = shutil.which("compute-sanitizer")
    if checker is None:
        return {}
    arrays = folder / "inputs.npz"
    np.savez(arrays, **inputs)  # type: ignore[arg-type]  # no input is called allow_pickle
    found = {}
    for tool in ("memcheck", "racecheck", "synccheck"):
        command = [checker, "--tool", tool, "--error-exitcode", "7"]
        program = [sys.executable, "-c", _ONE_RUN, str(path), str(arrays)]
        done = subprocess.run([*command, *program], capture_output=True, text=True, check=False)
        found[tool] = "clean" if done.returncode == 0 else (done.stdout + done.stderr)[-2000:]
    return found


def measure(model: Path, mode: str, precision: Precision, half: str | None) -> dict[str, Any]:
    """Everything about one model in one mode."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        on_gpu, on_cpu = folder / "gpu.so", folder / "cpu.so"
        began = time.perf_counter()
        report = build(model, on_gpu, "cuda", precision=precision, half=half)
        seconds = time.perf_counter() - began
        build(model, on_cpu, "native")
        gpu, cpu = load(on_gpu), load(on_cpu)
        inputs = random_inputs(cpu)
        apart = difference(gpu.run(inputs), cpu.run(inputs))
        times = milliseconds(gpu, inputs)
        return {
            "model": model.stem,
            "mode": mode,
            **provenance(),
            "kernels": report.kernels,
            "build_seconds": round(seconds, 1),
            "difference": apart,
            "right": apart <= TOLERANCES[mode],
            "milliseconds": {"min": times[0], "median": times[len(times) // 2]},
            "sanitizer": sanitize(on_gpu, inputs, folder),
        }


def main() -> int:
    """Measure what has no result yet; 1 where a model is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--limit", type=float, default=540.0, help="start no model after that time")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    if missing := why_no_gpu():
        print(missing)
        return 2
    options.results.mkdir(exist_ok=True, parents=True)
    began, wrong = time.perf_counter(), 0
    for model, (mode, precision, half) in product(options.models, MODES):
        path = options.results / f"gpu-{model.stem}-{mode}.json"
        if path.exists():
            continue
        if time.perf_counter() - began > options.limit:
            print("out of time; call again for the rest")
            break
        result = measure(model, mode, precision, half)
        path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
        wrong += not result["right"]
        times = result["milliseconds"]
        name = f"{model.stem}, {mode}"
        print(f"{name}: {times['median']:.3f} ms, difference {result['difference']:.1e}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
