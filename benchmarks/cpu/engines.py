"""The engines of the benchmark, and the process each of them runs in.

Run by the benchmark: python -m benchmarks.cpu.engines ENGINE MODEL THREADS FEEDS OUTPUTS. It says
how long it took to prepare, then for each number of seconds on its input times runs for so long.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Run = Callable[[], list[Array]]
WITHOUT_AMX = "native -mattr=-amx-tile,-amx-bf16,-amx-int8"
AVX2 = "llvm -mcpu=haswell"


def _onnxruntime(path: Path, feeds: Mapping[str, Array], threads: int) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, dict(feeds))


def _openvino(
    precision: str, instructions: str = "DEFAULT"
) -> Callable[[Path, Mapping[str, Array], int], Run]:
    def prepare(path: Path, feeds: Mapping[str, Array], threads: int) -> Run:
        # oneDNN, which has its convolutions and products, reads this when it is loaded.
        os.environ["ONEDNN_MAX_CPU_ISA"] = instructions
        import openvino

        core = openvino.Core()
        model = core.read_model(path)
        model.reshape({name: list(array.shape) for name, array in feeds.items()})
        settings = {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": precision,
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
        }
        compiled = core.compile_model(model, "CPU", settings)
        request = compiled.create_infer_request()

        def run() -> list[Array]:
            found = request.infer(dict(feeds), share_inputs=True, share_outputs=True)
            return [found[output] for output in compiled.outputs]

        return run

    return prepare


def _dlc(precision: str, target: str = "native") -> Callable[[Path, Mapping[str, Array], int], Run]:
    def prepare(path: Path, feeds: Mapping[str, Array], threads: int) -> Run:
        os.environ["DLC_NUM_THREADS"] = str(threads)
        import dlc

        module = dlc.compile(path, target, precision=precision)  # type: ignore[arg-type]
        return lambda: list(module.run(feeds).values())

    return prepare


ENGINES: dict[str, Callable[[Path, Mapping[str, Array], int], Run]] = {
    "onnxruntime": _onnxruntime,
    "openvino": _openvino("f32"),
    "openvino bf16": _openvino("bf16"),
    "dlc highest": _dlc("highest"),
    "dlc high": _dlc("high"),
    "dlc medium": _dlc("medium"),
    "dlc highest, no AMX": _dlc("highest", WITHOUT_AMX),
    "openvino AVX2": _openvino("f32", "AVX2"),
    "dlc highest, AVX2": _dlc("highest", AVX2),
}


def is_installed(engine: str) -> bool:
    """Whether the package behind an engine is there."""
    package = engine.split()[0]
    return importlib.util.find_spec(package) is not None


def main() -> None:
    """One engine with one model, until its input ends."""
    engine, model, threads, feeds, outputs = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what engines print is no answer

    def answer(document: object) -> None:
        answers.write(json.dumps(document) + "\n")
        answers.flush()

    try:
        arrays = dict(np.load(feeds))
        began = time.perf_counter()
        run = ENGINES[engine](Path(model), arrays, int(threads))
        prepared = time.perf_counter() - began
        np.savez(outputs, *run())
    except Exception as error:  # whatever another engine raises is its result
        answer({"error": f"{type(error).__name__}: {str(error)[:300]}"})
        return
    answer({"prepare_s": prepared})
    for line in sys.stdin:
        times: list[float] = []
        end = time.perf_counter() + float(line)
        while len(times) < 3 or time.perf_counter() < end:
            began = time.perf_counter()
            run()
            times.append(time.perf_counter() - began)
        answer(times)


if __name__ == "__main__":
    main()
