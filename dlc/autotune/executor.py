"""Workers together: jobs go to whoever is free, and answers come as they are ready."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from typing import Protocol

from dlc.autotune.job import Job, Reply
from dlc.autotune.worker import LOST, Worker
from dlc.core.errors import UserError

SEAT = "seat"  # of an answer: the affinity of jobs for the worker that gave it
_ATTEMPTS = 2  # a job whose worker was lost is tried once more, on whichever is free


class Executor(Protocol):
    """Something that does jobs: a local pool, machines reached by ssh, a dask cluster."""

    @property
    def slots(self) -> int:
        """How many jobs it does at the same time."""
        ...

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Reply]]:
        """Do jobs; yield (position, answer) as they finish, each position once.

        A job that was lost again and again has the status `LOST`. The caller may stop early.
        """
        ...

    def close(self) -> None:
        """End the workers."""
        ...


class Asked(Protocol):
    """A worker as a pool sees it: one that answers one job after the other."""

    def start(self) -> None:
        """Make it ready before it is needed."""
        ...

    def ask(self, job: Job) -> Reply:
        """The answer to a job."""
        ...

    def close(self) -> None:
        """Let it go."""
        ...


class WorkerPool:
    """An executor over worker processes.

    With `speculate`, once no job waits, those still at work are also given to workers that have
    nothing to do; the first answer counts. So one slow machine holds up nobody.
    """

    def __init__(self, workers: Sequence[Asked], *, speculate: bool = False) -> None:
        if not workers:
            raise UserError(detail="an executor needs at least one worker")
        self.workers = list(workers)
        self.speculate = speculate
        self._queues: list[queue.SimpleQueue[_Round | None]] = []
        self._threads: list[threading.Thread] = []
        # Threads live as long as the pool: a worker dies with the thread that started it.
        for worker in self.workers:
            inbox: queue.SimpleQueue[_Round | None] = queue.SimpleQueue()
            seat = len(self._threads)
            thread = threading.Thread(target=_serve, args=(worker, inbox, seat), daemon=True)
            self._queues.append(inbox)
            self._threads.append(thread)
            thread.start()

    @property
    def slots(self) -> int:
        """The number of workers."""
        return len(self.workers)

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Reply]]:
        """Do jobs; see `Executor`."""
        if not jobs:
            return
        batch = _Round(jobs, self.slots, self.speculate)
        try:
            for inbox in self._queues:
                inbox.put(batch)
            for _ in jobs:
                yield batch.results.get()
        finally:
            batch.cancel()

    def ask_each(self, job: Job) -> list[Reply]:
        """What each worker answers to one job."""
        rounds = [_Round([job], 1, speculate=False) for _ in self.workers]
        for inbox, one in zip(self._queues, rounds, strict=True):
            inbox.put(one)
        return [one.results.get()[1] for one in rounds]

    def close(self) -> None:
        """End the workers and the threads that talk to them."""
        for inbox, worker in zip(self._queues, self.workers, strict=True):
            inbox.put(None)
            worker.close()
        for thread in self._threads:
            thread.join(timeout=5)


class _Round:
    """The jobs of one call, and who does what."""

    def __init__(self, jobs: Sequence[Job], workers: int, speculate: bool) -> None:
        self.jobs = jobs
        self.workers = workers
        self.speculate = speculate
        self.results: queue.SimpleQueue[tuple[int, Reply]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting = list(range(len(jobs)))[::-1]
        self._open: dict[int, int] = {}  # position -> workers at it
        self._lost: dict[int, int] = {}
        self._cancelled = False

    def take(self, seat: int) -> int | None:
        """The next job, first of those for this worker; or one that another has not finished."""
        with self._lock:
            if self._cancelled:
                return None
            if self._waiting:
                own = (p for p in reversed(self._waiting) if self._seat(p) == seat)
                position = next(own, self._waiting[-1])
                self._waiting.remove(position)
            else:
                alone = [p for p, count in self._open.items() if count == 1]
                if not (alone and self.speculate):
                    return None
                position = alone[0]
            self._open[position] = self._open.get(position, 0) + 1
            return position

    def _seat(self, position: int) -> int:
        return self.jobs[position].affinity % self.workers

    def give(self, position: int, reply: Reply) -> None:
        """An answer, which counts if it is the first, unless the worker was lost."""
        with self._lock:
            if position not in self._open:
                return  # answered already
            self._open[position] -= 1
            if reply.data.get("status") == LOST and not self._cancelled:
                self._lost[position] = self._lost.get(position, 0) + 1
                if self._open[position] > 0:
                    return
                if self._lost[position] < _ATTEMPTS:
                    del self._open[position]
                    self._waiting.append(position)
                    return
            del self._open[position]
        self.results.put((position, reply))

    def cancel(self) -> None:
        """Nobody waits any more."""
        with self._lock:
            self._cancelled = True


def _serve(worker: Asked, inbox: queue.SimpleQueue[_Round | None], seat: int) -> None:
    worker.start()
    while (batch := inbox.get()) is not None:
        while (position := batch.take(seat)) is not None:
            reply = worker.ask(batch.jobs[position])
            batch.give(position, Reply(reply.data | {SEAT: seat}, reply.blobs))


def local_pool(count: int) -> WorkerPool:
    """Workers on this machine."""
    return WorkerPool([Worker(name=f"local-{number}") for number in range(count)])
