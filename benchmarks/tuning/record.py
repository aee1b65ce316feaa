"""Build and measure every candidate of ten tasks, for searches to be compared on (`searches`).

Run: python -m benchmarks.tuning.record FOLDER build [--tasks conv_1x1,...] [--most 1500]
then python -m benchmarks.tuning.record FOLDER measure [--seconds 60], until nothing is left,
then python -m benchmarks.tuning.record FOLDER again, which measures the fastest at length

Candidates of a space beyond `--most` are drawn by chance. Building takes long and may share the
machine with other work; measuring may not, and is done in pieces.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from benchmarks.tuning.common import parser, ten_tasks
from dlc.autotune import job as jobs
from dlc.autotune.bench_method import Method
from dlc.autotune.design import Design, families
from dlc.autotune.job import Anchor, Reply
from dlc.autotune.log import TuningLog
from dlc.autotune.record import Status, Trial
from dlc.autotune.runners import open_machines
from dlc.autotune.session import Machines
from dlc.autotune.task import Task
from dlc.autotune.versions import FEATURES, versions

PARTS = ("default", "plain", "eviction")
_FASTEST = 24
_PIECE = 64  # candidates built before they are written


def main() -> None:
    """Run one of the two steps."""
    arguments = parser(__doc__)
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("step", choices=("build", "measure", "again"))
    arguments.add_argument("--tasks", default="")
    arguments.add_argument("--most", type=int, default=1500)
    arguments.add_argument("--seconds", type=float, default=60)
    given = arguments.parse_args()
    given.folder.mkdir(exist_ok=True)
    tasks = ten_tasks(given.target)
    machines = open_machines()
    until = time.monotonic() + given.seconds
    try:
        for name in [n for n in given.tasks.split(",") if n] or list(tasks):
            path = given.folder / f"{name}.built"
            if given.step == "build":
                count = _build(tasks[name], path, given.most, machines)
            elif given.step == "measure":
                count = _measure(tasks[name], path, machines, until)
            else:
                count = _again(tasks[name], path, machines)
            print(f"{name}: {count} left", flush=True)
    finally:
        machines.close()


def _build(task: Task, path: Path, most: int, machines: Machines) -> int:
    """Append candidates to a file, each loop nest once."""
    designs = [
        Design(family.name, tuple(point.items()))
        for family in families(task)
        for point in family.space.points()
    ]
    if len(designs) > most:
        designs = Random(0).sample(designs, most)
    done = set()
    nests = set()
    if path.exists():
        for design, reply in read_built(path):
            done.add(design)
            nests.add(reply.data.get("nest"))
    with open(path, "ab") as out:
        if not done:
            replies = dict(machines.build.run(jobs.build_anchor(task)))
            for n, name in enumerate(PARTS):
                pickle.dump((Design(name, ()), replies[n]), out)
        waiting = [d for d in designs if d not in done]
        while waiting:
            piece, waiting = waiting[:_PIECE], waiting[_PIECE:]
            described = dict(
                machines.build.run([jobs.build_design(task, d, code=False) for d in piece])
            )
            new = []
            for n, design in enumerate(piece):
                nest = described[n].data.get("nest")
                if nest is None or nest in nests:
                    pickle.dump((design, described[n]), out)
                    continue
                nests.add(nest)
                new.append(design)
            for n, reply in machines.build.run([jobs.build_design(task, d) for d in new]):
                pickle.dump((new[n], reply), out)
            out.flush()
    return 0


def _measure(task: Task, path: Path, machines: Machines, until: float) -> int:
    """Measure what is built and was not measured; return how many are left."""
    built = list(read_built(path))
    anchor = _anchor(built)
    method = Method(threads=task.target.cores, rounds=7, budget_seconds=0.03)
    with TuningLog(path.with_suffix(".db")) as log:
        log.add_task(task)
        known = {t.nest for t in log.trials()}
        fresh = built[len(PARTS) :]
        waiting = [(d, r) for d, r in fresh if r.blobs and r.data["nest"] not in known]
        if time.monotonic() > until or not waiting:
            return len(waiting)
        job = jobs.measure(task, anchor.default, anchor, method)
        ((_, first),) = machines.measure.run([job])
        default_ns = float(min(first.data["anchor_ns"]))
        work = [
            jobs.measure(task, r.blobs[0], anchor, method, default_ns=default_ns)
            for _, r in waiting
        ]
        count = 0
        for number, result in machines.measure.run(work):
            log.add_trial(_trial(task, *waiting[number], result, method))
            count += 1
            if time.monotonic() > until:
                break
        return len(waiting) - count


def _again(task: Task, path: Path, machines: Machines) -> int:
    """Measure those that seem the fastest once more: some were lucky."""
    built = list(read_built(path))
    anchor = _anchor(built)
    found = {r.data["nest"]: (d, r) for d, r in built[len(PARTS) :] if r.blobs}
    method = Method(threads=task.target.cores, rounds=31, budget_seconds=0.15)
    with TuningLog(path.with_suffix(".db")) as log:
        order = sorted(log.trials(), key=lambda t: -t.speedup)[:_FASTEST]
        waiting = [found[t.nest] for t in order]
        work = [jobs.measure(task, r.blobs[0], anchor, method) for _, r in waiting]
        for number, result in machines.measure.run(work):
            log.add_trial(_trial(task, *waiting[number], result, method))
    return 0


def _anchor(built: Sequence[tuple[Design, Reply]]) -> Anchor:
    return Anchor(*(reply.blobs[0] for _, reply in built[: len(PARTS)]))


def _trial(task: Task, design: Design, built: Reply, result: Reply, method: Method) -> Trial:
    data = result.data
    known = data["status"] in {str(s) for s in Status}
    return Trial(
        task=task.key,
        family=design.family,
        knobs=design.knobs,
        steps=built.data["steps"],
        nest=built.data["nest"],
        status=Status(data["status"]) if known else Status.CRASH,
        detail=str(data.get("detail", "")),
        times_ns=tuple(data.get("times_ns", ())),
        anchor_ns=tuple(data.get("anchor_ns", ())),
        threads=method.threads,
        features=tuple(built.data["features"]),
        made_at=time.time(),
        versions=(*versions(), FEATURES),
    )


def read_built(path: Path) -> Iterator[tuple[Design, Reply]]:
    """What was built: the parts of the anchor, then candidates."""
    with open(path, "rb") as file:
        while True:
            try:
                yield pickle.load(file)
            except EOFError:
                return


if __name__ == "__main__":
    main()
