"""Use what a search found: the schedule of a record for the kernel it was made for, and no other.

A record says that one loop nest ran faster than another, which was the rule's own. It is used where
both are what they were: the steps still lead to the one, and the rule to the other.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from dlc.autotune.decision import Decision, best_decisions
from dlc.autotune.exchange import read_lines
from dlc.autotune.log import TuningLog
from dlc.autotune.nest import nest_hash
from dlc.autotune.record import Choice
from dlc.autotune.shipped import shipped_files
from dlc.autotune.task import Task, task_key
from dlc.autotune.told import current, default_log
from dlc.autotune.versions import versions
from dlc.codegen.llvm.worker import KernelJob
from dlc.core.errors import DlcError, UserError
from dlc.core.fork import Choices
from dlc.schedule.pipeline import optimize
from dlc.schedule.text import canonical_text

_LOG = logging.getLogger("dlc.tune")


@dataclass(frozen=True, slots=True)
class Records:
    """Schedules by the key of their task, and ways through the graph by that of their fork.

    Where two logs know a task or a fork, the later one counts.
    """

    tasks: Mapping[str, Task] = field(default_factory=dict)
    choices: Mapping[str, Choice] = field(default_factory=dict)
    decisions: Mapping[str, Decision] = field(default_factory=dict)

    def __len__(self) -> int:
        """The number of tasks with a schedule better than the default."""
        return sum(choice.is_better for choice in self.choices.values())

    def __or__(self, other: Records) -> Records:
        """These records and later ones, which count where both know a task, unless they lost."""
        later = {k: c for k, c in other.choices.items() if c.replaces(self.choices.get(k))}
        decisions = best_decisions((*self.decisions.values(), *other.decisions.values()))
        return Records({**self.tasks, **other.tasks}, {**self.choices, **later}, decisions)

    @property
    def ways(self) -> Choices:
        """The ways through the graph that won."""
        return Choices({k: d.way for k, d in self.decisions.items() if d.is_better})

    def tuned(self, job: KernelJob) -> KernelJob:
        """The job with the steps of its record; as it is where it has steps, or no record holds."""
        if not self.choices or job.steps is not None:
            return job
        key = task_key(job.func, job.target)
        choice, task = self.choices.get(key), self.tasks.get(key)
        if choice is None or task is None or not choice.is_better:
            return job
        # The steps name loops and buffers of the task's function, which is this one but for names.
        if canonical_text(task.func) != canonical_text(job.func):
            return job
        if reason := _why_not_valid(choice, task):
            _LOG.info("the record of '%s' is not used: %s", job.name, reason)
            return job
        return replace(job, func=task.func, steps=choice.plan)

    def only(self, keys: Iterable[str]) -> Records:
        """The records of some tasks and forks."""
        wanted = set(keys)
        choices = {k: c for k, c in self.choices.items() if k in wanted}
        decisions = {k: d for k, d in self.decisions.items() if k in wanted}
        return Records(self.tasks, choices, decisions)

    def holding(self) -> Records:
        """The records that a build uses if it has their kernels."""
        held = (k for k, c in self.choices.items() if c.is_better and k in self.tasks)
        valid = [k for k in held if not _why_not_valid(self.choices[k], self.tasks[k])]
        return self.only([*valid, *self.ways.ways])


Tuning = str | Path | Records  # "auto", "none", the path of a log, or records


def load_records(path: str | Path) -> Records:
    """The records of a log, or of a file of JSON lines.

    Raises:
        UserError: there is no such file, or it is neither.
    """
    file = Path(path)
    if file.suffix == ".jsonl":
        try:
            return _records_of(file.read_text(encoding="utf-8").splitlines())
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(detail=f"{file}: {error}") from error
    with TuningLog(file, read_only=True) as log:
        return records_of_log(log)


def records_of_log(log: TuningLog) -> Records:
    """What a log holds for builds."""
    tasks = {t.key: t for t in log.tasks()}
    return Records(tasks, log.choices(), best_decisions(log.decisions()))


def find_records(tuning: Tuning, model: str | Path | None = None) -> Records:
    """The records that a build is asked to use; `model` is its path, if it has one.

    Raises:
        UserError: a log that is named cannot be read.
    """
    if isinstance(tuning, Records):
        return tuning
    if tuning == "none":
        return Records()
    if tuning != "auto":
        return load_records(tuning)
    given = current.get()
    if given is not None:
        return given
    found = shipped_records()
    beside = default_log(model) if model is not None else None
    if beside is not None and os.path.isfile(beside):  # its name may be too long for any file
        try:
            found |= load_records(beside)
        except UserError as error:
            why = str(error.fields["detail"])
            _LOG.warning("%s; the build goes on without it; --tuning none does not look", why)
    return found


def shipped_records() -> Records:
    """The records that come with dlc."""
    return _read_once(tuple(shipped_files()))


@functools.cache
def _read_once(files: tuple[Path, ...]) -> Records:
    found = Records()
    for file in files:
        found |= _records_of(file.read_text(encoding="utf-8").splitlines())
    return found


@contextlib.contextmanager
def apply_best(path: str | Path | Records) -> Iterator[Records]:
    """Builds inside of the `with` use these records, unless they are told otherwise.

    Raises:
        UserError: the log cannot be read.
    """
    records = path if isinstance(path, Records) else load_records(path)
    token = current.set(records)
    try:
        yield records
    finally:
        current.reset(token)


def _records_of(lines: Iterable[str]) -> Records:
    tasks: dict[str, Task] = {}
    choices: dict[str, Choice] = {}
    decisions: list[Decision] = []
    for entry in read_lines(lines):
        match entry:
            case Task():
                tasks[entry.key] = entry
            case Choice() if entry.replaces(choices.get(entry.task)):
                choices[entry.task] = entry
            case Decision():
                decisions.append(entry)
            case _:
                pass
    return Records(tasks, choices, best_decisions(decisions))


def _why_not_valid(choice: Choice, task: Task) -> str:
    """Why a record says nothing about this compiler, or an empty text."""
    if choice.versions == versions():
        return ""  # measured with this very compiler
    try:
        if nest_hash(optimize(task.func, task.target)) != choice.default_nest:
            return "the default schedule is another one by now"
        if nest_hash(optimize(task.func, task.target, choice.plan)) != choice.nest:
            return "its steps lead to another loop nest by now"
    except DlcError as error:
        return str(error)
    return ""
