"""Logs as text, one JSON document a line: to look at, to send, to keep under version control."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from dlc.autotune.decision import Decision, best_decisions, decision_from_json
from dlc.autotune.log import TuningLog
from dlc.autotune.record import Choice, Trial, choice_from_json, trial_from_json
from dlc.autotune.task import Task, task_from_json
from dlc.core.errors import DlcError

SCHEMA = "dlc.tuning/1"
_Entry = Task | Trial | Choice | Decision
_READERS: dict[str, Callable[[dict[str, Any]], _Entry]] = {
    "task": task_from_json,
    "trial": trial_from_json,
    "choice": choice_from_json,
    "decision": decision_from_json,
}


def export_log(log: TuningLog, out: IO[str], *, choices_only: bool = False) -> int:
    """Write a log as lines; return how many. `choices_only` leaves out the trials."""
    choices = log.choices()
    entries: list[_Entry] = [
        task for task in log.tasks() if not choices_only or task.key in choices
    ]
    entries += [] if choices_only else list(log.trials())
    entries += [choices[key] for key in sorted(choices)]
    decisions = list(log.decisions())
    entries += best_decisions(decisions).values() if choices_only else decisions
    write_lines(entries, out)
    return len(entries)


def write_lines(entries: Iterable[_Entry], out: IO[str]) -> None:
    """Write each entry as a line that says what it is."""
    for entry in entries:
        kind = type(entry).__name__.lower()
        out.write(json.dumps({"schema": SCHEMA, kind: entry.to_json()}, sort_keys=True) + "\n")


def read_lines(lines: Iterable[str]) -> Iterator[_Entry | None]:
    """What each line says; None for a line that cannot be read, as the last of a cut file."""
    for line in lines:
        if not line.strip():
            continue
        found: _Entry | None = None
        with contextlib.suppress(ValueError, DlcError):
            data = json.loads(line)
            if isinstance(data, dict) and data.get("schema") == SCHEMA:
                for kind, read in _READERS.items():
                    if isinstance(data.get(kind), dict):
                        found = read(data[kind])
        yield found


def import_lines(log: TuningLog, lines: Iterable[str]) -> tuple[int, int]:
    """Add lines to a log; what it has already is not added again.

    Returns:
        Lines read, and lines passed over because they cannot be read.
    """
    good = bad = 0
    for entry in read_lines(lines):
        good, bad = good + (entry is not None), bad + (entry is None)
        match entry:
            case Task():
                log.add_task(entry)
            case Trial():
                log.add_trial(entry)
            case Choice():
                log.add_choice(entry)
            case Decision():
                log.add_decision(entry)
            case None:
                pass
    return good, bad


def merge_logs(target: TuningLog, sources: Iterable[Path]) -> int:
    """Add what other logs hold to `target`; return the rows that were passed over as damaged.

    Raises:
        UserError: a source is not a log.
    """
    damaged = 0
    for path in sources:
        with TuningLog(path, read_only=True) as source:
            for task in source.tasks():
                target.add_task(task)
            for trial in source.trials():
                target.add_trial(trial)
            for choice in source.choices().values():
                target.add_choice(choice)
            for decision in source.decisions():
                target.add_decision(decision)
            damaged += source.corrupt
    return damaged
