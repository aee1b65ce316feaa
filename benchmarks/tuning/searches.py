"""After how many trials does a search find what nothing measured was faster than?

Run: python -m benchmarks.tuning.searches RECORDED [--seeds 3] [--only bayesian] [--json OUT]

RECORDED is what `record` made: all candidates of some tasks, measured once, so that every search
sees the same times. `transfer` is the guided search with a cost model that all other tasks taught;
`ranked` the guided one with a model that learns the order alone.

Two shares come of it: of the trials that random search takes to be as good as the best of all, and
of all trials, whose best random search has found when it has made them all. With `--json`, a task
that has its row is done.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from statistics import median
from unittest.mock import patch

from benchmarks.tuning.common import parser
from benchmarks.tuning.figures import Figures
from benchmarks.tuning.replay import Replay
from dlc.autotune import task_search
from dlc.autotune.bench_method import Method
from dlc.autotune.budget import Budget
from dlc.autotune.cost_model import XGBoostModel
from dlc.autotune.exchange import export_log, import_lines
from dlc.autotune.log import TuningLog
from dlc.autotune.session import Machines, Options, Weighted
from dlc.autotune.task import Task
from dlc.autotune.tuner import Tuner

GUIDED = ("bayesian", "evolutionary", "annealing", "genetic")
TRIALS = 1000
MEDIANS = "medians"  # the row of all tasks
NEAR = 0.98  # of the best: what is nearer cannot be told from it


def main() -> None:
    """Run the benchmark."""
    arguments = parser(__doc__)
    arguments.add_argument("recorded", type=Path)
    arguments.add_argument("--seeds", type=int, default=3)
    arguments.add_argument("--only", default=",".join((*GUIDED, "ranked", "transfer")))
    given = arguments.parse_args()
    searches = ["random", *given.only.split(",")]
    names = sorted(p.stem for p in given.recorded.glob("*.db"))
    machines = {name: Replay(given.recorded, name) for name in names}
    lines = {name: _lines(given.recorded / f"{name}.db") for name in names}
    tasks = {name: _task(given.recorded / f"{name}.db") for name in names}
    figures = Figures(given.json, {"seeds": given.seeds, "searches": searches})
    rows = {}
    for name in names:
        others = [line for other in names if other != name for line in lines[other]]
        measure = partial(_one, tasks[name], machines[name], others, searches, given.seeds)
        rows[name] = figures.get(name, measure)
        shown = (f"{k} {v:g}" for k, v in rows[name].items() if isinstance(v, int | float))
        print(f"{name:14}", "  ".join(shown), flush=True)
    for search in searches:
        of_random = median(row[search] / row["random"] for row in rows.values())
        of_all = median(row[search] / row["candidates"] for row in rows.values())
        print(f"{search:14} median share of random search's trials {of_random:.3f}", end="")
        print(f", of all {of_all:.3f}")
        figures.rows.setdefault(MEDIANS, {})[search] = {"of_random": of_random, "of_all": of_all}
    figures.write()


def _one(
    task: Task, machine: Replay, others: Sequence[str], searches: Sequence[str], seeds: int
) -> dict[str, float]:
    """Trials of each search on one task: medians over the seeds."""
    times = [t.speedup for t in machine.trials.values()]
    best = max(times)
    found: dict[str, list[int]] = {}
    for seed in range(seeds):
        plain = [s for s in ("random", *GUIDED) if s in searches]
        curves = {search: _run(task, search, machine, seed, best) for search in plain}
        if "ranked" in searches:
            curves["ranked"] = _run(task, "evolutionary", machine, seed, best, rank=True)
        if "transfer" in searches:
            curves["transfer"] = _run(task, "bayesian", machine, seed, best, lines=others)
        for search, curve in curves.items():
            found.setdefault(search, []).append(_reach(curve, best) or TRIALS)
    near = sum(t >= NEAR * best for t in times)
    medians = {k: median(v) for k, v in found.items()}
    return medians | {"best": best, "candidates": len(times), "as_good": near}


def _run(
    task: Task,
    search: str,
    machine: Replay,
    seed: int,
    goal: float,
    *,
    rank: bool = False,
    lines: Sequence[str] = (),
) -> list[float]:
    """The best speed-up after each trial, up to one that is as good as `goal`."""
    method = Method(threads=task.target.cores)
    options = Options(Budget(trials=TRIALS), search, method, seed=seed)
    model = XGBoostModel("rank" if rank else "regression", seed=seed)
    with (
        tempfile.TemporaryDirectory() as folder,
        TuningLog(Path(folder) / "log.db") as log,
        patch.object(task_search, "families", lambda _: machine.families()),
    ):
        import_lines(log, lines)
        tuner = Tuner([Weighted(task)], log, Machines(machine, machine), options, model=model)
        tuner.on_update = lambda _: _stop(tuner, goal)
        tuner.run()
    return list(accumulate((t.speedup for t in tuner.searches[0].trials), max)) or [0.0]


def _stop(tuner: Tuner, goal: float) -> None:
    """End a session that has nothing left to find."""
    search = tuner.searches[0]
    if any(t.speedup >= NEAR * goal for t in search.trials):
        search.course.exhausted = True


def _task(path: Path) -> Task:
    with TuningLog(path, read_only=True) as log:
        return next(iter(log.tasks()))


def _lines(path: Path) -> list[str]:
    text = io.StringIO()
    with TuningLog(path, read_only=True) as log:
        export_log(log, text)
    return text.getvalue().splitlines()


def _reach(curve: Sequence[float], goal: float) -> int | None:
    """The first trial that is as good as the goal."""
    return next((n for n, value in enumerate(curve, 1) if value >= NEAR * goal), None)


if __name__ == "__main__":
    main()
