"""tune(): search schedules for the kernels of models, and keep those that make the model faster."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dlc.autotune.apply import Records, default_log
from dlc.autotune.log import TuningLog
from dlc.autotune.record import Choice
from dlc.autotune.runners import open_machines
from dlc.autotune.session import Machines, Options, Snapshot, Weighted
from dlc.autotune.task import Task, make_task, task_key
from dlc.autotune.tuner import Outcome, Tuner
from dlc.core.errors import TargetError, UserError
from dlc.core.target import Target
from dlc.core.target_parse import parse_target
from dlc.lowering import Lowered, lower_model
from dlc.schedule.interpret import evaluate_size
from dlc.schedule.program import BindSize, CallKernel, HostIf, HostLoop, HostStmt, Program, SizeVar
from dlc.te.expr import Expr
from dlc.te.transform import loads
from dlc.tune_race import Racers, keep_winners, known_speedup

if TYPE_CHECKING:
    from onnx import ModelProto

    from dlc.core.precision import Precision
    from dlc.frontend.onnx.interface import Dim
    from dlc.frontend.onnx.structure import Structure

    Model = str | Path | bytes | ModelProto

_LOG = logging.getLogger("dlc.tune")
_RUNNERS = "--runner says where candidates run: ssh://HOST, or 'run:qemu-aarch64 -L SYSROOT'"
_NOT_MEASURED = "schedules are measured on CPUs only, so there is nothing to choose by"
_FOR_GPUS = (
    "dlc build uses the schedules of its rules; --dry-run lists what there is to choose; on a "
    "machine with a GPU, benchmarks/gpu_layers.py of the sources searches and times"
)


@dataclass(frozen=True, slots=True)
class TuneReport:
    """What a session brought.

    Attributes:
        choices: what builds use for kernels of these models: found now, or in an earlier session.
        found: how many of them were found now.
        rejected: schedules that won by themselves but not in the models.
        model_speedup: by which `choices` make the models faster: the least of them; 1 for nothing.
        unwritten: rows that could not be written to the log.
    """

    log: Path
    snapshot: Snapshot
    choices: Mapping[str, Choice]
    found: int
    rejected: int
    model_speedup: float
    interrupted: bool
    unwritten: int
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
    at: Mapping[str, int] | None = None,
) -> Plan:
    """The tasks of models. An open size is measured as `at` says, else at its least value or 1.

    Raises:
        ModelError: a model cannot be read or compiled.
        UserError: no kernel's name contains `only`; `at` names no open size, or a value beyond it.
    """
    machine = parse_target(target) if isinstance(target, str) else target
    lowered = [
        lower_model(m, machine, dims=dims, shapes=shapes, precision=precision) for m in models
    ]
    found: dict[str, Weighted] = {}
    sizes: dict[str, int] = {}
    for model in lowered:
        known = model.imported.interface.sizes
        values = {
            s.name: _measured_at(s, known.get(s.name, s.name), at or {})
            for s in model.program.sizes
        }
        sizes |= {known.get(name, name): value for name, value in values.items()}
        for task, calls in extract_tasks(model.program, machine, values):
            before = found.get(task.key)
            found[task.key] = Weighted(task, calls + (before.calls if before else 0))
    if unknown := [name for name in at or {} if name not in sizes]:
        hint = f"open are {', '.join(sizes)}" if sizes else "no size is open"
        raise UserError(detail=f"there is no open size '{unknown[0]}' to measure at", hint=hint)
    tasks = tuple(w for w in found.values() if only in w.task.name)
    if not tasks:
        names = ", ".join(sorted({w.task.name for w in found.values()}))
        hint = f"the kernels are {names}" if names else "the model has no kernels"
        raise UserError(detail=f"there is no task '{only}'", hint=hint)
    return Plan(tasks, tuple(lowered), sizes)


def _measured_at(size: SizeVar, name: str, at: Mapping[str, int]) -> int:
    """The value that stands for an open size."""
    value = at.get(name, max(1, size.minimum))
    if value < size.minimum or (size.maximum is not None and value > size.maximum):
        most = f" to {size.maximum}" if size.maximum is not None else " on"
        raise UserError(detail=f"'{name}' cannot be {value}: it is open from {size.minimum}{most}")
    return value


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
    at: Mapping[str, int] | None = None,
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
        options: the budget, which the verdict is part of; the search; how to time.
        only: tune only tasks whose name contains this.
        at: values of open sizes to measure at; one that is not named is its least, or 1.
        machines: where to build and to measure; default: this machine.
        in_model: race the whole model with and without what was found, and keep what wins. Without
            it nothing is marked as better than the default.
        on_update: called with the state of the session whenever something is known.

    Raises:
        ModelError: a model cannot be read or compiled.
        TargetError: the target is a GPU, on which nothing is measured; no kernel could be measured.
        UserError: the log cannot be used; there is no such task.
    """
    machine = parse_target(target) if isinstance(target, str) else target
    if machine.gpu is not None:
        raise TargetError(target="cuda", reason=_NOT_MEASURED, hint=_FOR_GPUS)
    models: Sequence[Model] = model if isinstance(model, list | tuple) else [model]  # type: ignore[list-item]
    path = Path(log) if log is not None else _log_beside(models)
    TuningLog.check_place(path)
    began = time.monotonic()
    plan = plan_tuning(
        models, machine, dims=dims, shapes=shapes, precision=precision, only=only, at=at
    )
    threads = plan.tasks[0].task.target.cores
    chosen = options or Options()
    chosen = replace(chosen, method=replace(chosen.method, threads=threads))
    own = machines or open_machines()
    try:
        with TuningLog(path) as opened:
            tuner = Tuner(plan.tasks, opened, own, chosen, on_update=on_update)
            outcome = tuner.run()
            _check_measured(tuner, machine)
            verdict = _judge(plan, outcome, opened, own, in_model=in_model, until=tuner.deadline)
            opened.flush()
            unwritten = len(opened.pending)
    finally:
        if machines is None:
            own.close()
    assert outcome.snapshot is not None
    return TuneReport(
        log=path,
        snapshot=outcome.snapshot,
        choices=verdict.choices,
        found=verdict.found,
        rejected=verdict.rejected,
        model_speedup=verdict.speedup,
        interrupted=outcome.interrupted,
        unwritten=unwritten,
        seconds=time.monotonic() - began,
    )


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What builds use after a session; the fields are those of `TuneReport`."""

    choices: Mapping[str, Choice]
    speedup: float
    found: int = 0
    rejected: int = 0


def _judge(
    plan: Plan,
    outcome: Outcome,
    log: TuningLog,
    machines: Machines,
    *,
    in_model: bool,
    until: float | None = None,
) -> _Verdict:
    """Race what won alone, and note what is to be used; Ctrl-C leaves it for the next session."""
    kernels = (task_key(k, m.target) for m in plan.models for k in m.program.kernels)
    known = Records({t.key: t for t in log.tasks()}, log.choices()).only(set(kernels)).holding()
    incumbents = dict(known.choices)
    new = {k: c for k, c in outcome.choices.items() if not _is_same(c, incumbents.get(k))}
    kept, speedup = incumbents, known_speedup(incumbents)
    if in_model and new:
        tasks = {**known.tasks, **{w.task.key: w.task for w in plan.tasks}}
        racers = Racers(plan.models, plan.sizes, tasks)
        try:
            kept, speedup = keep_winners(racers, new, incumbents, machines, until)
        except OSError as error:  # the search must not be lost with it
            _LOG.warning("the whole model cannot be raced: %s", error)
        except KeyboardInterrupt:
            outcome.interrupted = True
            return _Verdict(kept, speedup)
    won = [k for k in new if k in kept and kept[k] is not incumbents.get(k)]
    for key, choice in new.items():
        if key in won:
            log.add_choice(kept[key])
        elif key not in incumbents:
            log.add_choice(choice)  # so that all can see that it lost
    return _Verdict(kept, speedup, len(won), len(new) - len(won))


def _is_same(choice: Choice, other: Choice | None) -> bool:
    return other is not None and choice.nest == other.nest


def _check_measured(tuner: Tuner, target: Target) -> None:
    """A session that could not time a single default says nothing about schedules."""
    failed = [s.problem_text for s in tuner.searches if s.default_ns == float("inf")]
    if tuner.searches and len(failed) == len(tuner.searches) and all(failed):
        reason = f"nothing could be measured: {failed[0]}"
        raise TargetError(target=target.triple, reason=reason, hint=_RUNNERS)


def _log_beside(models: Sequence[Model]) -> Path:
    if isinstance(models[0], str | Path):
        return default_log(models[0])
    raise UserError(detail="a model without a path needs a log", hint="give log=")
