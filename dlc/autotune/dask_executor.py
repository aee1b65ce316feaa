"""Jobs on a dask cluster: each dask worker keeps one worker process, where candidates may die.

A dask worker that is lost gives its jobs to another one. Needs the extra `dask`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

from dlc.autotune.job import Job, Reply
from dlc.autotune.worker import LOST, Worker
from dlc.core.errors import UserError

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
            UserError: dask is not installed, or nobody answers.
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

    @property
    def slots(self) -> int:
        """The workers of the cluster, which may come and go."""
        return max(1, len(self._client.scheduler_info(n_workers=-1)["workers"]))

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Reply]]:
        """Do jobs; see `Executor`."""
        from distributed import as_completed

        completed: Any = as_completed
        futures = {
            self._client.submit(run_job, job, pure=False, retries=1): position
            for position, job in enumerate(jobs)
        }
        try:
            for future in completed(list(futures), loop=self._client.loop):
                yield futures.pop(future), _result(future)
        finally:
            for future in futures:
                future.cancel()

    def close(self) -> None:
        """Leave the cluster, which goes on."""
        self._client.close()


def _result(future: Any) -> Reply:
    try:
        found = future.result()
    except Exception as error:  # of dask: the machines that had the job are gone
        return Reply({"status": LOST, "detail": f"dask: {error!r}"[:2000]})
    assert isinstance(found, Reply)
    return found
