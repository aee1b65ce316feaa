"""How compiled models are told from other files: they are shared libraries."""

from __future__ import annotations

import os

ELF = b"\x7fELF"
"""What a shared library begins with. Source: System V ABI, ELF identification."""


def is_elf(path: str | bytes | os.PathLike[str]) -> bool:
    """Whether a file begins as a shared library does.

    Raises:
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        return file.read(len(ELF)) == ELF
