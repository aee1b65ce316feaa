"""What a measurement was made with."""

from __future__ import annotations

import functools
import hashlib

from dlc.codegen.llvm.worker import compiler_version


@functools.cache
def versions() -> tuple[tuple[str, str], ...]:
    """The version of dlc, and a hash of the compiler's source."""
    from dlc import __version__

    compiler = hashlib.sha256(compiler_version().encode()).hexdigest()[:16]
    return (("compiler", compiler), ("dlc", __version__))
