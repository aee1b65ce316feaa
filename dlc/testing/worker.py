"""A process that judges models and may die of it. Speaks lines of JSON over its pipes.

Request: {"seed": 7} or {"model": path, "feeds": path}, with "variants", "folder" and, of
a seed, "cases": whether it may begin with one of ONNX's own tests.
Answer: {"verdict": ..., "variant": ..., "detail": ..., "operators": ..., ...}.
"""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from dlc.core.memory import limit_memory
from dlc.testing.check import VARIANTS, check
from dlc.testing.generate import Sample, draw_sample

MEMORY_BYTES = 12 << 30
"""What it may allocate; libraries reserve more than they use."""


def main() -> None:
    """Serve requests until the pipe is closed. What others print goes to stderr."""
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    faulthandler.enable()  # tells whose fault a crash is: onnxruntime has some of its own
    limit_memory(MEMORY_BYTES)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin:
        request = json.loads(line)
        channel.write(json.dumps(_serve(request)) + "\n")


def _serve(request: dict[str, Any]) -> dict[str, Any]:
    began = time.perf_counter()
    sample = load_sample(request["model"]) if "model" in request else _draw(request)
    if "folder" in request:
        save_sample(sample, Path(request["folder"]))
    drawn = time.perf_counter()
    finding = check(sample, request.get("variants", VARIANTS), request.get("seed", 0))
    return {
        "verdict": str(finding.verdict),
        "variant": finding.variant,
        "detail": finding.detail,
        "operators": sorted({n.op_type for n in sample.model.graph.node}),
        "nodes": len(sample.model.graph.node),
        "drawing": round(drawn - began, 3),
        "seconds": round(time.perf_counter() - began, 3),
    }


def _draw(request: dict[str, Any]) -> Sample:
    return draw_sample(request["seed"], cases=request.get("cases", True))


def save_sample(sample: Sample, folder: Path) -> Path:
    """Write `model.onnx` and its inputs, `feeds0.npz` and on; the path of the model."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("feeds*.npz"):
        old.unlink()
    path = folder / "model.onnx"
    path.write_bytes(sample.model.SerializeToString())
    for number, feeds in enumerate((sample.feeds, *sample.others)):
        np.savez(folder / f"feeds{number}.npz", **feeds)  # type: ignore[arg-type]
    (folder / "special").unlink(missing_ok=True)
    if sample.special:
        (folder / "special").touch()
    return path


def load_sample(path: str | Path) -> Sample:
    """What `save_sample` wrote."""
    folder = Path(path).parent
    feeds = []
    for file in sorted(folder.glob("feeds*.npz")):
        with np.load(file, allow_pickle=False) as arrays:
            feeds.append({name: arrays[name] for name in arrays.files})
    model = onnx.load_model_from_string(Path(path).read_bytes())
    return Sample(model, feeds[0], tuple(feeds[1:]), (folder / "special").exists())


if __name__ == "__main__":
    main()
