"""Compile the kernels of a model: equal ones once, known ones never, the rest in parallel.

Kernels are equal if their texts are once every name in them is replaced by a number. The symbol
of a kernel is a hash of that text and of all else its code depends on, so it is the same in every
model, and an object from the cache fits any of them.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import llvmlite

from dlc.codegen.llvm.compile_task import KernelTask, attempt
from dlc.codegen.llvm.pool import can_start, is_running, shared_pool
from dlc.core.cache import Cache, default_cache
from dlc.core.env import dump_dir, log_topics
from dlc.core.errors import DlcError
from dlc.core.log import TOPICS
from dlc.core.machine import usable_cores
from dlc.core.remember import per_object
from dlc.core.target import Target
from dlc.schedule.loop import Func
from dlc.schedule.primitive import Step, steps_to_json
from dlc.schedule.text import canonical_text

Progress = Callable[[str, int, int], None]  # name of a kernel, kernels done, kernels in all

# Below this many kernels, starting other processes takes longer than it saves. Where they run
# already they are used for any number: an LLVM that aborts then takes only a worker with it.
MIN_PARALLEL = 4
_PACKAGE = Path(__file__).parents[2]
_COMPILER = ("core", "te", "schedule", "codegen")  # folders of dlc that code depends on


@dataclass(frozen=True, slots=True)
class KernelJob:
    """A lowered kernel to compile. `steps` are a tuning record's; None for the rule's own."""

    name: str
    func: Func
    target: Target
    steps: tuple[Step, ...] | None = None


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """The object file of a kernel, and the symbol in it that holds the code."""

    name: str
    symbol: str
    code: bytes


def start_workers(jobs: int | None = None) -> None:
    """Start worker processes early, so that they are ready once the kernels are."""
    count = jobs or usable_cores()
    if count > 1 and can_start():
        shared_pool(count)


def compile_kernels(
    kernels: Sequence[KernelJob],
    *,
    jobs: int | None = None,
    progress: Progress | None = None,
    cache: Cache | None = None,
) -> list[CompiledKernel]:
    """Compile kernels; the results are in their order.

    Args:
        kernels: what to compile.
        jobs: how many kernels to compile at the same time; default: one for each usable core.
        progress: called in this thread when a kernel is ready, with its name.
        cache: where objects are kept; default: the cache of the user. Whoever asks for dumps, or
            for what schedules are refused, gets those of every kernel, so nothing is taken from
            the cache then.

    Raises:
        DlcError: what the first of the failing kernels failed with.
    """
    store, dump, topics = cache or default_cache(), dump_dir(), log_topics() & TOPICS.keys()
    anew = dump is not None or "schedule" in topics
    keys = [_key(kernel) for kernel in kernels]
    first: dict[bytes, int] = {}
    for position, key in enumerate(keys):
        first.setdefault(key, position)
    report = _Report(keys, progress)
    objects: dict[bytes, bytes] = {}
    for key, position in first.items():
        found = None if anew else store.get(key)
        if found is not None:
            objects[key] = found
            report.ready(key, kernels[position].name)
    missing = sorted((key for key in first if key not in objects), key=len, reverse=True)
    tasks = [_task(kernels[first[key]], key, dump, topics) for key in missing]
    errors: dict[int, DlcError] = {}
    for position, result in _compile(tasks, jobs or usable_cores()):
        key = missing[position]
        if isinstance(result, DlcError):
            errors[first[key]] = result
            continue
        objects[key] = result
        store.put(key, result)
        report.ready(key, kernels[first[key]].name)
    if errors:
        raise errors[min(errors)]
    return [
        CompiledKernel(kernel.name, _symbol(key), objects[key])
        for kernel, key in zip(kernels, keys, strict=True)
    ]


class _Report:
    """Counts kernels that are ready; equal ones are ready together."""

    def __init__(self, keys: Sequence[bytes], progress: Progress | None) -> None:
        self.progress = progress
        self.keys = list(keys)
        self.done = 0

    def ready(self, key: bytes, name: str) -> None:
        self.done += self.keys.count(key)
        if self.progress:
            self.progress(name, self.done, len(self.keys))


def _compile(tasks: Sequence[KernelTask], jobs: int) -> Iterator[tuple[int, bytes | DlcError]]:
    """Objects or errors by position. After an error in this process nothing more is compiled."""
    worthwhile = len(tasks) >= MIN_PARALLEL or (len(tasks) > 0 and is_running())
    if jobs > 1 and worthwhile and can_start():
        yield from shared_pool(jobs).compile(tasks, jobs)
        return
    for position, task in enumerate(tasks):
        result = attempt(task)
        yield position, result
        if isinstance(result, DlcError):
            return


def symbol_of(job: KernelJob) -> str:
    """The symbol that the code of a kernel will have."""
    return _symbol(_key(job))


@per_object
def _key(job: KernelJob) -> bytes:
    """Everything the object file depends on."""
    target, steps = job.target, job.steps
    machine = replace(target, features=frozenset())
    parts = (
        f"{codegen_version()}",
        f"{machine} {sorted(target.features)}",
        "" if steps is None else f"{steps_to_json(steps)}\n{job.func}",  # steps hold names
        canonical_text(job.func),
    )
    return "\n".join(parts).encode()


def _task(job: KernelJob, key: bytes, dump: Path | None, topics: frozenset[str]) -> KernelTask:
    return KernelTask(job.func, job.target, job.steps, _symbol(key), dump, topics)


def _symbol(key: bytes) -> str:
    return f"kernel_{hashlib.sha256(key).hexdigest()[:24]}"


@functools.cache
def codegen_version() -> str:
    """A hash of the source that kernels are made by, and the version of llvmlite."""
    digest = hashlib.sha256()
    for folder in _COMPILER:
        for path in sorted((_PACKAGE / folder).rglob("*.py")):
            digest.update(f"{path.relative_to(_PACKAGE)}\n".encode())
            digest.update(path.read_bytes())
    return f"dlc {digest.hexdigest()} llvmlite {llvmlite.__version__}"
