"""What ends a command from outside, signals and readers that leave: what it began is tidied up
first, and its exit code names the signal.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import TextIO

import typer

GRACE_S = 2.0
"""Seconds that native code, as a model that runs, may hold a signal up before the program ends."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
INTERRUPTED = 128 + signal.SIGINT  # as shells have it
NO_READER = 128 + signal.SIGPIPE


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """In the `with`, every signal that would end the program raises KeyboardInterrupt, as Ctrl-C.

    Raises:
        SystemExit: a signal came, or a KeyboardInterrupt by itself; with 128 and the number.
    """
    came: list[int] = []
    heard = threading.Event()

    def stop(number: int, _: FrameType | None) -> None:
        came.append(number)
        heard.set()
        raise KeyboardInterrupt

    usual = (signal.SIG_DFL, signal.default_int_handler)  # what is ignored, as by nohup, stays so
    here = threading.current_thread() is threading.main_thread()  # others may not ask
    caught = [n for n in _SIGNALS if here and signal.getsignal(n) in usual]
    before = [(number, signal.signal(number, stop)) for number in caught]
    try:
        with _watched(heard) if caught else contextlib.nullcontext():
            yield
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and not came:
            came.append(signal.SIGINT)
        if not came:
            raise
        # An import that is interrupted may fail by itself; a command that ends has said why.
        if not isinstance(error, SystemExit | typer.Exit):
            with contextlib.suppress(OSError):  # the terminal may be what went
                sys.stderr.write("\ninterrupted\n")
    finally:
        for number, handler in before:
            signal.signal(number, handler)
    if came:
        sys.exit(128 + came[0])


@contextlib.contextmanager
def _watched(heard: threading.Event) -> Iterator[None]:
    """In the `with`, the program ends if a signal is not `heard` soon.

    Python hears of it between two of its own steps, and native code may take minutes.
    """
    signals, notify = os.pipe()
    os.set_blocking(notify, False)
    before = signal.set_wakeup_fd(notify, warn_on_full_buffer=False)

    def watch() -> None:
        while number := os.read(signals, 1):
            if number[0] in _SIGNALS and not heard.wait(GRACE_S):
                os._exit(128 + number[0])
        os.close(signals)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(notify)  # which ends the thread


@contextlib.contextmanager
def quiet_without_reader() -> Iterator[None]:
    """In the `with`, the program ends without a word once nobody reads what it prints, as behind
    `head`.

    Raises:
        SystemExit: that came, with 128 and the number of SIGPIPE.
    """
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except (BrokenPipeError, SystemExit) as error:  # Click and Rich exit with 1 for such an error
        gone = [s for s in (sys.stdout, sys.stderr) if _has_no_reader(s)]
        if not gone or not _is_for_pipe(error):
            raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in gone:  # they are flushed once more at the end
            os.dup2(nowhere, stream.fileno())
        sys.exit(NO_READER)


def _is_for_pipe(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, BrokenPipeError):
        error = error.__context__
    return error is not None


def _has_no_reader(stream: TextIO) -> bool:
    """Pipes to workers may break, too, which is another matter."""
    poll = select.poll()
    try:
        poll.register(stream, 0)
    except (OSError, ValueError):  # no file of the system
        return False
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
