"""Temporary folders that do not outlive a killed process for long."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "dlc-scratch-"
_NEW_SECONDS = 60.0  # in which the owner of a folder has surely locked it


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder of one's own while the `with` lasts.

    A process that is killed leaves its folder behind; the next one that makes a folder removes it.
    Whether its owner lives is told by a lock, which ends with the process.

    Raises:
        OSError: there is no place for it.
    """
    _sweep(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name, _locked(Path(name)):
        yield Path(name)


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
