"""Check a candidate against the reference, then time it: what the child of a worker does."""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dlc.autotune.bench_method import Method
from dlc.autotune.evict import eviction_task
from dlc.autotune.guarded import Array, Guarded, aligned, fill_input, why_different
from dlc.autotune.record import Status
from dlc.autotune.task import Task
from dlc.autotune.trial_program import interface
from dlc.core.aligned import aligned_zeros
from dlc.runtime import Module, load, set_num_threads
from dlc.runtime.binding import Binding

_SHORT_NS = 20_000  # a run below this is timed together with others
_HOPELESS = 4.0  # times slower than the anchor: two runs tell enough
_SLOWER = 1.1  # times slower: four do
_TOO_SLOW = 32.0  # times the default's time that the run to be checked may take
_PATIENCE = 4  # times the budget, where the machine is busy with other things
_LEAST_ROUNDS = 3  # of a race, in each process
_SMALL_BYTES = 64 << 20  # an artefact that is copied for each race
_CHECK_SECONDS = 0.1  # beside it, for pages that are touched for the first time


class Prepared:
    """Inputs of a task, and what they should give: made once, inherited by each child."""

    def __init__(self, task: Task) -> None:
        inputs, outputs = interface(task)
        self.task = task
        self.outputs = outputs
        self.inputs = {b.name: Guarded(b, shared=True) for b in inputs}
        self.shared = {out: source for out, source in task.func.in_place}
        for seed, buffer in enumerate(inputs):
            fill_input(self.inputs[buffer.name].array, seed)
            self.inputs[buffer.name].seal()
        self.expected = {b.name: Guarded(b, shared=True) for b in outputs}
        self.timed = {name: aligned(g.array) for name, g in self.inputs.items()}

    def open_beside(self, anchor: bytes, eviction: bytes) -> None:
        """Open once what every child runs beside its candidate; it runs in children alone."""
        (other,), _ = interface(eviction_task(self.task.target))
        self.anchor = self._bind(open_artefact(anchor))[0]
        self.evict = open_artefact(eviction).bind({"x": _ones(other.type.static_shape)})

    @property
    def nbytes(self) -> int:
        """The memory of all arrays."""
        arrays = [g.array for g in (*self.inputs.values(), *self.expected.values())]
        return sum(a.nbytes for a in (*arrays, *self.timed.values()))

    def compute_expected(self, reference: bytes) -> dict[str, Any]:
        """In a child: run the reference into memory that this process shares."""
        module = open_artefact(reference)
        self._reset(self.expected)
        arrays = {name: g.array for name, g in self.expected.items()}
        module.bind({n: g.array for n, g in self.inputs.items()}, arrays).run()
        return {"status": str(Status.OK)}

    def measure(self, code: bytes, method: Method, default_ns: float = 0.0) -> dict[str, Any]:
        """In a child: check and time a candidate; data of a `Trial`.

        Where the time of the default is known, this process ends by `SIGPROF` if the candidate
        needs far more.
        """
        set_num_threads(method.threads)
        module = open_artefact(code)
        _limit_processor_time(default_ns * method.threads)
        if problem := self._check(module):
            return {"status": str(Status.WRONG), "detail": problem}
        _limit_processor_time(0.0)
        own = self._bind(module)
        flush = _leave if method.cache == "warm" else self.evict.run
        times, anchors = _take_turns(own[0], self.anchor, flush, method)
        if problem := self._why_changed(own[1]):
            return {"status": str(Status.WRONG), "detail": f"after {len(times)} runs: {problem}"}
        return {"status": str(Status.OK), "times_ns": times, "anchor_ns": anchors}

    def _check(self, module: Module) -> str:
        """Run once between pages that cannot be touched."""
        results = {b.name: Guarded(b) for b in self.outputs}
        self._reset(results)
        inputs = {n: g.array for n, g in self.inputs.items()}
        module.bind(inputs, {n: g.array for n, g in results.items()}).run()
        for name, guarded in results.items():
            if guarded.was_overrun():
                return f"bytes before '{name}' were written"
            if problem := why_different(guarded.array, self.expected[name].array):
                return f"'{name}': {problem}"
        return ""

    def _reset(self, results: Mapping[str, Guarded]) -> None:
        """Give results the content they have before a run."""
        for seed, (name, guarded) in enumerate(results.items()):
            if name in self.shared:
                fill_input(guarded.array, 1000 + seed)
            else:
                guarded.fill()

    def _bind(self, module: Module) -> tuple[Binding, dict[str, Array]]:
        outputs = {n: aligned_zeros(g.array) for n, g in self.expected.items()}
        return module.bind(self.timed, outputs), outputs

    def _why_changed(self, outputs: Mapping[str, Array]) -> str:
        """Whether the last of many runs still gave the reference's numbers."""
        for name, array in outputs.items():
            if name in self.shared:
                continue  # it was its own input
            if problem := why_different(array, self.expected[name].array):
                return f"'{name}': {problem}"
        return ""


