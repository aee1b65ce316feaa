"""Time a compiled model beside onnxruntime, on the same machine, inputs and number of threads.

The two take turns, so that a change of clock rate or a busy neighbour hits both alike.

Run: python examples/latency.py resnet18.onnx resnet18.so [--seconds 3] [--threads 2]
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime

import dlc

Run = Callable[[], dict[str, np.ndarray]]
BURST = 10  # runs of one engine, at least, before it is the other's turn
BURST_S = 0.1  # at least, too: a small model would wait most of the time
WARM_UP = 3  # runs at the start of each burst that do not count: caches hold the other's data


def onnxruntime_run(model: Path, feed: dict[str, np.ndarray], threads: int) -> Run:
    """A function that runs the model once."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda: dict(zip(names, session.run(names, feed), strict=True))


def dlc_run(artefact: Path, feed: dict[str, np.ndarray]) -> Run:
    """A function that runs the model once."""
    module = dlc.load(str(artefact))
    return lambda: module.run(feed)


def random_feed(artefact: Path) -> dict[str, np.ndarray]:
    """Normal floats for every input; an unknown size is 1."""
    rng = np.random.default_rng(0)
    return {
        spec.name: rng.standard_normal([d if isinstance(d, int) else 1 for d in spec.shape]).astype(
            np.float32
        )
        for spec in dlc.load(str(artefact)).inputs
    }


def wait_until_quiet() -> None:
    """onnxruntime's threads spin for a while after a run, and would take a core from the next."""
    for _ in range(100):
        before = time.process_time()
        time.sleep(0.01)
        if time.process_time() - before < 0.001:
            return


def burst_s(run: Run) -> list[float]:
    """Wall times of one engine's turn."""
    for _ in range(WARM_UP):
        run()
    found: list[float] = []
    spent = 0.0
    while len(found) < BURST or spent < BURST_S:
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
        spent += found[-1]
    return found


def times_ms(runs: dict[str, Run], seconds: float) -> dict[str, np.ndarray]:
    """Wall times of all engines, taken in turns, until they add up to `seconds` for each."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    left_s = seconds * len(runs)
    while left_s > 0:
        for name, run in runs.items():
            wait_until_quiet()
            times = burst_s(run)
            found[name] += times
            left_s -= sum(times)
    return {name: np.array(values) * 1e3 for name, values in found.items()}


def main() -> None:
    """Parse the arguments, time and print."""
    parser = argparse.ArgumentParser(description="Time a compiled model beside onnxruntime.")
    parser.add_argument("model", type=Path)
    parser.add_argument("artefact", type=Path)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each engine")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    os.environ["DLC_NUM_THREADS"] = str(args.threads)

    feed = random_feed(args.artefact)
    peer = f"onnxruntime {onnxruntime.__version__}"
    runs = {
        "dlc": dlc_run(args.artefact, feed),
        peer: onnxruntime_run(args.model, feed, args.threads),
    }
    ours, theirs = (run() for run in runs.values())
    print(f"{args.model.name}, {args.threads} threads{'':14}median       min       p90")
    medians = {}
    for name, values in times_ms(runs, args.seconds).items():
        medians[name] = np.median(values)
        cells = (medians[name], values.min(), np.percentile(values, 90))
        print(f"  {name:<34}" + "".join(f"{cell:7.2f} ms" for cell in cells))
    print(f"  dlc takes {medians['dlc'] / medians[peer]:.2f} of onnxruntime's time")
    for name, expected in theirs.items():
        error = np.abs(ours[name] - expected).max() / np.abs(expected).max()
        print(f"  largest difference of '{name}', as a share of the largest value: {error:.1e}")


if __name__ == "__main__":
    main()
