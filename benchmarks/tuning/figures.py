"""Figures in a JSON file that a later call goes on with; each says when and where it was taken."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.provenance import provenance
from dlc.core.machine import read_machine, usable_cores

_ENGINES = ("avx2", "avx512f", "avx512_vnni", "amx-bf16")


class Figures:
    """Rows by name. One that is there already with the same settings is not measured again."""

    def __init__(self, path: Path | None, settings: Mapping[str, Any]) -> None:
        self.path, self.settings = path, dict(settings)
        self.rows: dict[str, dict[str, Any]] = {}
        if path is not None and path.exists():
            self.rows = json.loads(path.read_text(encoding="utf-8"))

    def get(self, name: str, measure: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """A row, measured and written now unless an earlier call did it."""
        row = self.rows.get(name)
        if row is None or row["settings"] != self.settings:
            row = {**measure(), "settings": self.settings, **where_and_when()}
            self.rows[name] = row
            self.write()
        return row

    def write(self) -> None:
        """Write all rows; a reader sees the old file or the new one."""
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_name(f".{self.path.name}.new")
        new.write_text(json.dumps(self.rows, indent=1) + "\n", encoding="utf-8")
        new.replace(self.path)


def where_and_when() -> dict[str, str]:
    """The commit, the date and the machine of a figure."""
    found = provenance()
    machine = read_machine()
    engines = ", ".join(f for f in _ENGINES if f in machine.features)
    threads = len(os.sched_getaffinity(0))
    about = f"{machine.arch} ({engines}), {usable_cores()} cores, {threads} threads"
    return {"commit": found["commit"], "date": found["date"], "machine": about}
