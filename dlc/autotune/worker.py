"""One worker process, from the tuner's side: it is asked, and replaced when it dies or hangs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

from dlc.autotune.job import Job, Reply
from dlc.autotune.wire import read_message, write_message

# The worker finds dlc where this process does, without a word in the environment. It ends with this
# process from the first moment on: what it imports takes seconds where the machine is busy.
_START = (
    "import sys; sys.path[:] = sys.argv[2:];"
    "from dlc.autotune.parent import die_with_parent; die_with_parent(int(sys.argv[1]));"
    "from dlc.autotune.station import main; main()"
)
LOST = "lost"  # the status of a job whose worker died or hung
_GRACE_SECONDS = 0.5
_STORE_SECONDS = 300.0  # to send what a worker lacks: whole models, by a slow line


def local_command() -> list[str]:
    """What starts a worker on this machine."""
    return [sys.executable, "-c", _START, str(os.getpid()), *sys.path]


class Worker:
    """A process that answers one job after the other. Started when first asked.

    `command` starts it: on this machine, or by ssh on another.
    """

    def __init__(self, command: Sequence[str] | None = None, name: str = "local") -> None:
        self.command = list(command or local_command())
        self.name = name
        self.restarts = 0
        self._lock = threading.Lock()  # of the conversation
        self._state = threading.Lock()  # of the process
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The process, if there is one."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the process before it is needed: its imports take a while."""
        with self._lock:
            self._running()

    def ask(self, job: Job) -> Reply:
        """The answer to a job; its status is `LOST` where the process died, hung or was closed."""
        with self._lock:
            reply = self._ask(job)
            if reply.data.get("status") == "missing":
                names = reply.data["pieces"]
                try:
                    blobs = tuple(job.pieces[name] for name in names)
                except OSError as error:
                    return Reply({"status": "error", "detail": str(error)})
                held = Job({"job": "store", "names": names}, blobs, seconds=_STORE_SECONDS)
                stored = self._ask(held)
                reply = self._ask(job) if stored.data.get("status") == "ok" else stored
            return reply

    def close(self) -> None:
        """End the process: it is asked first, by the end of its input."""
        with self._state:  # nobody starts one from now on
            self._closed = True
            process = self._process
        if process is not None:
            with contextlib.suppress(OSError, ValueError):
                assert process.stdin
                process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_SECONDS)
            self._kill()

    def _ask(self, job: Job) -> Reply:
        process = self._running()
        if process is None:
            return Reply({"status": LOST, "detail": "closed"})
        assert process.stdin
        assert process.stdout
        late = threading.Event()
        timer = threading.Timer(job.seconds, _kill_group, (process, late))
        timer.daemon = True
        timer.start()
        try:
            with contextlib.suppress(OSError, ValueError):
                write_message(process.stdin, job.data, job.blobs)
            answer = read_message(process.stdout)
        finally:
            timer.cancel()
        if answer is not None:
            return answer
        self._kill()
        self.restarts += 1
        how = f"no answer in {job.seconds:g} s" if late.is_set() else f"ended: {process.returncode}"
        return Reply({"status": LOST, "detail": f"worker {self.name}: {how}"})

    def _running(self) -> subprocess.Popen[bytes] | None:
        """The process, started if there is none; None once the worker is closed."""
        with self._state:
            if self._process is None and not self._closed:
                self._process = self._launch()
            return self._process

    def _launch(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )

    def _kill(self) -> None:
        """End the process and all it started."""
        with self._state:
            process, self._process = self._process, None
        if process is None:
            return
        _kill_group(process)
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream:
                with contextlib.suppress(OSError):
                    stream.close()


def _kill_group(process: subprocess.Popen[bytes], why: threading.Event | None = None) -> None:
    """Kill a process that leads a session, and all in it."""
    if why is not None:
        why.set()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
