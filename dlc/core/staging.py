"""A place to make a file in, before it takes its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dlc.core.errors import UserError

if TYPE_CHECKING:
    from tempfile import TemporaryDirectory


def staging_folder(path: Path) -> TemporaryDirectory[str]:
    """A new folder beside a file that is to be written; it takes the file's place when complete.

    Raises:
        UserError: the file could not be written.
    """
    from tempfile import TemporaryDirectory  # takes longer to import than it takes to say no

    if path.is_dir():
        raise UserError(detail=f"{path} is a folder", hint="name a file: -o model.so")
    if not path.parent.is_dir():
        raise UserError(detail=f"cannot write {path}: there is no folder {path.parent}")
    try:
        return TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UserError(detail=f"cannot write {path}: {reason}") from error
