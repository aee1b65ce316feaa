"""tune(): search schedules for the kernels of models, and keep those that make the model faster."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dlc.autotune.apply import Records, load_records, records_of_log
from dlc.autotune.decision import Decision, Verdict
from dlc.autotune.log import TuningLog
from dlc.autotune.record import Choice
from dlc.autotune.runners import open_machines
from dlc.autotune.session import Machines, Options, Snapshot, WayView
from dlc.autotune.task import task_key
from dlc.autotune.told import default_log
from dlc.autotune.tuner import Outcome, Tuner
from dlc.core.errors import TargetError, UserError
from dlc.core.fork import Choices
from dlc.core.machine import can_run
from dlc.core.target import Target
from dlc.find_target import find_target
from dlc.tune_graph import Alternative, Crossroads, bundles, find_alternatives, tried_before
from dlc.tune_plan import Plan, plan_tuning
from dlc.tune_race import Racers, keep_winners, known_speedup

if TYPE_CHECKING:
    from dlc.core.precision import Precision
    from dlc.frontend.onnx.interface import Dim
    from dlc.frontend.onnx.load import Model
    from dlc.frontend.onnx.structure import Structure

_LOG = logging.getLogger("dlc.tune")
_RUNNERS = "--runner says where candidates run: ssh://HOST, or 'run:qemu-aarch64 -L SYSROOT'"
_NOT_MEASURED = "schedules are measured on CPUs only, so there is nothing to choose by"
_FOR_GPUS = (
    "dlc build uses the schedules of its rules; --dry-run lists what there is to choose; on a "
    "machine with a GPU, benchmarks/gpu_layers.py of the sources searches and times"
)

_NOTHING = Snapshot(
    tasks=(), seconds=0.0, trials=0, resumed=0, failures={}, correlation=None, eta_seconds=None,
    spent=0.0, finished=True,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TuneReport:
    """What a session brought.

    Attributes:
        choices: what builds use for kernels of these models: found now, or in an earlier session.
        ways: the ways through their graphs that builds take, likewise.
        found: how many of both were found now.
        rejected: schedules and ways that won by themselves but not in the models.
        model_speedup: by which `choices` make the models faster: the least of them; 1 for nothing.
        unwritten: rows that could not be written to the log.
    """

    log: Path
    snapshot: Snapshot
    choices: Mapping[str, Choice]
    ways: Mapping[str, Decision]
    found: int
    rejected: int
    model_speedup: float
    interrupted: bool
    unwritten: int
    seconds: float


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
    graph: bool = True,
    on_update: Callable[[Snapshot], None] | None = None,
) -> TuneReport:
    """Tune one model or several. The log is where `compile` finds what was found.

    Where no model has a kernel, there is nothing to tune, and no log is made.

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
        graph: look for faster ways through the graph, too; only if the model is raced.
        on_update: called with the state of the session whenever something is known.

    Raises:
        ModelError: a model cannot be read or compiled.
        TargetError: the target is a GPU, on which nothing is measured, or another machine, and no
            `machines` that may run it; no kernel could be measured.
        UserError: the log cannot be used; there is no such task.
    """
    machine = find_target(target)
    if machine.gpu is not None:
        raise TargetError(target="cuda", reason=_NOT_MEASURED, hint=_FOR_GPUS)
    if machines is None and not can_run(machine):
        reason = "this machine cannot run what would be measured"
        name = target if isinstance(target, str) else machine.triple
        raise TargetError(target=name, reason=reason, hint=_RUNNERS)
    models: Sequence[Model] = model if isinstance(model, list | tuple) else [model]  # type: ignore[list-item]
    path = Path(log) if log is not None else _log_beside(models)
    TuningLog.check_place(path)
    began = time.monotonic()
    plan = plan_tuning(
        models, machine, dims=dims, shapes=shapes, precision=precision, only=only, at=at,
        ways=_known_ways(path),
    )  # fmt: skip
    if not plan.tasks:
        return TuneReport(
            path, _NOTHING, {}, {}, found=0, rejected=0, model_speedup=1.0, interrupted=False,
            unwritten=0, seconds=time.monotonic() - began,
        )  # fmt: skip
    threads = plan.tasks[0].task.target.cores
    chosen = options or Options()
    chosen = replace(chosen, method=replace(chosen.method, threads=threads))
    own = machines or open_machines()
    try:
        with TuningLog(path) as opened:
            ways, began_search = Crossroads(), time.monotonic()
            if graph and in_model:
                tried = tried_before(opened.decisions()) if chosen.resume else ()
                ways = find_alternatives(plan, tried, chosen.budget.seconds)
            tasks = (*plan.tasks, *ways.tasks)
            tuner = Tuner(tasks, opened, own, chosen, ways=ways, on_update=on_update)
            tuner.began = began_search
            outcome = tuner.run()
            _check_measured(tuner, machine)
            found = _Found(outcome, ways, tuner.times_ns)
            verdict = _judge(plan, found, opened, own, in_model=in_model, until=tuner.deadline)
            opened.flush()
            unwritten = len(opened.pending)
    finally:
        if machines is None:
            own.close()
    assert outcome.snapshot is not None
    return TuneReport(
        log=path,
        snapshot=replace(outcome.snapshot, ways=_final_views(ways, tuner, verdict)),
        choices=verdict.choices,
        ways=verdict.ways,
        found=verdict.found,
        rejected=verdict.rejected,
        model_speedup=verdict.speedup,
        interrupted=outcome.interrupted,
        unwritten=unwritten,
        seconds=time.monotonic() - began,
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """What a search found: schedules, and times of kernels that tell which ways are worth it."""

    outcome: Outcome
    ways: Crossroads = field(default_factory=Crossroads)
    times_ns: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What builds use after a session; the fields are those of `TuneReport`."""

    choices: Mapping[str, Choice]
    speedup: float
    found: int = 0
    rejected: int = 0
    ways: Mapping[str, Decision] = field(default_factory=dict)
    lost: Mapping[str, Decision] = field(default_factory=dict)


