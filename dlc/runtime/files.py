"""Writing a file in one step."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from dlc.core.errors import UserError


def write_file(path: Path, data: bytes) -> None:
    """Write an executable file that cannot be seen half done.

    Raises:
        UserError: nothing can be written at `path`; what was there still is.
    """
    if path.is_dir():
        raise UserError(detail=f"cannot write {path}: it is a folder", hint="name a file")
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        temporary = Path(name)
        try:
            with open(handle, "wb") as out:
                out.write(data)
                out.flush()
                os.fsync(out.fileno())
            temporary.chmod(0o755)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UserError(detail=f"cannot write {path}: {reason}") from error
