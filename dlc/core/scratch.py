"""Temporary folders that do not outlive a killed process for long."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "dlc-scratch-"
_NEW_SECONDS = 60.0  # in which the owner of a folder has surely locked it


@contextlib.contextmanager
def scratch_folder(*, watched: bool = False) -> Iterator[Path]:
    """A folder of one's own while the `with` lasts.

    A process that is killed leaves its folder behind; the next one that makes a folder removes it.
    Whether its owner lives is told by a lock, which ends with the process. One that is `watched`
    is removed at once, by a small process that waits for the end of this one: for work that takes
    long, and is often stopped.

    Raises:
        OSError: there is no place for it.
    """
    _sweep(Path(tempfile.gettempdir()))
    with contextlib.ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix=_PREFIX))
        stack.enter_context(_locked(Path(name)))
        if watched:
            stack.enter_context(_watch(name))
        yield Path(name)


@contextlib.contextmanager
def _watch(folder: str) -> Iterator[None]:
    """Have a folder removed when this process ends in the `with`, however it does.

    The watcher reads from a pipe that nobody writes to, and whose other end closes with this
    process. It has a session of its own, so that no signal from a terminal ends it.
    """
    command = ("sh", "-c", 'while read -r _; do :; done; rm -rf -- "$0"', folder)
    try:
        watcher = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    except OSError:  # no shell: the next process that makes a folder removes this one
        yield
        return
    with watcher:
        try:
            yield
        finally:
            watcher.kill()  # a child of this process may hold the pipe; the folder goes without it


def _sweep(root: Path) -> None:
    """Remove the folders of processes that are no more."""
    for folder in root.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > _NEW_SECONDS:
                with _locked(folder):
                    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder.

    Raises:
        OSError: another process holds it.
    """
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(file)
