"""A worker ends with the process that started it. Imported before anything that takes time."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int | None = None) -> None:
    """End this process when the one that started it ends, however that happens.

    Args:
        parent: the process that started this one; default: its parent now.
    """
    expected = os.getppid() if parent is None else parent
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != expected:  # it ended before the call
        os._exit(1)
