"""Work for a worker process, and what comes back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dlc.autotune.bench_method import Method
from dlc.autotune.design import Design
from dlc.autotune.evict import eviction_task
from dlc.autotune.station import piece_name
from dlc.autotune.task import Task
from dlc.autotune.wire import Message

_BEGIN = 1  # knobs that decide how a schedule begins: designs that agree in them share steps


@dataclass(frozen=True, slots=True)
class Job:
    """One request. `pieces` are what it names by hash, sent to those workers that lack them.

    Jobs of one `affinity` go to the same worker if it is free: it remembers what they share.
    """

    data: dict[str, Any]
    blobs: tuple[bytes, ...] = ()
    pieces: Mapping[str, bytes] = field(default_factory=dict)
    seconds: float = 30.0  # after which the worker is taken for lost
    affinity: int = 0


@dataclass(frozen=True, slots=True)
class Anchor:
    """What a candidate runs beside: the default, the plain nest, and what empties the caches."""

    default: bytes
    reference: bytes
    eviction: bytes


def build_design(
    task: Task,
    design: Design,
    *,
    code: bool = True,
    tree: bool = False,
    known: Iterable[str] = (),
    seat: int | None = None,
) -> Job:
    """Schedule a design; with `code`, compile it too unless its nest is one of those `known`.

    With `tree`, the answer has the nest's tree of loops beside its features. `seat` is the worker's
    that described it.
    """
    what = {"kind": "design", "family": design.family, "knobs": dict(design.knobs), "tree": tree}
    what["known"] = sorted(known)
    start = hash((design.family, design.knobs[:_BEGIN]))
    return _build(task, what, code=code, affinity=start if seat is None else seat)


def build_steps(task: Task, steps: str) -> Job:
    """Replay steps, given as JSON."""
    return _build(task, {"kind": "steps", "steps": steps})


def build_default(task: Task) -> Job:
    """What the rule chooses by itself."""
    return _build(task, {"kind": "default"}, seconds=60.0)


def build_plain(task: Task) -> Job:
    """The nest as it was lowered, sums side by side: what the task means."""
    return _build(task, {"kind": "plain"}, seconds=60.0)


def build_anchor(task: Task) -> list[Job]:
    """The parts of an `Anchor`, in order."""
    return [build_default(task), build_plain(task), build_plain(eviction_task(task.target))]


def _build(
    task: Task, what: dict[str, Any], *, code: bool = True, seconds: float = 20.0, affinity: int = 0
) -> Job:
    data = {"job": "build", "task": task.to_json(), "code": code, **what}
    return Job(data, seconds=seconds, affinity=affinity)


def measure(
    task: Task,
    artefact: bytes,
    anchor: Anchor,
    method: Method,
    *,
    default_ns: float = 0.0,
    seconds: float = 10.0,
    reference_seconds: float = 120.0,
    memory_bytes: int = 2 << 30,
) -> Job:
    """Check and time an artefact beside the default; stop it early where that is far faster."""
    blobs = (anchor.default, anchor.reference, anchor.eviction)
    pieces = {piece_name(blob): blob for blob in blobs}
    data = {
        "job": "measure",
        "task": task.to_json(),
        "anchor": piece_name(anchor.default),
        "reference": piece_name(anchor.reference),
        "eviction": piece_name(anchor.eviction),
        "method": method.to_json(),
        "default_ns": default_ns,
        "seconds": seconds,
        "reference_seconds": reference_seconds,
        "memory_bytes": memory_bytes,
    }
    # The worker stops the candidate itself; it is given up only where it does not.
    return Job(data, (artefact,), pieces, seconds=seconds + reference_seconds + 5)


def race(
    paths: tuple[str, str],
    *,
    sizes: Mapping[str, int],
    threads: int,
    rounds: int = 11,
    budget_seconds: float = 3.0,
    seconds: float = 120.0,
) -> Job:
    """Time two artefacts of one model in turn, in several processes one after the other.

    Of each process at most `rounds` of both count; `budget_seconds` are for all of them. A worker
    that cannot read the files asks for them.
    """
    data = {
        "job": "race",
        "paths": list(paths),
        "sizes": dict(sizes),
        "threads": threads,
        "rounds": rounds,
        "budget_seconds": budget_seconds,
        "seconds": seconds,
        "memory_bytes": 64 << 30,
    }
    return Job(data, pieces=Files(paths), seconds=seconds + 10)


class Files(Mapping[str, bytes]):
    """What files hold, by their paths; read when it is asked for, or sent to another machine."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = tuple(paths)

    def __getitem__(self, path: str) -> bytes:
        """The content of a file."""
        if path not in self._paths:
            raise KeyError(path)
        return Path(path).read_bytes()

    def __iter__(self) -> Iterator[str]:
        """The paths."""
        return iter(self._paths)

    def __len__(self) -> int:
        """The number of files."""
        return len(self._paths)

    def __reduce__(self) -> tuple[object, ...]:
        """Where this goes the files may not be."""
        return dict, (dict(self),)


Reply = Message
