"""A depfile: which files an artefact was made of, as Make, Ninja and CMake read it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from dlc.core.staging import staging, writing


def sources_of(model: Path, tuning: str) -> list[Path]:
    """The files that a build reads: the model, its weights beside it, and its log if there is one.

    Raises:
        ModelError: as `external_files`.
    """
    from dlc.autotune.told import log_of
    from dlc.frontend.onnx.external_files import external_files

    found = [model]
    if model.is_file():  # what came through a pipe cannot be read again, and has none
        found += sorted(external_files(model))
    log = log_of(tuning, model)
    if tuning != "none" and os.path.isfile(log):  # its name may be too long for any file
        found.append(log)
    return found


def write_depfile(path: Path, artefact: Path, sources: Iterable[Path]) -> None:
    """Say at `path` that `artefact` depends on `sources`.

    Raises:
        UserError: `path` cannot be written.
    """
    rule = " \\\n  ".join((f"{_escaped(artefact)}:", *map(_escaped, sources)))
    with staging(path) as draft, writing(path):
        draft.write_bytes(os.fsencode(f"{rule}\n"))
        draft.replace(path)


def _escaped(path: Path) -> str:
    return re.sub(r"([ #])", r"\\\1", str(path).replace("$", "$$"))