def _known_ways(path: Path) -> Choices:
    """The ways that won in earlier sessions; those of a damaged log are lost."""
    try:
        return load_records(path).ways if path.is_file() else Choices()
    except UserError:
        return Choices()  # opening it to write says what is wrong, or puts it aside


def _judge(
    plan: Plan,
    found: _Found,
    log: TuningLog,
    machines: Machines,
    *,
    in_model: bool,
    until: float | None = None,
) -> _Verdict:
    """Race what won alone, and note what is to be used; Ctrl-C leaves it for the next session."""
    outcome, known = found.outcome, _incumbents(plan, found.ways, log)
    incumbents: dict[str, Verdict] = {**known.choices, **known.decisions}
    fresh = {k: c for k, c in outcome.choices.items() if not _is_same(c, incumbents.get(k))}
    for way in found.ways.hopeless(found.times_ns):
        log.add_decision(way.decision(found.times_ns))
    others = {w.task.key for w in found.ways.tasks}
    new = {k: c for k, c in fresh.items() if k not in others}
    raced = bundles(found.ways.promising(found.times_ns), found.times_ns, fresh)
    kept, speedup = incumbents, known_speedup(incumbents)
    if in_model and (new or raced):
        tasks = {**known.tasks, **{w.task.key: w.task for w in (*plan.tasks, *found.ways.tasks)}}
        racers = Racers(plan.models, plan.sizes, tasks)
        try:
            kept, speedup = keep_winners(racers, new, incumbents, machines, until, raced)
        except OSError as error:  # the search must not be lost with it
            _LOG.warning("the whole model cannot be raced: %s", error)
        except KeyboardInterrupt:
            outcome.interrupted = True
            return _verdict(kept, speedup)
    tried = {**fresh, **{k: v for part in raced for k, v in part.items()}}
    won = {k: kept[k] for k in tried if k in kept and kept[k] is not incumbents.get(k)}
    lost = {k: v for k, v in tried.items() if k not in won}
    for verdict in (*won.values(), *(v for k, v in lost.items() if k not in incumbents)):
        _note(log, verdict)  # also what lost, so that all can see it
    return _verdict(kept, speedup, won, lost)


def _incumbents(plan: Plan, ways: Crossroads, log: TuningLog) -> Records:
    """What won earlier for kernels and forks of these models, and still holds."""
    keys = {task_key(k, m.target) for m in plan.models for k in m.program.kernels}
    keys |= {w.task.key for w in ways.tasks} | {f.key for m in plan.models for f in m.forks}
    return records_of_log(log).only(keys).holding()


def _verdict(
    kept: Mapping[str, Verdict],
    speedup: float,
    won: Mapping[str, Verdict] | None = None,
    lost: Mapping[str, Verdict] | None = None,
) -> _Verdict:
    choices = {k: v for k, v in kept.items() if isinstance(v, Choice)}
    return _Verdict(
        choices, speedup, len(won or ()), len(lost or ()), _ways_in(kept), _ways_in(lost or {})
    )


def _ways_in(verdicts: Mapping[str, Verdict]) -> dict[str, Decision]:
    return {k: v for k, v in verdicts.items() if isinstance(v, Decision)}


def _final_views(ways: Crossroads, tuner: Tuner, verdict: _Verdict) -> tuple[WayView, ...]:
    """The ways as they ended."""
    views = ways.views(tuner.times_ns)
    pairs = zip(views, ways.alternatives, strict=True)
    return tuple(replace(view, status=_ended(way, verdict) or view.status) for view, way in pairs)


def _ended(way: Alternative, verdict: _Verdict) -> str:
    for word, found in (("won", verdict.ways), ("lost", verdict.lost)):
        decision = found.get(way.fork.key)
        if decision is not None and decision.option == way.option:
            return word
    return ""


def _note(log: TuningLog, verdict: Verdict) -> None:
    if isinstance(verdict, Decision):
        log.add_decision(verdict)
    else:
        log.add_choice(verdict)


def _is_same(choice: Choice, other: Verdict | None) -> bool:
    return isinstance(other, Choice) and choice.nest == other.nest


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
