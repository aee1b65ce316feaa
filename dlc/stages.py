"""The stages of a build, timed and told to whoever wants to know."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """One event of a build: a stage that ended, or a kernel that was compiled.

    `done` of `total` counts kernels inside the stage `codegen`; other stages have 1 of 1.
    """

    stage: str
    detail: str
    seconds: float
    done: int = 1
    total: int = 1


class Stages:
    """Times stages and reports them."""

    def __init__(self, progress: Callable[[Progress], None] | None) -> None:
        self.progress = progress or (lambda _: None)
        self.began = time.perf_counter()

    @contextmanager
    def __call__(self, name: str) -> Iterator[Callable[[str], None]]:
        """Time one stage; what it is told in the end is its detail."""
        self.began = time.perf_counter()
        detail: list[str] = [""]
        yield lambda text: detail.__setitem__(0, text)
        self.progress(Progress(name, detail[0], time.perf_counter() - self.began))

    def kernel(self, name: str, done: int, total: int) -> None:
        """One kernel is compiled."""
        seconds = time.perf_counter() - self.began
        self.progress(Progress("kernel", name, seconds, done, total))
