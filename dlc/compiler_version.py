"""What names this compiler: its own source, and the libraries that compute constants and code."""

from __future__ import annotations

import functools
import hashlib
from importlib import metadata
from pathlib import Path

_PACKAGE = Path(__file__).parent
_LIBRARIES = ("llvmlite", "ml_dtypes", "numpy", "onnx")  # none of which has to be imported


def sources() -> list[Path]:
    """The files of dlc but those made from others: kernels for GPUs begin with one that is C++."""
    found = (path for path in _PACKAGE.rglob("*") if path.is_file() and path.suffix != ".so")
    return sorted(path for path in found if path.parent.name != "__pycache__")


@functools.cache
def compiler_version() -> str:
    """A hash of the source of all of dlc, and the versions of what computes constants and code."""
    digest = hashlib.sha256()
    for path in sources():
        digest.update(f"{path.relative_to(_PACKAGE)}\n".encode())
        digest.update(path.read_bytes())
    libraries = [f"{name} {metadata.version(name)}" for name in _LIBRARIES]
    return f"{digest.hexdigest()} {' '.join(libraries)}"
