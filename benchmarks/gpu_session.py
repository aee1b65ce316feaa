"""All that needs a GPU, in calls of less than ten minutes: call it until it says that all is done.

    python -m benchmarks.gpu_session [--limit SECONDS] [MODEL.onnx ...]

Each part runs in a process of its own, so that a fault of one leaves the others their time, and
skips what has a result. Behind them stands a table: dlc's GPU time over the best of the others,
layers as a share of what cuBLAS and cuDNN reach, and what is not right.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from benchmarks.gpu import RESULTS
from dlc.runtime import why_no_gpu

# Name, module, and its share of the time that is left.
PARTS = (
    ("operators", "gpu_operators", 0.4),
    ("models", "gpu", 0.3),
    ("layers", "gpu_layers", 0.4),
    ("networks", "gpu_peers", 1.0),
)
GRACE = 60.0  # seconds for what a part has begun


def run_part(module: str, seconds: float, arguments: list[str]) -> str:
    """Run one part; what became of it."""
    command = [sys.executable, "-m", f"benchmarks.{module}", "--limit", str(int(seconds))]
    try:
        done = subprocess.run([*command, *arguments], check=False, timeout=seconds + GRACE)
    except subprocess.TimeoutExpired:
        return "stopped: it took too long"
    return {0: "done", 1: "wrong results", 2: "left out"}.get(done.returncode, "broken")


def results(folder: Path, kind: str) -> list[dict[str, Any]]:
    """All results whose file begins so."""
    paths = sorted(folder.glob(f"gpu-{kind}*.json"))
    return [json.loads(p.read_text(encoding="utf-8")) for p in paths]


def table(folder: Path) -> list[str]:
    """What the results say, as lines."""
    lines = []
    networks = [r for r in results(folder, "peers-") if "ratio" in r]
    for one in networks:
        times = ", ".join(f"{n} {t:.0f}" for n, t in one["microseconds"].items())
        speed = 1 / one["ratio"]
        lines.append(f"{one['network']}, {one['mode']}: {times} us; dlc is {speed:.2f} x the best")
    if networks:
        mean = geometric_mean([1 / one["ratio"] for one in networks])
        lines.append(f"geometric mean of {len(networks)}: {mean:.2f} x the best of the others")
    for one in results(folder, "operators"):
        counts = Counter(said.partition(":")[0] for said in one["operators"].values())
        lines.append(f"operators: {', '.join(f'{n} {state}' for state, n in counts.items())}")
        lines += [
            f"{name}: {said}"
            for name, said in one["operators"].items()
            if said.partition(":")[0] in ("wrong", "died")
        ]
    for one in results(folder, "layer-"):
        times = one["microseconds"]
        share = (
            f", {times['PyTorch'] / times['best']:.0%} of its rate" if "PyTorch" in times else ""
        )
        text = ", ".join(f"{n} {t:.1f}" for n, t in times.items())
        lines.append(f"{one['layer']}, {one['mode']}: {text} us{share}")
    everything = [one for one in results(folder, "") if "operators" not in one]
    for one in everything:
        name = one.get("model") or one.get("layer") or one.get("network")
        if not one.get("right", True):
            lines.append(f"WRONG: {name}, {one['mode']}: off by {one['difference']:.1e}")
        lines += [f"failed: {name}, {who}: {why}" for who, why in one.get("failed", {}).items()]
        for tool, said in one.get("sanitizer", {}).items():
            if said != "clean":
                lines.append(f"{tool}: {name}, {one['mode']}: {said.splitlines()[-1]}")
    return lines


def main() -> int:
    """Run the parts, then print the table; 1 where something is wrong or broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--limit", type=float, default=480.0, help="seconds for all parts")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--layers", nargs="*", default=[], help="only these")
    options = parser.parse_args()
    if missing := why_no_gpu():
        print(missing)
        return 2
    end = time.perf_counter() + options.limit
    more = ["--results", str(options.results)]
    given = {"models": list(map(str, options.models)), "layers": options.layers}
    states = {}
    for name, module, share in PARTS:
        left = max(0.0, end - time.perf_counter())
        if name == "models" and not options.models:
            continue
        states[name] = run_part(module, left * share, [*given.get(name, []), *more])
    for line in table(options.results):
        print(line)
    print("; ".join(f"{name}: {state}" for name, state in states.items()))
    return int(any(s not in ("done", "left out") for s in states.values()))


if __name__ == "__main__":
    sys.exit(main())
