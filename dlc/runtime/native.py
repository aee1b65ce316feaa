"""The extension module behind dlc's errors: a status of the C interface becomes a `DlcError`."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator

from dlc.core.env import MAX_THREADS
from dlc.core.errors import ArtifactError, InputError, InternalError, LimitError, UserError

try:
    from dlc.runtime import _runtime
except ImportError as error:  # the folder of the sources comes before what is installed
    raise ImportError(
        f"dlc's extension module cannot be loaded beside {__file__} ({error}); if that is the "
        "folder of dlc's sources, work in another one, or install them by 'pip install -e .'"
    ) from error

_TENSOR_MESSAGE = re.compile(r"input '(.*?)': (.*)", re.DOTALL)


def encode_path(path: str | bytes | os.PathLike[str]) -> bytes:
    """A path as the extension module takes it.

    Raises:
        ArtifactError: it contains a NUL, where a C string would end: another file would be taken.
    """
    raw = os.fsencode(path)
    if b"\0" in raw:
        raise ArtifactError(path=repr(path), reason="the path contains a NUL")
    return raw


def check_file(path: str | os.PathLike[str]) -> None:
    """Refuse a compiled model that is damaged. Nothing is loaded: it may be for another machine.

    Raises:
        ArtifactError: no such file; it is not what was built.
    """
    with dlc_errors(path):
        _runtime.check_file(encode_path(path))


def hash_file(path: str | os.PathLike[str]) -> int:
    """XXH64 of all bytes of a file, at memory speed; for `dlc.core.manifest.seal`."""
    with dlc_errors(path):
        return _runtime.hash_file(encode_path(path))


def num_threads() -> int:
    """How many threads work on one run, the caller included."""
    return _runtime.num_threads()


def set_num_threads(count: int | None) -> None:
    """Set how many threads work on one run, in the whole process; None means automatic.

    Raises:
        UserError: not a number from 1 to `MAX_THREADS`.
    """
    if count is not None and count not in range(1, MAX_THREADS + 1):
        hint = f"give a number from 1 to {MAX_THREADS}, or None"
        raise UserError(detail=f"{count!r} threads", hint=hint)
    _runtime.set_num_threads(int(count or 0))


def why_no_gpu() -> str:
    """Why no model for a GPU can run on this machine, or ""."""
    try:
        _runtime.find_gpu()
    except _runtime.StatusError as error:
        return str(error.args[1])
    return ""


@contextlib.contextmanager
def dlc_errors(path: str | bytes | os.PathLike[str], name: str | None = None) -> Iterator[None]:
    """Turn the status of a failed call into the error that says whose fault it is.

    `name` is what errors call the artefact at `path`.
    """
    try:
        yield
    except _runtime.StatusError as error:
        label = os.fsencode(path).decode(errors="replace")  # as the extension module decodes it
        raise to_dlc_error(error, name or os.fsdecode(path), label) from None


def to_dlc_error(error: _runtime.StatusError, path: str, label: str | None = None) -> Exception:
    """The `DlcError` for a failed call; `path` names the artefact, as `label` does in messages."""
    status, message = error.args
    if status in ("DLC_NOT_FOUND", "DLC_BAD_ARTIFACT", "DLC_INCOMPATIBLE"):
        return ArtifactError(path=path, reason=message.removeprefix(f"{label or path}: "))
    if status == "DLC_NO_MEMORY":
        return LimitError(what="memory", reason=message)
    if status == "DLC_INTERNAL":
        return InternalError(detail=message)
    if found := _TENSOR_MESSAGE.fullmatch(message):
        return InputError(name=found[1], reason=found[2])
    return UserError(detail=message)
