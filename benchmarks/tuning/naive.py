"""How much faster is a tuned model than one with naive schedules?

Run: python -m benchmarks.tuning.naive MODEL... [--budget 10m] [--logs FOLDER] [--json OUT]

A model whose log `models` left in FOLDER is not tuned again. Both artefacts run in turn. Naive is
the first choice of each knob that is not "as the analytic rule says", in the last family of a
space: the rule that knows the nest the least.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import dlc
from benchmarks.tuning.common import duel, machines_of, parser, progress
from benchmarks.tuning.figures import Figures
from benchmarks.tuning.models import sizes_of
from dlc.autotune.budget import parse_budget
from dlc.autotune.design import families
from dlc.autotune.session import Machines, Options
from dlc.autotune.task import make_task
from dlc.compiler import build
from dlc.core.errors import DlcError
from dlc.core.target import Target
from dlc.schedule.loop import Func
from dlc.schedule.primitive import Step


def naive(func: Func, target: Target) -> tuple[Step, ...] | None:
    """The steps of a naive schedule; None where the nest offers no choice."""
    for family in reversed(families(make_task(func, target))):
        knobs = {
            n: next((v for v in values if v > 0), values[0])
            for n, values in family.space.knobs.items()
        }
        try:
            return tuple(family.schedule(knobs).steps)
        except DlcError:
            continue
    return None


def main() -> None:
    """Run the benchmark."""
    arguments = parser(__doc__)
    arguments.add_argument("models", type=Path, nargs="+")
    arguments.add_argument("--budget", default="10m")
    arguments.add_argument("--logs", type=Path)
    given = arguments.parse_args()
    figures = Figures(given.json, {"budget": given.budget, "target": given.target})
    with machines_of() as machines:
        for model in given.models:
            row = figures.get(model.stem, lambda m=model: _one(m, given, machines))  # type: ignore[misc]
            text = f"tuned {row['tuned_ms']:.3f} ms, {row['speedup']:.1f}× over naive"
            print(f"{model.stem:20} {text}", flush=True)


def _one(model: Path, given: argparse.Namespace, machines: Machines) -> dict[str, Any]:
    at = sizes_of(model)
    with tempfile.TemporaryDirectory() as name, progress(model.stem) as show:
        log = (given.logs or Path(name)) / f"{model.stem}.db"
        if not log.exists():
            options = Options(parse_budget(given.budget))
            log.parent.mkdir(parents=True, exist_ok=True)
            dlc.tune(
                model,
                log,
                given.target,
                options=options,
                machines=machines,
                at=at,
                on_update=show,
            )
        paths = (Path(name) / "naive.so", Path(name) / "tuned.so")
        build(model, paths[0], given.target, schedule=naive)
        build(model, paths[1], given.target, tuning=log)
        found = duel(paths, given.target, machines, sizes=at)
    return {"naive_ms": found.pop("untuned_ms"), **found}


if __name__ == "__main__":
    main()
