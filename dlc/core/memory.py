"""A limit on the memory of this process that leaves room for its stack."""

from __future__ import annotations

import resource
from pathlib import Path

_STATM = Path("/proc/self/statm")


def limit_memory(more_bytes: int) -> None:
    """Let the process allocate this much more than it has; beyond that, allocations fail.

    Not a limit on the address space (`RLIMIT_AS`), in which the stack of the main thread has to
    find room, too, whenever it grows: where there is none, the process dies of SIGSEGV, in plain
    Python, at a call like any other. Private writable memory is limited, which the stack is no
    part of, nor are files that are only read.

    Source: getrlimit(2), RLIMIT_DATA since Linux 4.7; `is_data_mapping` in Linux' mm/mmap.c.
    """
    data_pages = int(_STATM.read_text().split()[5])
    limit = data_pages * resource.getpagesize() + more_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
