"""Every operator on a real GPU, against the answers of ONNX's own tests.

    python -m benchmarks.gpu_operators [--limit SECONDS] [--jobs COUNT] [CASE ...]

The cases are those of one node that the onnx package holds, each compiled for the GPU and run on
the inputs that stand beside it. Processes of their own take some at a time: a kernel that faults
ends its process, is written down, and those behind it go on in another one. All answers are in
benchmarks/results/gpu-operators.json; what stands there is skipped, so a run that was cut short
goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from ml_dtypes import finfo
from onnx import TensorProto, numpy_helper
from onnx.backend.test.loader import load_model_tests

from benchmarks.gpu import RESULTS
from benchmarks.provenance import provenance
from dlc.backend import prepare
from dlc.core.errors import DlcError
from dlc.runtime import why_no_gpu

CHILD = (sys.executable, "-m", "benchmarks.gpu_operators")
BATCH = 24  # cases of one process
SECONDS = 120.0  # for a process; few cases take more than one
RANDOM = ("Bernoulli", "RandomNormalLike", "RandomUniformLike")


def cases() -> dict[str, Any]:
    """ONNX's tests of single nodes by name, each with its model and its data."""
    with np.errstate(all="ignore"):
        return {case.name: case for case in load_model_tests(kind="node")}


def judge(case: Any) -> str:
    """What the GPU makes of one case: right, wrong, refused or left out, and why."""
    if any(n.op_type in RANDOM for n in case.model.graph.node):
        return "left out: the answer is random"
    values = (*case.model.graph.input, *case.model.graph.output)
    if not all(v.type.HasField("tensor_type") for v in values):
        return "left out: not all values are tensors"
    try:
        run = prepare(case.model, "CUDA").run
        for inputs, outputs in case.data_sets:
            made = run([_array(x) for x in inputs])
            for number, (found, wanted) in enumerate(zip(made, outputs, strict=True)):
                if wrong := _difference(np.asarray(found), _array(wanted), case):
                    return f"wrong: output {number}, {wrong}"
    except DlcError as error:
        return f"refused: {error}"
    return "right"


def _array(value: Any) -> Any:
    """A value of a case, of which some are arrays and some are messages."""
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)


def _difference(found: Any, wanted: Any, case: Any) -> str:
    """How an output differs from what is wanted by more than ONNX's tests allow, or "".

    16-bit floats may be neighbours: what is wanted of attention was computed with such floats, each
    step rounded, and kernels compute in float32.
    """
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return f"{found.dtype}{list(found.shape)} for {wanted.dtype}{list(wanted.shape)}"
    if wanted.dtype.kind not in "fV":
        return "" if np.array_equal(found, wanted) else "other numbers"
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    if np.allclose(a, b, rtol=case.rtol, atol=case.atol, equal_nan=True):
        return ""
    if wanted.dtype.itemsize == 2:
        step = float(finfo(wanted.dtype).eps)  # type: ignore[no-untyped-call]
        if np.all(np.abs(a - b) <= step * np.abs(b)):
            return ""
    return f"off by {np.nanmax(np.abs(a - b)):.1e}"


def run_batch(names: list[str]) -> dict[str, str]:
    """Judge cases in processes, of which another one begins behind each case that ends one."""
    found: dict[str, str] = {}
    while left := [n for n in names if n not in found]:
        command = [*CHILD, "--child", *left]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=SECONDS
            )
            text, why = done.stdout, f"exit status {done.returncode}"
        except subprocess.TimeoutExpired as late:
            text, why = (late.stdout or b"").decode(errors="replace"), "it took too long"
        for line in text.splitlines():
            name, tab, said = line.partition("\t")
            if tab and name in left:
                found[name] = said
        if first := next((n for n in left if n not in found), ""):
            found[first] = f"died: {why}"
    return found


def child(names: list[str]) -> int:
    """Judge cases, and say so one by one."""
    known = cases()
    for name in names:
        print(name, " ".join(judge(known[name]).split())[:300], sep="\t", flush=True)
    return 0


def main() -> int:
    """Judge what has no answer yet; 1 where one is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--limit", type=float, default=540.0, help="start nothing after that time")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if missing := why_no_gpu():
        print(missing)
        return 2
    if options.child:
        return child(options.cases)
    options.results.mkdir(exist_ok=True, parents=True)
    path = options.results / "gpu-operators.json"
    states = json.loads(path.read_text(encoding="utf-8"))["operators"] if path.exists() else {}
    left = [n for n in options.cases or sorted(cases()) if n not in states]
    end = time.perf_counter() + options.limit
    parts = [left[n : n + BATCH] for n in range(0, len(left), BATCH)]
    with ThreadPoolExecutor(options.jobs) as pool:
        for found in pool.map(lambda p: run_batch(p) if time.perf_counter() < end else {}, parts):
            states |= found
            result = {**provenance(), "operators": states}
            path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if any(n not in states for n in left):
        print("out of time; call again for the rest")
    return int(any(s.startswith(("wrong", "died")) for s in states.values()))


if __name__ == "__main__":
    sys.exit(main())
