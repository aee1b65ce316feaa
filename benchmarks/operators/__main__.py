"""Time single operators on dlc and onnxruntime, in turns: where is one of them slow?

Usage: python -m benchmarks.operators [--only NAME] [--threads N] [--precision P] [--seconds S]
       python -m benchmarks.operators --drawn conv [--seed N] [--count N] [...]

A ratio is the time of onnxruntime over that of dlc, from NumPy arrays to NumPy arrays; both run in
one process, in turns. The table is sorted by it, and written to build/benchmarks/operators.json.
`--drawn` takes layers of random sizes instead of the list of cases.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser

from benchmarks.operators.cases import OPEN, texts
from benchmarks.operators.drawn import KINDS, drawn
from benchmarks.provenance import describe_machine, provenance

Array = np.ndarray[Any, Any]
RESULTS = Path("build/benchmarks/operators.json")
ROUNDS = 3
HEADER = '<ir_version: 10, opset_import: ["" : 20]> case '


def model_of(text: str) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model whose inputs called `w...` are constants, and values of the others."""
    model = onnx.parser.parse_model(HEADER + text)
    rng = np.random.default_rng(0)
    feeds: dict[str, Array] = {}
    given = list(model.graph.input)
    del model.graph.input[:]
    for value in given:
        kind = value.type.tensor_type
        shape = [d.dim_value for d in kind.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        array = _values(rng, value.name, shape, dtype)
        if value.name.startswith("w"):
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
        else:
            model.graph.input.append(value)
            feeds[value.name] = array
    return model, feeds


def open_sizes(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model for any sizes; equal ones stay equal, and those of 1 stay."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for value in made.graph.input:
        for size in value.type.tensor_type.shape.dim:
            if size.dim_value != 1:
                size.dim_param = f"size_{size.dim_value}"
    return made


def _values(rng: np.random.Generator, name: str, shape: list[int], dtype: np.dtype[Any]) -> Array:
    if np.issubdtype(dtype, np.floating):
        return np.asarray(rng.standard_normal(shape) * 0.5 + 1, dtype)
    if dtype == np.bool_:
        return rng.random(shape) < 0.5
    digits = name.lstrip("abcdefghijklmnopqrstuvwxyz")
    return rng.integers(0, int(digits or 100), shape).astype(dtype)


def measure(run: Callable[[], object], seconds: float) -> float:
    """The median time of a call."""
    run()
    times = list[float]()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def compare(name: str, text: str, options: argparse.Namespace) -> Mapping[str, float]:
    """The times of both engines in microseconds, and the largest difference of their results."""
    import onnxruntime

    import dlc

    model, feeds = model_of(text)
    if name.endswith(OPEN):
        model = open_sizes(model)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads, settings.inter_op_num_threads = options.threads, 1
    settings.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), settings, providers=["CPUExecutionProvider"]
    )
    module = dlc.compile(model, precision=options.precision)
    theirs, ours = session.run(None, feeds), module.run(feeds)
    off = max(_difference(a, b) for a, b in zip(theirs, ours.values(), strict=True))
    engines = (lambda: session.run(None, feeds), lambda: module.run(feeds))
    rounds = [[measure(run, options.seconds) for run in engines] for _ in range(ROUNDS)]
    peer, own = np.median(rounds, axis=0) * 1e6
    return {"onnxruntime": float(peer), "dlc": float(own), "difference": off}


def _difference(a: Array, b: Array) -> float:
    """The largest difference, as a share of the largest value."""
    wide, other = a.astype(np.float64), b.astype(np.float64)
    if not a.size:
        return 0.0
    return float(np.nanmax(np.abs(wide - other)) / max(np.nanmax(np.abs(wide)), 1e-30))


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.operators")
    parser.add_argument("--only", default="", help="cases whose names hold this")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--precision", default="highest")
    parser.add_argument("--seconds", type=float, default=0.1, help="for each round of an engine")
    parser.add_argument("--drawn", choices=KINDS, help="layers of random sizes of this kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=50)
    options = parser.parse_args()
    kind = options.drawn
    cases = drawn(kind, options.seed, options.count) if kind else texts()
    os.environ["DLC_NUM_THREADS"] = str(options.threads)
    print(f"{describe_machine()}, {options.threads} threads, {options.precision}", flush=True)
    found = {}
    for name, text in cases.items():
        if options.only in name:
            found[name] = compare(name, text, options)
            print(".", end="", flush=True)
    print()
    for name, row in sorted(found.items(), key=lambda e: e[1]["onnxruntime"] / e[1]["dlc"]):
        times = f"onnxruntime {row['onnxruntime']:10.1f} us  dlc {row['dlc']:10.1f} us"
        ratio = row["onnxruntime"] / row["dlc"]
        about = f"  {cases[name]}" if kind else ""
        print(f"{ratio:7.2f}  {name:24}{times}  difference {row['difference']:.1e}{about}")
    ratios = [row["onnxruntime"] / row["dlc"] for row in found.values()]
    if ratios:
        mean, slow = np.exp(np.mean(np.log(ratios))), sum(r < 0.95 for r in ratios)
        print(f"geometric mean {mean:.2f} of {len(ratios)}, {slow} under 0.95")
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    staged = RESULTS.with_suffix(".new")
    staged.write_text(json.dumps({**provenance(), **vars(options), "cases": found}, indent=1))
    staged.replace(RESULTS)


if __name__ == "__main__":
    main()
