"""How near is the default to the best of many trials, on the largest tasks of a model?

Run: python -m benchmarks.tuning.exhaust MODEL [--trials 1000] [--tasks 3] [--place N] [--json OUT]

With `--place`, only the task in this place by its share of time, from 1 on: some minutes each.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.tuning.common import parser, report, session
from dlc.autotune.bench_method import Method
from dlc.autotune.budget import Budget
from dlc.autotune.confirm import confirm
from dlc.autotune.runners import open_machines
from dlc.autotune.session import Options
from dlc.tune_model import plan_tuning


def main() -> None:
    """Run the benchmark."""
    arguments = parser(__doc__)
    arguments.add_argument("model", type=Path)
    arguments.add_argument("--trials", type=int, default=1000)
    arguments.add_argument("--tasks", type=int, default=3)
    arguments.add_argument("--place", type=int)
    given = arguments.parse_args()
    plan = plan_tuning([given.model], given.target)
    method = Method(threads=plan.tasks[0].task.target.cores)
    machines = open_machines()
    figures = {}
    try:
        weighed = session(plan.tasks, machines, Options(Budget(trials=0), method=method))
        order = sorted(weighed.searches, key=lambda s: -s.course.weight_ns)
        first, count = (given.place - 1, 1) if given.place else (0, given.tasks)
        for search in order[first : first + count]:
            (weighted,) = (w for w in plan.tasks if w.task.key == search.key)
            options = Options(Budget(trials=given.trials), method=method)
            done = session([weighted], machines, options).searches[0]
            choice = confirm(done, machines.measure, method)
            figures[search.task.name] = {
                "trials": len(done.trials),
                "best_over_default": choice.speedup if choice else 1.0,
            }
            print(f"{search.task.name:32} best {figures[search.task.name]}", flush=True)
    finally:
        machines.close()
    report(given.json, figures)


if __name__ == "__main__":
    main()
