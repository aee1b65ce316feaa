"""Signals that end a command: what it began is tidied up first, and its exit code names them."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
INTERRUPTED = 128 + signal.SIGINT  # as shells have it


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """In the `with`, every signal that would end the program raises KeyboardInterrupt, as Ctrl-C.

    Raises:
        SystemExit: a signal came; with 128 and its number.
    """
    came: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        came.append(number)
        raise KeyboardInterrupt

    usual = (signal.SIG_DFL, signal.default_int_handler)  # what is ignored, as by nohup, stays so
    here = threading.current_thread() is threading.main_thread()  # others may not ask
    caught = [n for n in _SIGNALS if here and signal.getsignal(n) in usual]
    before = [(number, signal.signal(number, stop)) for number in caught]
    try:
        yield
    except BaseException as error:
        if not came:
            raise
        if not isinstance(error, SystemExit):  # an import that is interrupted may fail by itself
            sys.stderr.write("\ninterrupted\n")
    finally:
        for number, handler in before:
            signal.signal(number, handler)
    if came:
        sys.exit(128 + came[0])
