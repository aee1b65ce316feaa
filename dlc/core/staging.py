"""A file that others see is complete: it is made beside its place, and takes it in one step."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from dlc.core.errors import UserError, show_os_error


@contextlib.contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """What the operating system says against writing `path` is a user's error.

    Of a draft the error names what it is to become.

    Raises:
        UserError: an OSError was raised inside.
    """
    try:
        yield
    except OSError as error:
        reason = show_os_error(error)
        raise UserError(detail=f"cannot write {_becomes(Path(path))}: {reason}") from error


def _becomes(path: Path) -> Path:
    """What a draft of `staging` takes the place of, drafts of drafts too."""
    while path.parent.name.startswith(_folder_prefix(path)):
        path = path.parent.parent / path.name
    return path


def _folder_prefix(path: Path) -> str:
    return f".{path.name}."


@contextlib.contextmanager
def staging(path: Path) -> Iterator[Path]:
    """Where to make a file that is to be `path`, until `draft.replace(path)`.

    The draft lies in a new folder beside `path`, which may hold what is made on the way, too, and
    which goes in any case.

    Raises:
        UserError: nothing can be written at `path`; what was there still is.
    """
    from tempfile import TemporaryDirectory  # takes longer to import than it takes to say no

    # The functions of `os.path` raise nothing; what the system says comes when a folder is made.
    if os.path.isdir(path):
        raise UserError(detail=f"cannot write {path}: it is a folder", hint="name a file in it")
    if os.path.exists(path) and not os.path.isfile(path):
        raise UserError(
            detail=f"cannot write {path}: it is no regular file, and would be replaced by one",
            hint="name a file",
        )
    if not os.path.isdir(path.parent):
        raise UserError(detail=f"cannot write {path}: there is no folder {path.parent}")
    with writing(path):
        folder = TemporaryDirectory(prefix=_folder_prefix(path), dir=path.parent)
    with folder as name:
        yield Path(name) / path.name
