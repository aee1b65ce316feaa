"""How many candidates are built, checked and timed in a second?

Run: python -m benchmarks.tuning.throughput MODEL [--trials 200] [--only conv] [--json OUT]

The CPU time of all workers together is given too: it does not depend on what else the machine does.
"""

from __future__ import annotations

import resource
from pathlib import Path

from benchmarks.tuning.common import parser, progress, report, session
from dlc.autotune.bench_method import Method
from dlc.autotune.budget import Budget
from dlc.autotune.runners import open_machines
from dlc.autotune.session import Options, Snapshot
from dlc.tune_plan import plan_tuning


def main() -> None:
    """Run the benchmark."""
    arguments = parser(__doc__)
    arguments.add_argument("model", type=Path)
    arguments.add_argument("--trials", type=int, default=200)
    arguments.add_argument("--only", default="conv")
    given = arguments.parse_args()
    plan = plan_tuning([given.model], given.target, only=given.only)
    threads = plan.tasks[0].task.target.cores
    options = Options(Budget(trials=given.trials), method=Method(threads=threads))
    machines = open_machines()
    seen: list[tuple[int, float]] = []  # trials, seconds: neither preparation nor the verdict

    def watch(snapshot: Snapshot) -> None:
        if snapshot.trials and not snapshot.finished:
            seen.append((snapshot.trials, snapshot.seconds))

    try:
        with progress(given.model.stem, watch) as show:
            tuner = session(plan.tasks, machines, options, on_update=show)
    finally:
        machines.close()
    (before, began), (after, ended) = seen[0], seen[-1]
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = resource.getrusage(resource.RUSAGE_SELF)
    cpu = used.ru_utime + used.ru_stime + own.ru_utime + own.ru_stime
    ran = sum(t.status == "ok" for s in tuner.searches for t in s.trials)
    figures = {
        "trials": tuner.trials,
        "ran": ran,
        "trials_per_second": (after - before) / (ended - began),
        "preparation_seconds": began,
        "cpu_seconds_per_trial": cpu / tuner.trials,
        "failures": dict(tuner.failures),
    }
    for name, value in figures.items():
        print(f"{name:24} {value:.3f}" if isinstance(value, float) else f"{name:24} {value}")
    report(given.json, figures)


if __name__ == "__main__":
    main()
