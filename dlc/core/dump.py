"""Numbered dumps of every step that changed an IR, for whoever sets `DLC_DUMP`."""

from __future__ import annotations

import itertools
from pathlib import Path

from dlc.core.env import dump_dir
from dlc.core.staging import writing


class Dumper:
    """Writes one numbered file for each dump; does nothing where no folder is given.

    Numbers follow the order of the calls, so the files of one compilation sort by time.

    Raises:
        UserError: the folder cannot be made, or written to.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._numbers = itertools.count()
        if folder is not None:
            with writing(folder):
                folder.mkdir(parents=True, exist_ok=True)

    @staticmethod
    def from_environment() -> Dumper:
        """A dumper into the folder that `DLC_DUMP` names, if it names one."""
        return Dumper(dump_dir())

    @property
    def wanted(self) -> bool:
        """Whether anybody reads the dumps; printing an IR costs time."""
        return self.folder is not None

    def write(self, name: str, text: str) -> Path | None:
        """Write a text as `<number>_<name>` and return its path, or None where none is wanted."""
        if self.folder is None:
            return None
        path = self.folder / f"{next(self._numbers):02d}_{name}"
        with writing(path):
            path.write_text(text, encoding="utf-8")
        return path
