"""What does a budget bring whole models? Untuned and tuned artefacts run in turn.

Run: python -m benchmarks.tuning.models MODEL... [--budget 10m] [--logs FOLDER] [--json OUT]

Logs in a folder of their own are kept, and taken up again: two runs of 5m are one of 10m.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import dlc
from benchmarks.tuning.common import parser, report
from dlc.autotune import job as jobs
from dlc.autotune.budget import parse_budget
from dlc.autotune.record import quartile
from dlc.autotune.runners import open_machines
from dlc.autotune.session import Machines, Options, Snapshot
from dlc.compiler import build
from dlc.core.target_parse import parse_target


def main() -> None:
    """Run the benchmark."""
    arguments = parser(__doc__)
    arguments.add_argument("models", type=Path, nargs="+")
    arguments.add_argument("--budget", default="10m")
    arguments.add_argument("--logs", type=Path)
    given = arguments.parse_args()
    target = parse_target(given.target)
    machines = open_machines()
    figures = {}
    try:
        for model in given.models:
            figures[model.stem] = _one(model, given, target.cores, machines)
            found = figures[model.stem]
            print(f"{model.stem:20} {found['speedup']:.3f}× over untuned, {found['kept']} kernels")
    finally:
        machines.close()
    report(given.json, figures)


def _one(
    model: Path, given: argparse.Namespace, threads: int, machines: Machines
) -> dict[str, object]:
    curve: list[tuple[float, float]] = []

    def watch(snapshot: Snapshot) -> None:
        if snapshot.trials:
            curve.append((snapshot.seconds, snapshot.default_ns / snapshot.best_ns))

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options = Options(parse_budget(given.budget))
        log = (given.logs or folder) / f"{model.stem}.db"
        target = given.target
        found = dlc.tune(model, log, target, options=options, machines=machines, on_update=watch)
        build(model, folder / "a.so", target, tuning="none")
        build(model, folder / "b.so", target, tuning=log)
        paths = (str(folder / "a.so"), str(folder / "b.so"))
        job = jobs.race(paths, sizes={}, threads=threads, rounds=101, budget_seconds=20)
        ((_, reply),) = machines.measure.run([job])
    before, after = reply.data["times_ns"]
    return {
        "untuned_ms": quartile(before) / 1e6,
        "tuned_ms": quartile(after) / 1e6,
        "speedup": quartile(before) / quartile(after),
        "kept": len(found.choices),
        "rejected": found.rejected,
        "trials": found.snapshot.trials,
        "curve": curve[:: max(1, len(curve) // 100)],
    }


if __name__ == "__main__":
    main()
