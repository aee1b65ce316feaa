"""Make what comes with dlc for this family of CPUs: records that won for sure, and a cost model.

Run: python -m benchmarks.tuning.ship [MODEL...] [--budget 8m] [--log LOG] [--also LOG...]
     [--out FOLDER]

All models share one session, whose log a later call goes on from. A record is shipped if the models
that hold its kernel are faster with all records, once more and beyond chance, after the session
said so. The cost model learns from every trial of the log, and of other logs of this family of
CPUs (`--also`, such as those of `models`). Without models, some of the benchmark that are quick to
build.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import dlc
from benchmarks.tuning.common import parser, progress, report
from benchmarks.tuning.models import sizes_of
from dlc.autotune import job as jobs
from dlc.autotune.apply import Records, load_records
from dlc.autotune.budget import parse_budget
from dlc.autotune.cost_model import Sample, XGBoostModel, sample_of
from dlc.autotune.decision import Verdict
from dlc.autotune.duel import Duel
from dlc.autotune.exchange import write_lines
from dlc.autotune.log import TuningLog
from dlc.autotune.runners import open_machines
from dlc.autotune.session import Machines, Options
from dlc.autotune.shipped import FOLDER, family_of
from dlc.autotune.task import task_key
from dlc.compiler import build
from dlc.core.target import Target
from dlc.core.target_parse import parse_target
from dlc.lowering import lower_model

MODELS = ("resnet18", "mobilenet_v2", "minilm_l6")
_BUILD = Path("build")


def main() -> None:
    """Search, judge, write."""
    arguments = parser(__doc__)
    arguments.set_defaults(target="native")
    arguments.add_argument("models", type=Path, nargs="*")
    arguments.add_argument("--budget", default="8m")
    arguments.add_argument("--log", type=Path, default=_BUILD / "records.tune.db")
    arguments.add_argument("--also", type=Path, nargs="*", default=[], metavar="LOG")
    arguments.add_argument("--out", type=Path, default=FOLDER)
    given = arguments.parse_args()
    given.log.parent.mkdir(parents=True, exist_ok=True)
    models = given.models or _models()
    target = parse_target(given.target)
    machines = open_machines()
    try:
        options = Options(parse_budget(given.budget))
        with progress("records") as show:
            dlc.tune(
                models,
                given.log,
                target,
                options=options,
                machines=machines,
                at={name: size for model in models for name, size in sizes_of(model).items()},
                on_update=show,
            )
        found = _better(load_records(given.log))
        sure, speedups = judge(models, target, found, machines)
    finally:
        machines.close()
    count = write(given.out, target, sure, list(dict.fromkeys([given.log, *given.also])))
    figures = {
        "records": len(sure), "of": len(found), "ways": len(sure.decisions), "trials": count,
        "speedups": speedups,
    }  # fmt: skip
    print(figures)
    report(given.json, figures)


def _models() -> list[Path]:
    from benchmarks.cpu import models

    known = [m for m in models.MODELS if m.name in MODELS]
    return [models.find(m, _BUILD / "models", None) for m in known]


def _better(records: Records) -> Records:
    verdicts: dict[str, Verdict] = {**records.choices, **records.decisions}
    return records.only([key for key, verdict in verdicts.items() if verdict.is_better])


def judge(
    models: Sequence[Path], target: Target, records: Records, machines: Machines
) -> tuple[Records, dict[str, float]]:
    """The records of models that are faster with them for sure, and by how much each model is."""
    sure: set[str] = set()
    doubtful: set[str] = set()
    speedups = {}
    with TemporaryDirectory() as folder:
        paths = (str(Path(folder) / "plain.so"), str(Path(folder) / "tuned.so"))
        for model in models:
            lowered = lower_model(model, target, choices=records.ways, lists_forks=True)
            held = {task_key(k, target) for k in lowered.program.kernels}
            held |= {fork.key for fork in lowered.forks}
            own = held & {*records.choices, *records.decisions}
            if not own:
                continue
            build(model, paths[0], target, tuning="none")
            build(model, paths[1], target, tuning=records)
            sizes = sizes_of(Path(model))
            job = jobs.race(paths, sizes=sizes, threads=target.cores, budget_seconds=8)
            ((_, reply),) = machines.measure.run([job])
            duel = Duel(tuple(reply.data.get("lives", ())))
            (sure if duel.is_faster else doubtful).update(own)
            speedups[Path(model).stem] = duel.speedup
    return records.only(sure - doubtful), speedups


def write(folder: Path, target: Target, records: Records, logs: Sequence[Path]) -> int:
    """Write the files of the target's family; how many trials taught the cost model."""
    folder.mkdir(parents=True, exist_ok=True)
    family = folder / family_of(target)
    known = family.with_suffix(".jsonl")
    if known.exists():  # of other kernels, or of other sizes of caches
        records = load_records(known) | records
    keys = sorted(records.choices)
    if keys or records.decisions:
        with known.open("w", encoding="utf-8") as out:
            write_lines([records.tasks[key] for key in keys], out)
            write_lines([records.choices[key] for key in keys], out)
            write_lines([records.decisions[key] for key in sorted(records.decisions)], out)
    samples = [sample for log in logs for sample in _lessons(log, target)]
    model = XGBoostModel()
    model.fit(samples)
    if model.is_ready:
        model.save(family.with_suffix(".ubj"))
    return len(samples)


def _lessons(path: Path, target: Target) -> list[Sample]:
    """What the trials of a log teach that were made on the target's family of CPUs."""
    with TuningLog(path, read_only=True) as log:
        own = {t.key for t in log.tasks() if family_of(t.target) == family_of(target)}
        return [s for t in log.trials() if t.task in own and (s := sample_of(t)) is not None]


if __name__ == "__main__":
    main()
