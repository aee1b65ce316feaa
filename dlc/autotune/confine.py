"""Run something in a child process that may crash, hang, or eat memory, and say how it ended.

A warm process forks the child, so a new one takes milliseconds. The child dies with its parent.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import resource
import select
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dlc.autotune.parent import die_with_parent
from dlc.autotune.record import Status
from dlc.codegen.llvm.module import OUT_OF_MEMORY
from dlc.core.errors import DlcError, LimitError
from dlc.core.memory import limit_memory

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """What a child may use: seconds of wall time, and bytes of memory beyond its parent's."""

    seconds: float = 10.0
    memory_bytes: int = 2 << 30


def confined(work: Callable[[], Any], limits: Limits) -> dict[str, Any]:
    """What `work` returns, from a child process; else `status` and `detail` say what happened.

    `work` returns data for JSON. This process must have no other threads.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        _child(work, writer, limits)
    os.close(writer)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.setpgid(child, child)  # the child does it too; whoever is first
    try:
        data = _read_until(reader, time.monotonic() + limits.seconds)
    finally:
        os.close(reader)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)
        _, code = os.waitpid(child, 0)
    if data is None:
        return _ended(Status.TIMEOUT, f"no result in {limits.seconds:g} s")
    try:
        found = json.loads(data)
        if isinstance(found, dict):
            return found
    except ValueError:
        pass
    return _explain(code)


def _child(work: Callable[[], Any], writer: int, limits: Limits) -> None:
    """Work, send the result, end; never return."""
    try:
        os.setpgid(0, 0)
        die_with_parent()
        _restrict(limits)
        result = work()
    except MemoryError:
        result = _ended(Status.MEMORY, "out of memory")
    except DlcError as error:
        memory = isinstance(error, LimitError) or OUT_OF_MEMORY in str(error)
        result = _ended(Status.MEMORY if memory else Status.CRASH, str(error))
    except BaseException:
        result = _ended(Status.CRASH, traceback.format_exc(limit=8))
    try:
        data = memoryview(json.dumps(result).encode())
        while data:
            data = data[os.write(writer, data) :]
    finally:
        os._exit(0)


def _restrict(limits: Limits) -> None:
    limit_memory(limits.memory_bytes)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Where even the parent is stopped, the kernel ends what computes for ever.
    cpu = int(limits.seconds * (os.cpu_count() or 1)) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu))
    faulthandler.disable()  # how a candidate crashed is told by its signal
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def _read_until(reader: int, deadline: float) -> bytes | None:
    """All a child writes until it ends; None if the time is up first."""
    pieces: list[bytes] = []
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([reader], [], [], left)[0]:
            return None
        piece = os.read(reader, _MIB)
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)


def _explain(code: int) -> dict[str, Any]:
    """The end of a child that said nothing."""
    if os.WIFSIGNALED(code):
        number = os.WTERMSIG(code)
        if number == signal.SIGXCPU:
            return _ended(Status.TIMEOUT, "too much processor time")
        if number == signal.SIGPROF:
            return _ended(Status.SLOW, "far slower than the default")
        return _ended(Status.CRASH, signal.Signals(number).name)
    return _ended(Status.CRASH, f"exit status {os.waitstatus_to_exitcode(code)}")


def _ended(status: Status, detail: str) -> dict[str, Any]:
    return {"status": str(status), "detail": detail[:2000]}
