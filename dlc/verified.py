"""Comparisons that passed, by what was compared: the same two files need no second one.

Building a large model again is a copy, and to compare it again took longer than that.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from dlc.compare_arrays import Error
from dlc.compiler_version import compiler_version
from dlc.core.cache import default_cache
from dlc.core.target_parse import parse_target
from dlc.runtime import _runtime, hash_file, num_threads
from dlc.verify_report import OutputReport, VerifyReport


def comparison_key(model: Path, artifact: Path) -> bytes:
    """What names the comparison of a model with its artefact by this dlc on such a machine.

    Data outside of a model's file is not read: if it is read as the model says, another makes
    another artefact.
    """
    machine = parse_target("native")
    runtime = Path(_runtime.__file__)
    files = [(path.stat().st_size, hash_file(path)) for path in (model, artifact, runtime)]
    parts = (compiler_version(), machine.triple, sorted(machine.features), num_threads(), files)
    return hashlib.sha256(f"verified {parts}".encode()).digest()


def keep_comparison(key: bytes, report: VerifyReport) -> None:
    """Store what a comparison found, for `find_comparison`."""
    default_cache().put(key, json.dumps(dataclasses.asdict(report)).encode())


def find_comparison(key: bytes) -> VerifyReport | None:
    """What `keep_comparison` stored, or None."""
    stored = default_cache().get(key)
    if stored is None:
        return None
    found = json.loads(stored)
    return VerifyReport(
        outputs=tuple(map(_output, found["outputs"])),
        judges=tuple(found["judges"]),
        notes=tuple(found["notes"]),
        trials=found["trials"],
    )


def _output(stored: dict[str, Any]) -> OutputReport:
    errors = {who: stored[who] and Error(**stored[who]) for who in ("dlc", "peer", "apart")}
    return OutputReport(**{**stored, **errors})
