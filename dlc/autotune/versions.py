"""What a measurement was made with."""

from __future__ import annotations

import functools
import hashlib

from dlc.autotune.features import VERSION
from dlc.codegen.llvm.worker import codegen_version

FEATURES = ("features", str(VERSION))  # beside `versions` in a trial that cost models learn from


@functools.cache
def versions() -> tuple[tuple[str, str], ...]:
    """The version of dlc, and a hash of the compiler's source."""
    from dlc import __version__

    compiler = hashlib.sha256(codegen_version().encode()).hexdigest()[:16]
    return (("compiler", compiler), ("dlc", __version__))
