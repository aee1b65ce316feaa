"""The environment variables dlc reads: these four and no more.

This is the only module that may touch `os.environ`; the linter refuses it anywhere else.
`DLC_NUM_THREADS` is read by the C++ runtime too, with the same meaning.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from dlc.core.count import is_number
from dlc.core.errors import UserError

MAX_THREADS = 1024
"""Of the process-wide pool: `kMaxThreads` of `runtime/cpp/src/thread_pool.h`."""


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable: its name and what it does."""

    name: str
    meaning: str


NUM_THREADS = Variable(
    "DLC_NUM_THREADS",
    f"threads of the process-wide pool, 1 to {MAX_THREADS}; "
    "default: what affinity and cgroup quota allow",
)
CACHE_DIR = Variable(
    "DLC_CACHE_DIR",
    "folder of compiled kernels and large artefacts; default: the user's cache folder",
)
DUMP = Variable("DLC_DUMP", "folder that receives a numbered dump of every step that changed an IR")
LOG = Variable("DLC_LOG", "comma-separated topics to log: rewrite, schedule, tune")

VARIABLES = (NUM_THREADS, CACHE_DIR, DUMP, LOG)


def num_threads() -> int | None:
    """The number of threads asked for, or None where nothing is asked.

    Raises:
        UserError: the value is not a whole number from 1 to `MAX_THREADS`.
    """
    text = _read(NUM_THREADS)
    if text is None:
        return None
    if not (is_number(text) and 1 <= int(text) <= MAX_THREADS):
        hint = f"give a whole number from 1 to {MAX_THREADS}"
        raise UserError(detail=f"{NUM_THREADS.name} is '{text}'", hint=hint)
    return int(text)


def cache_dir() -> Path | None:
    """The folder for compiled kernels, or None for the user's cache folder."""
    return _path(CACHE_DIR)


def dump_dir() -> Path | None:
    """The folder for dumps, or None where none are wanted."""
    return _path(DUMP)


def log_topics() -> frozenset[str]:
    """The topics to log."""
    topics = (topic.strip() for topic in (_read(LOG) or "").split(","))
    return frozenset(topic for topic in topics if topic)


def _path(variable: Variable) -> Path | None:
    text = _read(variable)
    return None if text is None else Path(text).expanduser()


def _read(variable: Variable) -> str | None:
    """The value without surrounding blanks; an empty value counts as absent."""
    return os.environ.get(variable.name, "").strip() or None
