"""What does a budget bring whole models? Untuned and tuned artefacts run in turn.

Run: python -m benchmarks.tuning.models MODEL... [--budget 10m] [--logs FOLDER] [--json OUT]

A model that has its row in OUT with the same budget is done: a run that was stopped goes on where
it was, and two calls with different budgets can share a file. Logs in a folder of their own are
kept and taken up again; `naive` uses what they hold. Open sizes of the models of `benchmarks.cpu`
have the values they have there.
"""

from __future__ import annotations

import argparse
import filecmp
import sys
import tempfile
from math import exp, log
from pathlib import Path
from typing import Any

import dlc
from benchmarks.cpu.models import MODELS
from benchmarks.tuning.common import duel, machines_of, parser, progress
from benchmarks.tuning.figures import Figures
from dlc.autotune.budget import parse_budget
from dlc.autotune.session import Machines, Options, Snapshot
from dlc.compiler import build
from dlc.core.errors import DlcError

SAME = {"speedup": 1.0, "verdict": "the same artefact"}  # a race would measure chance


def main() -> None:
    """Run the benchmark."""
    arguments = parser(__doc__)
    arguments.add_argument("models", type=Path, nargs="+")
    arguments.add_argument("--budget", default="10m")
    arguments.add_argument("--logs", type=Path)
    given = arguments.parse_args()
    figures = Figures(given.json, {"budget": given.budget, "target": given.target})
    gains = {}
    with machines_of() as machines:
        for model in given.models:
            try:
                row = figures.get(model.stem, lambda m=model: _one(m, given, machines))  # type: ignore[misc]
            except DlcError as error:
                print(f"{model.stem:20} failed: {error}", flush=True)
                continue
            gains[model.stem] = row["speedup"]
            text = f"{row['speedup']:.3f}× over untuned ({row['verdict']})"
            print(f"{model.stem:20} {text}, {row['kept']} kernels, {row['trials']} trials")
    if gains:
        mean = exp(sum(map(log, gains.values())) / len(gains))
        print(f"geometric mean of {len(gains)} models: {mean:.3f}×")
    sys.exit(len(gains) < len(given.models))


def _one(model: Path, given: argparse.Namespace, machines: Machines) -> dict[str, Any]:
    curve: list[tuple[float, float]] = []

    def watch(snapshot: Snapshot) -> None:
        if snapshot.trials:
            gain = snapshot.default_ns / snapshot.best_ns
            curve.append((round(snapshot.seconds, 1), round(gain, 4)))

    at = sizes_of(model)
    with tempfile.TemporaryDirectory() as name, progress(model.stem, watch) as show:
        folder = given.logs or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        kept = dlc.tune(
            model,
            folder / f"{model.stem}.db",
            given.target,
            options=Options(parse_budget(given.budget)),
            machines=machines,
            at=at,
            on_update=show,
        )
        paths = (Path(name) / "untuned.so", Path(name) / "tuned.so")
        build(model, paths[0], given.target, tuning="none")
        build(model, paths[1], given.target, tuning=folder / f"{model.stem}.db")
        same = filecmp.cmp(*paths, shallow=False)
        figures = SAME if same else duel(paths, given.target, machines, sizes=at)
    return {
        **figures,
        "same_artefact": same,
        "kept": len(kept.choices),
        "won_alone_only": kept.rejected,
        "trials": kept.snapshot.trials,
        "failures": dict(kept.snapshot.failures),
        "tuning_seconds": round(kept.seconds, 1),
        "estimate": kept.snapshot.default_ns / kept.snapshot.best_ns,
        "tasks": [
            {
                "name": t.name,
                "key": t.key,
                "share": round(t.share, 4),
                "trials": t.trials,
                "gain_alone": round(t.default_ns / t.best_ns, 3) if t.best_ns > 0 else None,
            }
            for t in sorted(kept.snapshot.tasks, key=lambda t: -t.share)
        ],
        "curve": curve[:: max(1, len(curve) // 100)],
    }


def sizes_of(model: Path) -> dict[str, int]:
    """The values of a model's open sizes, where the benchmark of engines knows it."""
    return next((dict(m.sizes) for m in MODELS if m.name == model.stem), {})


if __name__ == "__main__":
    main()
