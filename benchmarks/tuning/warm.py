"""Tuners that begin at once: forked from this process, which has imported everything."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import IO, Any, cast

from dlc.autotune import station
from dlc.autotune.executor import WorkerPool
from dlc.autotune.parent import die_with_parent
from dlc.autotune.session import Machines
from dlc.autotune.worker import Worker


class Forked:
    """A child process that runs a function; what `Worker` asks of a `subprocess.Popen`."""

    def __init__(self, work: Callable[[], object]) -> None:
        parent = os.getpid()
        (theirs_in, ours_in), (ours_out, theirs_out) = os.pipe(), os.pipe()
        sys.stdout.flush()
        self.returncode: int | None = None
        self.pid = os.fork()
        if not self.pid:
            os.setsid()
            die_with_parent(parent)
            os.dup2(theirs_in, 0)
            os.dup2(theirs_out, 1)
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            _run(work)
        os.close(theirs_in)
        os.close(theirs_out)
        self.stdin: IO[bytes] = open(ours_in, "wb")  # noqa: SIM115
        self.stdout: IO[bytes] = open(ours_out, "rb")  # noqa: SIM115
        self._lock = threading.Lock()

    def wait(self, timeout: float | None = None) -> int:
        """See `subprocess.Popen.wait`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self._poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("fork", timeout or 0.0)
            time.sleep(0.002)
        return code

    def _poll(self) -> int | None:
        with self._lock:
            if self.returncode is None:
                done, status = os.waitpid(self.pid, os.WNOHANG)
                if done:
                    self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode


class ForkedWorker(Worker):
    """A worker that needs no time to import anything."""

    def _launch(self) -> subprocess.Popen[bytes]:
        return cast("subprocess.Popen[bytes]", Forked(station.main))


def warm_machines() -> Machines:
    """Two that build and one that measures."""
    build = WorkerPool([ForkedWorker(name=f"build-{n}") for n in range(2)])
    return Machines(build, WorkerPool([ForkedWorker(name="measure")]))


def _run(work: Callable[[], Any]) -> None:
    """Work with new standard streams, and end without a word from what was inherited."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)
