"""What there is to say about one model: memory, loading, a busy machine and building."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np

from benchmarks.cpu.duel import make_feeds
from benchmarks.deployment.figures import Figure, Options
from benchmarks.deployment.worker import RUN, Failed, output, sample

# Ends with the process that started it, however that ends.
SPIN = """
import os, sys
parent, core = map(int, sys.argv[1:])
os.sched_setaffinity(0, {core})
print(flush=True)
while os.getppid() == parent:
    for _ in range(100_000): pass
"""
Samples = dict[str, list[dict[str, float]]]


def measure(path: Path, folder: Path, options: Options) -> list[Figure]:
    """All figures of a model; the folder is for what is made on the way.

    Raises:
        Failed: dlc cannot build or run it.
    """
    name = path.parent.name if path.stem == "model" else path.stem
    feeds, files, note = folder / "feeds.npz", {"dlc": folder / "model.so"}, ""
    builds: dict[str, float] = {}
    for kind in ("cold build", "build from the cache"):
        own, whole = build(path, files["dlc"], folder / "cache")
        builds |= {f"{kind}, s": own, f"{kind}, whole command, s": whole}
    save_feeds(path, feeds)
    if options.has_peer:
        try:
            sample("onnxruntime", path, feeds, options.threads)
            files["onnxruntime"] = path
        except Failed as reason:
            note = str(reason)
    found = take(files, feeds, options)
    ours, peer = found["dlc"], found.get("onnxruntime", {})
    figures = [Figure(name, figure, ours[figure], peer.get(figure), note) for figure in ours]
    return [*figures, *(Figure(name, figure, seconds) for figure, seconds in builds.items())]


def take(files: Mapping[str, Path], feeds: Path, options: Options) -> dict[str, dict[str, float]]:
    """Medians of each engine over its processes; rounds go A B A B, quiet and busy by turns."""
    quiet: Samples = {engine: [] for engine in files}
    busy: Samples = {engine: [] for engine in files}
    for _ in range(options.rounds):
        for samples, neighbour in ((quiet, nullcontext), (busy, busy_core)):
            with neighbour():
                for engine, file in files.items():
                    taken = sample(engine, file, feeds, options.threads, seconds=options.seconds)
                    samples[engine].append(taken)
    found = {engine: medians(taken) for engine, taken in quiet.items()}
    for engine, figures in found.items():
        beside = medians(busy[engine])[RUN]
        figures |= {"beside a busy process, ms": beside, "busy over quiet": beside / figures[RUN]}
    return found


def medians(samples: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of each figure."""
    return {name: float(np.median([each[name] for each in samples])) for name in samples[0]}


def save_feeds(path: Path, feeds: Path) -> None:
    """Write inputs of a model as NumPy's file of arrays.

    Raises:
        Failed: an input is no tensor.
    """
    try:
        np.savez(feeds, **make_feeds(path, {}))  # type: ignore[arg-type]
    except KeyError as error:
        raise Failed("only tensors can be made up as inputs") from error


def build(path: Path, artefact: Path, cache: Path) -> tuple[float, float]:
    """Seconds of `dlc build` by its own account, and with the start and end of Python.

    Results are not compared with onnxruntime's.

    Raises:
        Failed: the model cannot be built.
    """
    command = [sys.executable, "-m", "dlc", "build", "--no-verify", "--quiet", "--json"]
    began = time.perf_counter()
    report = output([*command, path, "-o", artefact], DLC_CACHE_DIR=str(cache))
    return json.loads(report)["seconds"], time.perf_counter() - began


@contextmanager
def busy_core() -> Iterator[subprocess.Popen[bytes]]:
    """A process that takes all it can get of one core."""
    core = max(os.sched_getaffinity(0))
    command = [sys.executable, "-c", SPIN, str(os.getpid()), str(core)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            process.stdout.readline()  # it spins from now on
            yield process
        finally:
            process.kill()
