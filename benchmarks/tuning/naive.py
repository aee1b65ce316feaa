"""How much faster is a tuned model than one with naive schedules?

Run: python -m benchmarks.tuning.naive MODEL [--budget 10m] [--json OUT]

Naive is the first choice of each knob that is not "as the analytic rule says", in the last family
of a space: the rule that knows the nest the least.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import dlc
from benchmarks.tuning.common import parser, report
from dlc.autotune import job as jobs
from dlc.autotune.budget import parse_budget
from dlc.autotune.design import families
from dlc.autotune.record import quartile
from dlc.autotune.runners import open_machines
from dlc.autotune.session import Options
from dlc.autotune.task import make_task
from dlc.compiler import build
from dlc.core.errors import DlcError
from dlc.core.target import Target
from dlc.core.target_parse import parse_target
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
    arguments.add_argument("model", type=Path)
    arguments.add_argument("--budget", default="10m")
    given = arguments.parse_args()
    machines = open_machines()
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            log = folder / "log.db"
            options = Options(parse_budget(given.budget))
            dlc.tune(given.model, log, given.target, options=options, machines=machines)
            build(given.model, folder / "a.so", given.target, schedule=naive)
            build(given.model, folder / "b.so", given.target, tuning=log)
            paths = (str(folder / "a.so"), str(folder / "b.so"))
            threads = parse_target(given.target).cores
            job = jobs.race(paths, sizes={}, threads=threads, rounds=51, budget_seconds=30)
            ((_, reply),) = machines.measure.run([job])
    finally:
        machines.close()
    before, after = reply.data["times_ns"]
    figures = {
        "naive_ms": quartile(before) / 1e6,
        "tuned_ms": quartile(after) / 1e6,
        "speedup": quartile(before) / quartile(after),
    }
    print("  ".join(f"{name} {value:.3f}" for name, value in figures.items()))
    report(given.json, figures)


if __name__ == "__main__":
    main()
