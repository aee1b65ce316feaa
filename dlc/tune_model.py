"""tune(): search schedules for the kernels of models, and keep those that make the model faster."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING

from dlc.autotune import job as jobs
from dlc.autotune.apply import Records, default_log
from dlc.autotune.log import TuningLog
from dlc.autotune.record import Choice, quartile
from dlc.autotune.runners import open_machines
from dlc.autotune.session import Machines, Options, Snapshot, Weighted
from dlc.autotune.task import Task, make_task, task_key
from dlc.autotune.tuner import Tuner
from dlc.compiler import Lowered, assemble, lower_model, rules_own
from dlc.core.errors import DlcError, TargetError, UserError
from dlc.core.scratch import scratch_folder
from dlc.core.target import Target
from dlc.core.target_parse import parse_target
from dlc.schedule.interpret import evaluate_size
from dlc.schedule.program import BindSize, CallKernel, HostIf, HostLoop, HostStmt, Program
from dlc.te.expr import Expr
from dlc.te.transform import loads

if TYPE_CHECKING:
    from onnx import ModelProto

    from dlc.core.precision import Precision
    from dlc.frontend.onnx.interface import Dim
    from dlc.frontend.onnx.structure import Structure

    Model = str | Path | bytes | ModelProto

_LOG = logging.getLogger("dlc.tune")
_MAX_RACES = 12  # of whole models, in one session
_NOT_MEASURED = "schedules are measured on CPUs only, so there is nothing to choose by"
_FOR_GPUS = (
    "dlc build uses the schedules of its rules; --dry-run lists what there is to choose; on a "
    "machine with a GPU, benchmarks/gpu_layers.py of the sources searches and times"
)
_CERTAIN = 1.64  # standard deviations; one chance in twenty


@dataclass(frozen=True, slots=True)
class TuneReport:
    """What a session brought.

    `model_speedup` is that of the first model with all that is kept, 1 where nothing is.
    """

    log: Path
    snapshot: Snapshot
    choices: Mapping[str, Choice]
    rejected: int  # schedules that won by themselves but not in the model
    model_speedup: float
    interrupted: bool
    unwritten: int  # rows that could not be written to the log
    seconds: float


@dataclass(frozen=True, slots=True)
class Plan:
    """What would be tuned: tasks with how often a run does them, and the models they come from."""

    tasks: tuple[Weighted, ...]
    models: tuple[Lowered, ...] = field(repr=False)
    sizes: Mapping[str, int]


def plan_tuning(
    models: Sequence[Model],
    target: str | Target = "native",
    *,
    dims: Mapping[str, Dim] | None = None,
    shapes: Mapping[str, Structure] | None = None,
    precision: Precision = "highest",
    only: str = "",
) -> Plan:
    """The tasks of models. A dimension with a range is measured at the lower end, or at 1.

    Raises:
        ModelError: a model cannot be read or compiled.
        UserError: no kernel's name contains `only`.
    """
    machine = parse_target(target) if isinstance(target, str) else target
    lowered = [
        lower_model(m, machine, dims=dims, shapes=shapes, precision=precision) for m in models
    ]
    found: dict[str, Weighted] = {}
    sizes: dict[str, int] = {}
    for model in lowered:
        known = model.imported.interface.sizes
        values = {s.name: max(1, s.minimum) for s in model.program.sizes}
        sizes |= {known.get(name, name): value for name, value in values.items()}
        for task, calls in extract_tasks(model.program, machine, values):
            before = found.get(task.key)
            found[task.key] = Weighted(task, calls + (before.calls if before else 0))
    tasks = tuple(w for w in found.values() if only in w.task.name)
    if not tasks:
        names = ", ".join(sorted({w.task.name for w in found.values()}))
        hint = f"the kernels are {names}" if names else "the model has no kernels"
        raise UserError(detail=f"there is no task '{only}'", hint=hint)
    return Plan(tasks, tuple(lowered), sizes)


def extract_tasks(
    program: Program, target: Target, sizes: Mapping[str, int]
) -> list[tuple[Task, int]]:
    """The kernels of a program, each with how often a run calls it at some sizes."""
    calls: dict[str, int] = {}
    measured_at: dict[str, dict[str, int]] = {}
    kernels = {kernel.name: kernel for kernel in program.kernels}

    def visit(body: Iterable[HostStmt], values: dict[str, int], times: int) -> None:
        for stmt in body:
            match stmt:
                case CallKernel(name, given, _):
                    calls[name] = calls.get(name, 0) + times
                    pairs = zip(kernels[name].sizes, given, strict=True)
                    own = {s: _value(e, values) for s, e in pairs}
                    measured_at.setdefault(name, own)
                case HostIf(_, then, other):
                    visit(then, values, times)
                    visit(other, values, times)
                case HostLoop(var, extent, inner):
                    count = max(0, _value(extent, values))
                    visit(inner, {**values, var: 0}, times * count)
                case BindSize(name, value, _):
                    values[name] = max(0, _value(value, values))
                case _:
                    pass

    visit(program.body, dict(sizes), 1)
    return [(make_task(kernels[n], target, measured_at[n]), count) for n, count in calls.items()]


def _value(size: Expr, values: Mapping[str, int]) -> int:
    """A size; 1 where only the data tells it."""
    return 1 if any(True for _ in loads(size)) else evaluate_size(size, values)


def tune(
    model: Model | Sequence[Model],
    log: str | Path | None = None,
    target: str | Target = "native",
    *,
    dims: Mapping[str, Dim] | None = None,
    shapes: Mapping[str, Structure] | None = None,
    precision: Precision = "highest",
    options: Options | None = None,
    only: str = "",
    machines: Machines | None = None,
    in_model: bool = True,
    on_update: Callable[[Snapshot], None] | None = None,
) -> TuneReport:
    """Tune one model or several. The log is where `compile` finds what was found.

    Args:
        model: a path, bytes or a `ModelProto`, or several.
        log: the file that holds all trials; it is taken up again. Default: `model.tune.db`.
        target: as for `compile`.
        dims: as for `compile`.
        shapes: as for `compile`.
        precision: as for `compile`.
        options: the budget, the search and how to time.
        only: tune only tasks whose name contains this.
        machines: where to build and to measure; default: this machine.
        in_model: race the whole model with and without what was found, and keep what wins. Without
            it nothing is marked as better than the default.
        on_update: called with the state of the session whenever something is known.

    Raises:
        ModelError: a model cannot be read or compiled.
        TargetError: the target is a GPU, on which nothing is measured.
        UserError: the log cannot be used; there is no such task.
    """
    machine = parse_target(target) if isinstance(target, str) else target
    if machine.gpu is not None:
        raise TargetError(target="cuda", reason=_NOT_MEASURED, hint=_FOR_GPUS)
    models: Sequence[Model] = model if isinstance(model, list | tuple) else [model]  # type: ignore[list-item]
    path = Path(log) if log is not None else _log_beside(models)
    began = time.monotonic()
    plan = plan_tuning(models, machine, dims=dims, shapes=shapes, precision=precision, only=only)
    threads = plan.tasks[0].task.target.cores
    chosen = options or Options()
    chosen = replace(chosen, method=replace(chosen.method, threads=threads))
    own = machines or open_machines()
    try:
        with TuningLog(path) as opened:
            tuner = Tuner(plan.tasks, opened, own, chosen, on_update=on_update)
            outcome = tuner.run()
            kept: dict[str, Choice] = {}
            speedup = 1.0
            if in_model and outcome.choices and not outcome.interrupted:
                try:
                    kept, speedup = _race(plan, outcome.choices, own)
                except OSError as error:  # the search must not be lost with it
                    _LOG.warning("the whole model cannot be raced: %s", error)
            for key, choice in outcome.choices.items():
                opened.add_choice(kept.get(key, choice))
            opened.flush()
            unwritten = len(opened.pending)
    finally:
        if machines is None:
            own.close()
    assert outcome.snapshot is not None
    return TuneReport(
        log=path,
        snapshot=outcome.snapshot,
        choices=kept,
        rejected=len(outcome.choices) - len(kept),
        model_speedup=speedup,
        interrupted=outcome.interrupted,
        unwritten=unwritten,
        seconds=time.monotonic() - began,
    )


def _log_beside(models: Sequence[Model]) -> Path:
    if isinstance(models[0], str | Path):
        return default_log(models[0])
    raise UserError(detail="a model without a path needs a log", hint="give log=")


def _race(
    plan: Plan, choices: Mapping[str, Choice], machines: Machines
) -> tuple[dict[str, Choice], float]:
    """Keep the choices with which the whole model is faster, and tell by how much in the end.

    All together first. Where that does not win, each half on top of what was kept before.
    """
    tasks = {w.task.key: w.task for w in plan.tasks}
    kept: dict[str, Choice] = {}
    final = 1.0
    with scratch_folder() as folder:
        races = _Races(plan, tasks, machines, folder)
        waiting = [list(choices)]
        while waiting and races.count < _MAX_RACES:
            group = waiting.pop(0)
            trial = kept | {k: choices[k] for k in group}
            speedup = races.speedup(trial, kept)
            if speedup > 1.0:
                kept = trial
            elif len(group) > 1:
                half = len(group) // 2
                waiting += [group[:half], group[half:]]
        if kept:
            final = races.speedup(kept, {})
            if final <= 1.0:
                return {}, 1.0
    return {k: replace(c, model_speedup=round(final, 4)) for k, c in kept.items()}, final


class _Races:
    """Whole models, with and without some choices."""

    def __init__(
        self, plan: Plan, tasks: Mapping[str, Task], machines: Machines, folder: Path
    ) -> None:
        self.plan, self.tasks, self.machines, self.folder = plan, tasks, machines, folder
        self.count = 0
        self.keys = [{task_key(k, m.target) for k in m.program.kernels} for m in plan.models]
        self._known: dict[tuple[frozenset[str], frozenset[str]], float] = {}

    def speedup(self, new: Mapping[str, Choice], old: Mapping[str, Choice]) -> float:
        """How much faster the models are with `new` than with `old`; 0 unless it is certain.

        It counts for the models that hold one of the kernels.
        """
        pair = (frozenset(new), frozenset(old))
        if pair not in self._known:
            self.count += 1
            changed = {k for k in {*new, *old} if new.get(k) != old.get(k)}
            concerned = [n for n, own in enumerate(self.keys) if own & changed]
            speedups = (self._one(n, self.plan.models[n], new, old) for n in concerned)
            self._known[pair] = min(speedups, default=0.0)
        return self._known[pair]

    def _one(
        self, number: int, model: Lowered, new: Mapping[str, Choice], old: Mapping[str, Choice]
    ) -> float:
        try:
            paths = (self._build(number, model, old), self._build(number, model, new))
        except (OSError, DlcError) as error:
            _LOG.warning("the whole model cannot be raced: %s", error)
            return 0.0
        threads = model.target.cores
        job = jobs.race(paths, sizes=self.plan.sizes, threads=threads)
        ((_, reply),) = self.machines.measure.run([job])
        if reply.data["status"] != "ok":
            return 0.0
        before, after = reply.data["times_ns"]
        if not is_faster(before, after):
            return 0.0
        return quartile(before) / quartile(after)

    def _build(self, number: int, model: Lowered, choices: Mapping[str, Choice]) -> str:
        name = "-".join(sorted(key[:6] for key in choices)) or "default"
        path = self.folder / f"{number}-{name[:80]}-{len(choices)}.so"
        if not path.exists():
            # For this race the choices count as better, which is what it is to find out.
            trusted = {k: replace(c, model_speedup=c.speedup) for k, c in choices.items()}
            assemble(model, path, Records(self.tasks, trusted), rules_own)
        return str(path)


def is_faster(before: Sequence[int], after: Sequence[int]) -> bool:
    """Whether runs taken in turn show that the second kind is faster, and not by chance.

    Source: the sign test; Arbuthnot, An Argument for Divine Providence (1710).
    """
    pairs = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
    if not pairs:
        return False
    wins = sum(b < a for a, b in pairs)
    deviations = (wins - len(pairs) / 2) / sqrt(len(pairs) / 4)
    return deviations > _CERTAIN and quartile(after) < quartile(before)
