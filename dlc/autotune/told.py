"""Which schedules a build is told to use: what names them, before a log is read.

Nothing here reads a log, or imports what schedules.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlc.autotune.apply import Records

current: ContextVar[Records | None] = ContextVar("records", default=None)
"""The records that builds use that are told nothing else."""


def default_log(model: str | Path) -> Path:
    """Where the log of a model lies unless another place is named: `model.tune.db` beside it."""
    path = Path(model)
    return path.parent / f"{path.stem}.tune.db"  # a path may lack a name; reading it will say so


def log_of(tuning: str | Path, model: str | Path) -> Path:
    """Where the log lies that a build takes by `tuning`, which is "auto" or a file."""
    return default_log(model) if tuning == "auto" else Path(tuning)


def records_key(tuning: object, model: Path, hasher: Callable[[Path], str]) -> str | None:
    """What names the records of a build; None where nothing short does.

    Those that come with dlc are files of its own, so they are part of the compiler.

    Raises:
        OSError: a log cannot be read.
    """
    if tuning == "none":
        return "none"
    if not isinstance(tuning, str | Path) or (tuning == "auto" and current.get() is not None):
        return None
    log = log_of(tuning, model)
    # The functions of `os.path` raise nothing for a name that is too long for any file.
    if tuning == "auto" and not os.path.exists(log):
        return "auto"
    if os.path.exists(f"{log}-wal"):
        return None  # somebody writes to it
    return f"{'auto' if tuning == 'auto' else 'log'} {hasher(log)}"