def race_artefacts(data: Mapping[str, Any], artefacts: Sequence[str | bytes]) -> dict[str, Any]:
    """Time two artefacts of one model, files or their content, in turn; times in order.

    Both get the same random inputs, and both have run before the first run that counts.
    """
    set_num_threads(data["threads"])
    modules = [_open_copy(artefact) for artefact in artefacts]
    feeds = modules[0].example_inputs(data["sizes"])
    for seed, array in enumerate(feeds.values()):
        fill_input(array, seed)
    bindings = [module.bind(feeds) for module in modules]
    for binding in (*bindings, *bindings):
        binding.run()
    times: list[list[int]] = [[], []]
    began = time.perf_counter()
    for number in range(data["rounds"]):
        for which in (0, 1) if number % 2 else (1, 0):
            times[which].append(_time(bindings[which], 1))
        if number >= _LEAST_ROUNDS - 1 and time.perf_counter() - began > data["budget_seconds"]:
            break
    return {"status": str(Status.OK), "times_ns": times}


def _open_copy(artefact: str | bytes) -> Module:
    """Load an artefact from pages of its own where that costs little: which ones is chance."""
    if isinstance(artefact, bytes):
        return open_artefact(artefact)
    if os.path.getsize(artefact) > _SMALL_BYTES:
        return load(artefact, verify="fast")
    with open(artefact, "rb") as file:
        return open_artefact(file.read())


def open_artefact(data: bytes) -> Module:
    """Load an artefact that lies in memory."""
    file = os.memfd_create("candidate.so")
    with open(file, "wb", closefd=False) as out:
        out.write(data)
    return load(f"/proc/self/fd/{file}", verify="fast")


@functools.lru_cache(maxsize=4)
def _ones(shape: tuple[int, ...]) -> Array:
    """Data that fills caches. Of ones: a page that was never written is one for all."""
    return aligned(np.ones(shape, np.int64))


def _limit_processor_time(default_ns: float) -> None:
    """End this process when it has worked far longer than the default does; 0 takes it back.

    Of processor time, as a run that waits its turn is no slow one.
    """
    seconds = _CHECK_SECONDS + _TOO_SLOW * default_ns / 1e9 if default_ns else 0.0
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)


def _leave() -> None:
    """Leave the caches as they are."""


def _take_turns(
    own: Binding, anchor: Binding, flush: Callable[[], object], method: Method
) -> tuple[list[int], list[int]]:
    """Times of single runs of both, in turn, until the budget is spent or one is slower."""
    own.run()
    anchor.run()
    began = time.perf_counter()
    count = 1
    if method.cache == "warm":
        count = max(1, _SHORT_NS // max(1, _time(own, 1)))
    times: list[int] = []
    anchors: list[int] = []
    for number in range(1, method.rounds + 1):
        pairs = [(own, times), (anchor, anchors)]
        for binding, found in reversed(pairs) if number % 2 else pairs:
            flush()
            found.append(_time(binding, count))
        slower = min(times) / max(1, min(anchors))
        if (slower > _HOPELESS and number >= 2) or (slower > _SLOWER and number >= 4):
            break
        if number < 3:
            continue
        patience = 1 if _is_calm(times) and _is_calm(anchors) else _PATIENCE
        if time.perf_counter() - began > patience * method.budget_seconds:
            break
    return times, anchors


def _is_calm(times_ns: Sequence[int]) -> bool:
    """Whether two runs agree that nothing is faster: others have left the machine alone."""
    first, second = sorted(times_ns)[:2]
    return second <= 1.1 * first


def _time(binding: Binding, count: int) -> int:
    began = time.perf_counter_ns()
    for _ in range(count):
        binding.run()
    return (time.perf_counter_ns() - began) // count
