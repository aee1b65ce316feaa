"""What a build tells in the end, and what of it is known of an artefact from the cache."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlc.artifact_cache import ArtifactCache
from dlc.core.count import show_bytes
from dlc.core.target import Target
from dlc.stages import Progress

if TYPE_CHECKING:
    from dlc.graph.pass_ import PassReport


@dataclass(frozen=True, slots=True)
class BuildReport:
    """What a build did. Sizes in bytes, times in seconds."""

    path: Path
    target: Target
    nodes: int
    groups: int
    kernels: int
    tuned: int
    parameters_bytes: int
    arena_bytes: str
    seconds: float
    passes: tuple[PassReport, ...]

    @property
    def kept(self) -> Mapping[str, object]:
        """What the cache keeps of it."""
        return {name: getattr(self, name) for name in _KEPT}


# What is known of a build from the cache.
_KEPT = ("nodes", "groups", "kernels", "tuned", "parameters_bytes", "arena_bytes")


def report_of_kept(
    path: Path, target: Target, began: float, known: Mapping[str, Any]
) -> BuildReport:
    """The report of a build that took its artefact from the cache."""
    seconds = time.perf_counter() - began
    return BuildReport(path=path, target=target, seconds=seconds, passes=(), **known)


def take_kept(
    kept: ArtifactCache, path: Path, progress: Callable[[Progress], None] | None
) -> Mapping[str, Any] | None:
    """Take the artefact from the cache, if it is there; what its build reported."""
    began = time.perf_counter()
    found = kept.find(path)
    if found is not None and progress is not None:
        detail = f"built before: {show_bytes(path.stat().st_size)}"
        progress(Progress("cache", detail, time.perf_counter() - began))
    return found
