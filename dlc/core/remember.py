"""Remember what was found out about an immutable object, for as long as it is the very same one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")
_MOST = 1 << 14  # objects of one question; of an IR in the making, most are those of a step before


def per_object(fn: Callable[[T], R]) -> Callable[[T], R]:
    """Answer a question about the very same object again without asking it.

    For nodes of an IR: to hash or to compare a deep tree would cost more than most questions.
    Nobody may change what is answered.
    """
    known: dict[int, tuple[T, R]] = {}

    @functools.wraps(fn)
    def ask(about: T) -> R:
        found = known.get(id(about))  # as long as it is there, no other object has its id
        if found is not None:
            return found[1]
        result = fn(about)
        if len(known) >= _MOST:
            known.clear()
        known[id(about)] = (about, result)
        return result

    return ask
