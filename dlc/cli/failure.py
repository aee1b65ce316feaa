"""What a failed command says: one clear block on standard error, and an exit code."""

from __future__ import annotations

import contextlib
import errno
import sys
from pathlib import Path
from typing import NoReturn

import typer

from dlc.cli.screen import print_json, stderr
from dlc.core.errors import DlcError, InternalError, LimitError, UserError, show_os_error

_OURS = "this is a mistake in dlc, not yours; please report it with that file"
# What a machine may refuse to any program. A file that is not there is none of them: dlc names
# those of the user itself, and others are its own.
_REFUSED = frozenset({
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO,
    errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN,
})  # fmt: skip


def report_failure(error: Exception, *, as_json: bool) -> int:
    """Print an error; with `as_json` as a document on standard output too. Gives the exit code."""
    problem = _problem(error)
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
        with contextlib.suppress(OSError):  # a full disk may be what is reported
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


def _problem(error: Exception) -> DlcError:
    """The error, or what stands for one that is not of dlc's classes."""
    match error:
        case DlcError():
            return error
        case MemoryError():
            hint = "this machine has too little memory for it, or this process may use too little"
            return LimitError(what="memory", reason=str(error) or "out of memory", hint=hint)
        case OSError() if error.errno in _REFUSED:
            what = f" on {error.filename}" if error.filename else ""
            return UserError(
                detail=f"the system refused an operation{what}: {show_os_error(error)}"
            )
    return InternalError(detail=_sentence(error))


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
