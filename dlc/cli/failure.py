"""What a failed command says: one clear block on standard error, and an exit code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import typer

from dlc.cli.screen import print_json, stderr
from dlc.core.errors import DlcError, InternalError

_OURS = "this is a mistake in dlc, not yours; please report it with that file"


def report_failure(error: Exception, *, as_json: bool) -> int:
    """Print an error; with `as_json` as a document on standard output too. Gives the exit code."""
    problem = error if isinstance(error, DlcError) else InternalError(detail=_sentence(error))
    found = problem.to_dict()
    if isinstance(problem, InternalError):
        crash = _write_crash(error)
        found |= {"crash_file": str(crash), "hint": problem.hint or f"{_OURS}: {crash}"}
    console = stderr()
    console.print(f"error[{found['code']}]", style="bold red", end="")
    console.print(f": {found['message']}", soft_wrap=True)
    if found["hint"]:
        console.print("hint", style="bold cyan", end="")
        console.print(f": {found['hint']}", soft_wrap=True)
    if as_json:
        print_json("dlc.error/1", found | {"exit_code": problem.exit_code})
    return problem.exit_code


def fail(error: DlcError, *, has_document: bool) -> NoReturn:
    """Raise an error, or say it here where standard output has its one JSON document already.

    Raises:
        DlcError: `error`.
    """
    if has_document:
        raise typer.Exit(report_failure(error, as_json=False)) from error
    raise error


def _sentence(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _write_crash(error: Exception) -> Path:
    """A new file with the traceback."""
    import tempfile
    import traceback

    with tempfile.NamedTemporaryFile(
        "w", prefix="dlc-crash-", suffix=".txt", delete=False, encoding="utf-8", errors="replace"
    ) as file:
        file.write(f"dlc {' '.join(sys.argv[1:])}\n\n")
        file.writelines(traceback.format_exception(error))
    return Path(file.name)
