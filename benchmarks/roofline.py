"""How near the kernels of models are to what one core can do.

Run: python benchmarks/roofline.py MODEL... [--target native] [--json OUT]

Each model runs on one thread. A step's floor is the time its operations need at the measured peak
of multiply-adds, or its bytes at the measured rate of reads from beyond the second-level cache,
whichever is longer; a small step whose data is in a cache may be below it. The table shows each
model's time, the sum of its floors, and the steps that lose most.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np

import dlc
from dlc.codegen.llvm.peaks import Peaks, measure_peaks
from dlc.core.target_parse import parse_target
from dlc.random_inputs import bind_shape, random_array
from dlc.runtime import Profile, StepTime, set_num_threads

LOSERS = 5  # steps shown for each model


def floor_ns(step: StepTime, peaks: Peaks) -> float:
    """The least time of a step whose data comes from memory."""
    return max(step.operations / peaks.gflops, step.bytes / peaks.read_gbytes_per_s)


def profile(path: Path, target: str) -> Profile:
    """A model's profile on random inputs; open sizes are 1, or their least."""
    module = dlc.compile(path, target)
    sizes = {size.name: max(1, size.min) for size in module.sizes}
    rng = np.random.default_rng(0)
    feeds = {
        spec.name: random_array(spec.dtype, bind_shape(spec, sizes), rng, "normal")
        for spec in module.inputs
    }
    return module.profile(feeds)


def main() -> None:
    """Print the table; write it as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--target", default="native")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    set_num_threads(1)
    peaks = measure_peaks(parse_target(arguments.target))
    print(f"{peaks.gflops:.0f} GFLOP/s, {peaks.read_gbytes_per_s:.0f} GB/s")
    document = {"peaks": asdict(peaks), "models": {}}
    for path in arguments.models:
        found = profile(path, arguments.target)
        floors = sum(floor_ns(step, peaks) for step in found.steps)
        name = path.parent.name if path.stem == "model" else path.stem
        print(f"{name}: {found.time_ns / 1e6:.2f} ms, floor {floors / 1e6:.2f} ms")
        for step in sorted(found.steps, key=lambda s: floor_ns(s, peaks) - s.time_ns)[:LOSERS]:
            part = floor_ns(step, peaks) / step.time_ns
            print(f"  {step.time_ns / 1e3:9.1f} µs {part:4.0%} of the floor's rate  {step.kernel}")
        document["models"][name] = [asdict(step) for step in found.steps]
    if arguments.json:
        arguments.json.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
