"""Python's search for cycles of garbage, which values of an IR never form.

Each node of an IR is an object that lives on in the next IR, so a collection looks at all of them
and frees next to none: an eighth of the time of scheduling. (Inner functions that call themselves
do form cycles; there are few.)
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# By objects made and not freed; Python's own limit is 700. At 200,000, a worker spent an eighth
# of its time to schedule in collections: each looks at every new node that is kept.
_RARELY = (1_000_000, 50, 100)
_lock = threading.Lock()
_inside: list[tuple[int, int, int]] = []  # for each that is inside, the limits before the first


@contextmanager
def collected_rarely() -> Iterator[None]:
    """Inside, cycles are looked for so rarely that it costs nothing; they are no leak yet.

    The limits are those of the whole process: the last of all threads to leave puts them back.
    """
    with _lock:
        _inside.append(_inside[0] if _inside else gc.get_threshold())
        gc.set_threshold(*_RARELY)
    try:
        yield
    finally:
        with _lock:
            before = _inside.pop()
            if not _inside:
                gc.set_threshold(*before)


def collect_rarely() -> None:
    """The same for the rest of a process that does nothing else: what it has now stays."""
    gc.freeze()
    gc.set_threshold(*_RARELY)
