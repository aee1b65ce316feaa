"""Object code -> functions of this process, for what is measured or tested right here."""

from __future__ import annotations

import functools
import itertools

from llvmlite.binding.orcjit import (
    LLJIT,
    JITLibraryBuilder,
    ResourceTracker,
    create_lljit_compiler,
)

from dlc.codegen.llvm.compile import initialize

_numbers = itertools.count()


def load(code: bytes, *names: str) -> ResourceTracker:
    """Object code of this machine in memory; the result gives addresses by name and keeps it alive.

    Code and constants lie in one piece: they refer to each other by 32 bits, and a process that
    holds more than 2 GiB has room further apart than that.
    """
    library = JITLibraryBuilder().add_object_img(code).add_current_process()
    for name in names:
        library.export_symbol(name)
    return library.link(_linker(), f"dlc{next(_numbers)}")


@functools.cache
def _linker() -> LLJIT:
    initialize()
    return create_lljit_compiler(use_jit_link=True)
