"""What a run costs before any kernel: the time of a model that does nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx

from benchmarks.deployment.figures import Figure, Options
from benchmarks.deployment.models import build, medians, save_feeds
from benchmarks.deployment.worker import RUN, Failed, output, sample
from dlc.runtime.__main__ import HOME, PLACES

MODEL = "does nothing"
BATCH = 10_000  # runs between two looks at the clock
FACES = {"dlc": "run, µs", "dlc call": "a call, µs", "dlc bound": "bound in Python, µs"}
PROGRAM = Path(__file__).with_name("overhead.cpp")


def measure_overhead(folder: Path, options: Options) -> list[Figure]:
    """The time of a run by each face of the runtime.

    Raises:
        Failed: dlc cannot build or run the model.
    """
    model, artefact, feeds = folder / "nothing.onnx", folder / "nothing.so", folder / "feeds.npz"
    onnx.save(nothing(), model)
    save_feeds(model, feeds)
    build(model, artefact, folder / "cache")
    files = dict.fromkeys(FACES, artefact) | ({"onnxruntime": model} if options.has_peer else {})
    samples: dict[str, list[dict[str, float]]] = {engine: [] for engine in files}
    for _ in range(options.rounds):
        for engine, file in files.items():
            samples[engine].append(sample(engine, file, feeds, options.threads, batch=BATCH))
    found = {engine: medians(taken)[RUN] * 1e3 for engine, taken in samples.items()}
    peers = {"dlc": found.get("onnxruntime")}  # its `run` takes inputs by name, too
    figures = [Figure(MODEL, name, found[e], peers.get(e)) for e, name in FACES.items()]
    return [*figures, from_cpp(artefact, folder / "overhead", options)]


def nothing() -> onnx.ModelProto:
    """Identity of one float32."""
    x, y = (onnx.helper.make_tensor_value_info(name, 1, [1]) for name in "xy")
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    graph = onnx.helper.make_graph([node], "nothing", [x], [y])
    opset = onnx.helper.make_opsetid("", 17)
    return onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)


def from_cpp(artefact: Path, program: Path, options: Options) -> Figure:
    """The time of a run from C++, by what is compiled to `program`; or why there is none."""
    name = "from C++, µs"
    compiler = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    if compiler is None:
        return Figure(MODEL, name, None, note="no C++ compiler is installed")
    command = [compiler, "-std=c++17", "-O2", "-I", HOME / PLACES["include-dir"], PROGRAM]
    run = [program, artefact, options.rounds + 1, 10 * BATCH]
    try:
        output([*command, HOME / PLACES["library"], "-o", program, "-pthread", "-ldl"])
        rounds = output(run, DLC_NUM_THREADS=str(options.threads)).split()
    except Failed:
        return Figure(MODEL, name, None, note="the C++ program cannot be compiled or run")
    times = [float(line) for line in rounds[1:]]  # the first warms up
    return Figure(MODEL, name, float(np.median(times)))
