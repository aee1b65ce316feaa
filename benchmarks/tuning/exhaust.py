"""How near is the default to the best of many trials, on the largest tasks of models?

Run: python -m benchmarks.tuning.exhaust MODEL... [--trials 1000] [--tasks 3] [--gains GAINS]
[--logs FOLDER] [--json OUT]

GAINS is what `models` wrote; models that gained `--below` (1.05) or more are left out. A task that
several models share is searched once. With `--json`, tasks that have their row are done; with
`--logs`, one that was stopped goes on where it was, too.

The best of a search was mostly lucky: where pages lie makes one process up to a tenth faster than
the next. So the sixteen fastest candidates meet the default again in four processes each, then the
best three of them in eight others, which alone count (`best_over_default`; `best_seen` is that of
the search).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.tuning.common import machines_of, parser, progress, session
from benchmarks.tuning.figures import Figures
from benchmarks.tuning.models import sizes_of
from dlc.autotune.bench_method import Method
from dlc.autotune.budget import Budget
from dlc.autotune.confirm import meet_default, rebuild
from dlc.autotune.log import TuningLog
from dlc.autotune.session import Machines, Options, Weighted
from dlc.autotune.versions import versions
from dlc.tune_plan import plan_tuning

_AGAIN = 16  # candidates that meet the default again
_FINALISTS = 3
_LIVES = 8  # processes for each of these
NEAR = 1.05


def main() -> None:
    """Run the benchmark."""
    arguments = parser(__doc__)
    arguments.add_argument("models", type=Path, nargs="+")
    arguments.add_argument("--trials", type=int, default=1000)
    arguments.add_argument("--tasks", type=int, default=3)
    arguments.add_argument("--gains", type=Path)
    arguments.add_argument("--below", type=float, default=NEAR)
    arguments.add_argument("--logs", type=Path)
    given = arguments.parse_args()
    settings = {"trials": given.trials, "tasks": given.tasks, "target": given.target}
    figures = Figures(given.json, settings)
    with machines_of() as machines:
        for model in _chosen(given):
            _one_model(model, given, machines, figures)
    found = [row for row in figures.rows.values() if "best_over_default" in row]
    near = sum(row["best_over_default"] <= NEAR for row in found)
    print(f"the default is within {NEAR - 1:.0%} of the best of {near} of {len(found)} tasks")


def _chosen(given: argparse.Namespace) -> list[Path]:
    """The models that gained little."""
    gains = _gains(given)
    found = [m for m in given.models if gains.get(m.stem, {"speedup": 0})["speedup"] < given.below]
    for model in given.models:
        if model not in found:
            print(f"{model.stem}: left out, it gains {gains[model.stem]['speedup']:.3f}×")
    return found


def _gains(given: argparse.Namespace) -> dict[str, Any]:
    """What `models` wrote."""
    return json.loads(given.gains.read_text(encoding="utf-8")) if given.gains else {}


def _one_model(
    model: Path, given: argparse.Namespace, machines: Machines, figures: Figures
) -> None:
    plan = plan_tuning([model], given.target, at=sizes_of(model))
    order = figures.get(
        model.stem, lambda: {"largest": _largest(model.stem, plan.tasks, given, machines)}
    )
    tasks = {w.task.key: w for w in plan.tasks}
    for name, key, share in order["largest"]:
        if key not in tasks:
            raise SystemExit(f"{given.json}: {model.stem} has other tasks by now; begin a new file")
        row = figures.get(key, lambda w=tasks[key]: _search(w, given, machines))  # type: ignore[misc]
        text = f"best {row['best_over_default']:.3f} of {row['trials']} trials"
        print(f"{model.stem:16} {name:32} {share:5.1%} of the model: {text}", flush=True)


def _largest(
    name: str, tasks: tuple[Weighted, ...], given: argparse.Namespace, machines: Machines
) -> list[tuple[str, str, float]]:
    """Name, key and share of time of the largest tasks, as `models` found them if it did."""
    shares = {t["key"]: t["share"] for t in _gains(given).get(name, {}).get("tasks", ())}
    if not all(w.task.key in shares for w in tasks):
        timed = session(tasks, machines, _options(tasks[0], 0))
        total = sum(s.course.weight_ns for s in timed.searches) or 1.0
        shares = {s.key: round(s.course.weight_ns / total, 4) for s in timed.searches}
    order = sorted(tasks, key=lambda w: -shares[w.task.key])
    return [(w.task.name, w.task.key, shares[w.task.key]) for w in order[: given.tasks]]


def _search(weighted: Weighted, given: argparse.Namespace, machines: Machines) -> dict[str, Any]:
    """Search one task, and measure the fastest once more."""
    task = weighted.task
    log = given.logs / f"{task.key}.db" if given.logs else None
    done = 0
    if log is not None and log.exists():
        with TuningLog(log, read_only=True) as opened:
            done = sum(set(versions()) <= set(t.versions) for t in opened.trials(task.key))
    options = _options(weighted, max(0, given.trials - done))
    with progress(task.name) as show:
        tuner = session([weighted], machines, options, on_update=show, path=log)
    (search,) = tuner.searches
    again = meet_default(search, rebuild(search, _AGAIN), machines.measure)
    finalists = [built for _, built in again[:_FINALISTS]]
    last = meet_default(search, finalists, machines.measure, _LIVES)
    return {
        "name": task.name,
        "key": task.key,
        "default_us": search.default_ns / 1e3,
        "trials": len(search.trials),
        "ran": sum(t.status == "ok" for t in search.trials),
        "exhausted": search.course.exhausted,
        "problem": search.problem_text,
        "best_seen": round(search.best.speedup if search.best else 1.0, 4),
        "best_over_default": round(max([1.0, *(s for s, _ in last)]), 4),
    }


def _options(weighted: Weighted, trials: int) -> Options:
    return Options(Budget(trials=trials), method=Method(threads=weighted.task.target.cores))


if __name__ == "__main__":
    main()
