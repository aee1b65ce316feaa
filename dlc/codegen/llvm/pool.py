"""Worker processes that compile kernels: one pool for the whole program, started when first asked.

It stays for the next model. Its workers end when the program does: their input closes.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence

from dlc.codegen.llvm.compile_task import KernelTask, read_message, write_message
from dlc.core.errors import CodegenError, DlcError, InternalError

# The worker finds dlc where this process does, without a word in the environment. Ctrl-C is for
# the process that started it; one that comes while it imports would end in a traceback.
_START = (
    "import sys; sys.path[:] = sys.argv[1:]; "
    "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "from dlc.codegen.llvm.compile_task import main; main()"
)


class _Worker:
    """One process, and the lock that keeps two threads from talking to it at once."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", _START, *sys.path]
        self.lock = threading.Lock()
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, task: KernelTask) -> bytes | DlcError | int:
        """The answer to a task, or the status the process ended with."""
        process = self.process
        assert process.stdin
        assert process.stdout
        with self.lock:
            with contextlib.suppress(OSError):
                write_message(process.stdin, task)
            answer = read_message(process.stdout)
            if isinstance(answer, bytes | DlcError):
                return answer
            return self.close()

    def close(self) -> int:
        process = self.process
        process.kill()
        status = process.wait()
        for stream in (process.stdin, process.stdout):
            if stream:
                with contextlib.suppress(OSError):
                    stream.close()
        return status


class Pool:
    """Workers, started at once, so that their imports overlap with what else there is to do."""

    def __init__(self, count: int) -> None:
        self.owner = os.getpid()
        self._workers = [_Worker() for _ in range(count)]
        self._change = threading.Lock()  # of workers: one that died, or all of them

    def grow(self, count: int) -> None:
        """Start workers until there are `count`."""
        while len(self._workers) < count:
            self._workers.append(_Worker())

    def compile(
        self, tasks: Sequence[KernelTask], count: int
    ) -> Iterator[tuple[int, bytes | DlcError]]:
        """Compile tasks on `count` workers; yield (position, object or error) as they finish."""
        waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        results: queue.SimpleQueue[tuple[int, bytes | DlcError]] = queue.SimpleQueue()
        for position in range(len(tasks)):
            waiting.put(position)

        def serve(number: int) -> None:
            with contextlib.suppress(queue.Empty):
                while True:
                    position = waiting.get_nowait()
                    results.put((position, self._ask(number, tasks[position])))

        self.grow(count)
        try:
            for number in range(count):
                threading.Thread(target=serve, args=(number,), daemon=True).start()
            for _ in tasks:
                yield results.get()
        finally:  # the caller gave up: the threads find nothing more to do
            with contextlib.suppress(queue.Empty):
                while True:
                    waiting.get_nowait()

    def close(self) -> None:
        """End the workers; what they are at is lost. A forked child leaves its parent's alone."""
        if self.owner != os.getpid():
            return
        with self._change:
            workers, self._workers = self._workers, []
        for worker in workers:
            worker.close()

    def _ask(self, number: int, task: KernelTask) -> bytes | DlcError:
        """Let a worker do a task; if it dies, another takes its place."""
        try:
            answer = self._workers[number].ask(task)
        except Exception as error:  # an error that ended this thread would leave the caller waiting
            return InternalError(detail=f"'{task.func.name}' cannot be sent to a worker: {error!r}")
        if not isinstance(answer, int):
            return answer
        with self._change:
            if self._workers:  # else the pool is closed, and nobody waits for the answer
                self._workers[number] = _Worker()
        how = f"signal {-answer}" if answer < 0 else f"exit status {answer}"
        unit = task.func.name
        return CodegenError(stage="the compiler", unit=unit, reason=f"its process died: {how}")


_shared: Pool | None = None
_lock = threading.Lock()


def can_start() -> bool:
    """Whether this program can start Python: one that was frozen into a file would start itself."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)


def is_running() -> bool:
    """Whether this process has a pool."""
    return _shared is not None and _shared.owner == os.getpid()


def shared_pool(count: int) -> Pool:
    """The pool of this process, with at least `count` workers."""
    global _shared
    with _lock:
        # A forked child must not talk to the workers of its parent.
        if _shared is None or _shared.owner != os.getpid():
            _shared = Pool(count)
            atexit.register(_shared.close)
        _shared.grow(count)
        return _shared
