"""Signals that end a command: what it began is tidied up first, and its exit code names them."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

import typer

GRACE_S = 2.0
"""Seconds that native code, as a model that runs, may hold a signal up before the program ends."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
INTERRUPTED = 128 + signal.SIGINT  # as shells have it


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
