"""Jobs on a dask cluster: each dask worker keeps one worker process, where candidates may die.

A dask worker that is lost gives its jobs to another one. Once a dask worker has nothing to do, it
is given what others have not finished; the first answer counts. Needs the extra `dask`.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dlc.autotune.job import Job, Reply
from dlc.autotune.peer_version import check_peer, describe_peer
from dlc.autotune.worker import LOST, Worker
from dlc.core.errors import UserError

_IDLE_SECONDS = 0.25  # between looks at who has nothing to do
_lock = threading.Lock()
_worker: Worker | None = None


def run_job(job: Job) -> Reply:
    """Do a job; this runs on the cluster."""
    global _worker
    with _lock:  # one job at a time on one machine: timings would disturb each other
        if _worker is None:
            _worker = Worker(name="dask")
        return _worker.ask(job)


class DaskExecutor:
    """An executor over a cluster that is running already."""

    def __init__(self, address: str) -> None:
        """Connect.

        Raises:
            UserError: dask is not installed, nobody answers, or a worker's dlc cannot be asked.
        """
        try:
            from distributed import Client
        except ImportError as error:
            hint = "pip install 'dlc[dask]'"
            raise UserError(detail="dask is not installed", hint=hint) from error
        try:
            connect: Any = Client  # dask has no types
            self._client = connect(address, timeout=20, set_as_default=False)
        except (OSError, TimeoutError) as error:
            raise UserError(detail=f"no dask scheduler answers at {address}") from error
        try:
            for worker, found in self._client.run(describe_peer, on_error="return").items():
                check_peer(f"the dask worker {worker}", found if isinstance(found, dict) else {})
        except BaseException:
            self.close()
            raise

    @property
    def slots(self) -> int:
        """The workers of the cluster, which may come and go."""
        return max(1, len(self._client.scheduler_info(n_workers=-1)["workers"]))

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Reply]]:
        """Do jobs; see `Executor`."""
        batch = Round(self._client, jobs)
        try:
            while batch.open:
                if (found := batch.answer()) is not None:
                    yield found
                batch.help_out()
        finally:
            batch.cancel()

    def close(self) -> None:
        """Leave the cluster, which goes on."""
        self._client.close()


class Round:
    """The jobs of one call that have no answer yet, and the futures of each: one, or a twin too."""

    def __init__(self, client: Any, jobs: Sequence[Job]) -> None:
        self.client, self.jobs = client, jobs
        self.open: dict[int, list[Any]] = {n: [] for n in range(len(jobs))}
        self._done: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        for position in self.open:
            self._submit(position)

    def answer(self) -> tuple[int, Reply] | None:
        """The next answer that counts; None where there was none for a while."""
        try:
            position, future = self._done.get(timeout=_IDLE_SECONDS)
        except queue.Empty:
            return None
        futures = self.open.get(position, [])
        if future not in futures:
            return None  # its twin was faster
        reply = _result(future)
        futures.remove(future)
        if reply.data["status"] == LOST and futures:
            return None  # its twin is still at it
        del self.open[position]
        for late in futures:
            late.cancel()
        return position, reply

    def help_out(self) -> None:
        """Give workers without a job what others have not finished."""
        alone = [n for n, futures in self.open.items() if len(futures) == 1]
        if not alone:
            return
        busy: Mapping[str, Sequence[object]] = self.client.processing()
        where = {key: worker for worker, keys in busy.items() for key in keys}
        idle = [worker for worker, keys in busy.items() if not keys]
        for worker, position in zip(
            idle, (n for n in alone if self._is_begun(n, where)), strict=False
        ):
            self._submit(position, worker)

    def cancel(self) -> None:
        """Nobody waits any more."""
        for futures in self.open.values():
            for future in futures:
                future.cancel()

    def _is_begun(self, position: int, where: Mapping[object, str]) -> bool:
        """Whether a worker has the job: else it goes to whoever is free anyway."""
        return self.open[position][0].key in where

    def _submit(self, position: int, worker: str | None = None) -> None:
        where = {"workers": [worker], "allow_other_workers": True} if worker else {}
        future = self.client.submit(run_job, self.jobs[position], pure=False, retries=1, **where)
        self.open[position].append(future)
        future.add_done_callback(lambda done: self._done.put((position, done)))


def _result(future: Any) -> Reply:
    try:
        found = future.result()
    except Exception as error:  # of dask: the machines that had the job are gone
        return Reply({"status": LOST, "detail": f"dask: {error!r}"[:2000]})
    assert isinstance(found, Reply)
    return found
