"""Turn one lowered kernel into an object file, here or in a worker process.

A worker is a Python process that reads tasks from its standard input and writes objects to its
standard output, each message after its length. It is started by command and not forked by
`multiprocessing`, which would run a user's script again where that has no `__main__` guard.
Messages are pickles; both ends are this program.
"""

from __future__ import annotations

import os
import pickle
import struct
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from dlc.codegen.llvm.compile import assembly, compile_ir
from dlc.codegen.llvm.emit import emit_func
from dlc.core.errors import CodegenError, DlcError, InternalError
from dlc.core.garbage import collect_rarely
from dlc.core.log import enable_topics
from dlc.core.staging import writing
from dlc.core.target import Target
from dlc.schedule.loop import Func
from dlc.schedule.pipeline import optimize
from dlc.schedule.primitive import Step

_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class KernelTask:
    """A lowered function, how to schedule it and the symbol its code gets."""

    func: Func
    target: Target
    steps: tuple[Step, ...] | None  # of a tuning record; None for the rule's own
    symbol: str
    dump: Path | None = None  # folder that receives the code at every level
    topics: frozenset[str] = frozenset()  # to log, wherever this is compiled


def compile_task(task: KernelTask) -> bytes:
    """Schedule, emit and compile a kernel.

    Raises:
        CodegenError: LLVM rejects what was emitted; the error names the kernel.
        DlcError: the schedule is refused.
    """
    func = optimize(task.func, task.target, task.steps)
    _dump(task, "loop.txt", lambda: str(func))
    try:
        text = emit_func(replace(func, name=task.symbol), task.target)
        _dump(task, "ll", lambda: text)
        code = compile_ir(text, task.target)
    except CodegenError as error:
        hint = error.hint or "set DLC_DUMP to a folder to see the code of each kernel"
        raise CodegenError(hint=hint, **(error.fields | {"unit": task.func.name})) from error
    _dump(task, "s", lambda: assembly(text, task.target))
    return code


def _dump(task: KernelTask, suffix: str, text: Callable[[], str]) -> None:
    """Write a file whose name tells the kernel."""
    if task.dump:
        path = task.dump / f"{task.func.name}.{suffix}"
        with writing(path):
            task.dump.mkdir(parents=True, exist_ok=True)
            path.write_text(text(), encoding="utf-8")


def attempt(task: KernelTask) -> bytes | DlcError:
    """The object file, or the error as a value; an error of Python's is a fault of dlc."""
    try:
        return compile_task(task)
    except DlcError as error:
        return error
    except Exception as error:
        where = "".join(traceback.format_exception(error)).rstrip()
        return InternalError(detail=f"compiling '{task.func.name}' failed:\n{where}")


def read_message(stream: IO[bytes]) -> object | None:
    """The next message, or None where the other end is gone."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (size,) = _LENGTH.unpack(head)
    data = stream.read(size)
    return pickle.loads(data) if len(data) == size else None


def write_message(stream: IO[bytes], message: object) -> None:
    """Send a message."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def main() -> None:
    """Answer tasks until the other end closes its side."""
    collect_rarely()
    # Whatever is printed goes to standard error: standard output belongs to the messages.
    with open(os.dup(1), "wb") as out:
        os.dup2(2, 1)
        while (task := read_message(sys.stdin.buffer)) is not None:
            assert isinstance(task, KernelTask)
            enable_topics(task.topics)
            write_message(out, attempt(task))


if __name__ == "__main__":
    main()
