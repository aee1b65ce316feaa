"""After how many trials does a search reach what random search finds in 1,000?

Run: python -m benchmarks.tuning.searches [--trials 1000] [--tasks conv_1x1,...] [--json OUT]

`transfer` is the guided search with a cost model that the other nine tasks taught.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.tuning.common import parser, report, session, ten_tasks
from dlc.autotune.bench_method import Method
from dlc.autotune.budget import Budget
from dlc.autotune.exchange import export_log
from dlc.autotune.log import TuningLog
from dlc.autotune.runners import open_machines
from dlc.autotune.session import Machines, Options, Weighted
from dlc.autotune.task import Task

GUIDED = ("evolutionary", "annealing", "genetic")


def main() -> None:
    """Run the benchmark."""
    arguments = parser(__doc__)
    arguments.add_argument("--trials", type=int, default=1000)
    arguments.add_argument("--tasks", default="")
    given = arguments.parse_args()
    tasks = ten_tasks(given.target)
    chosen = [n for n in given.tasks.split(",") if n] or list(tasks)
    machines = open_machines()
    lines: dict[str, list[str]] = {}
    figures: dict[str, dict[str, float | None]] = {}
    best: dict[str, float] = {}
    try:
        for name in chosen:
            curve, lines[name] = _run(tasks[name], "random", given.trials, machines)
            best[name] = curve[-1]
            figures[name] = {"random_best": curve[-1], "random_trials": _reach(curve, curve[-1])}
        for name in chosen:
            most = given.trials
            for search in GUIDED:
                curve, _ = _run(tasks[name], search, most, machines)
                figures[name][search] = _reach(curve, best[name])
            others = [line for other in chosen if other != name for line in lines[other]]
            curve, _ = _run(tasks[name], "evolutionary", most, machines, others)
            figures[name]["transfer"] = _reach(curve, best[name])
            print(f"{name:14}", "  ".join(f"{k} {v}" for k, v in figures[name].items()), flush=True)
    finally:
        machines.close()
    for search in (*GUIDED, "transfer"):
        shares = [(f[search] or 2 * given.trials) / given.trials for f in figures.values()]
        print(f"{search:14} median share of {given.trials} trials: {median(shares):.3f}")
    report(given.json, figures)


def _run(
    task: Task, search: str, trials: int, machines: Machines, lines: Sequence[str] = ()
) -> tuple[list[float], list[str]]:
    """The best speed-up after each trial, and the log as lines."""
    method = Method(threads=task.target.cores)
    options = Options(Budget(trials=trials), search, method)
    tuner = session([Weighted(task)], machines, options, lines=lines)
    trials_made = tuner.searches[0].trials
    curve, best = [], 1.0
    for trial in trials_made:
        best = max(best, trial.speedup)
        curve.append(best)
    text = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, TuningLog(Path(folder) / "l.db") as log:
        log.add_task(task)
        for trial in trials_made:
            log.add_trial(trial)
        export_log(log, text)
    return curve or [1.0], text.getvalue().splitlines()


def _reach(curve: Sequence[float], goal: float) -> int | None:
    """The first trial within 1 % of the goal: timings are no more exact than that."""
    return next((n for n, value in enumerate(curve, 1) if value >= 0.99 * goal), None)


if __name__ == "__main__":
    main()
