"""Which answers count where a job is given to several dask workers."""

from __future__ import annotations

from dlc.autotune.dask_executor import Round
from dlc.autotune.job import Job, Reply
from dlc.autotune.worker import LOST

JOBS = [Job({"job": "hello", "number": n}) for n in range(2)]


class Future:
    """What a worker will answer."""

    def __init__(self, key, worker):
        self.key, self.worker, self.is_cancelled = key, worker, False
        self._callbacks, self._reply = [], None

    def add_done_callback(self, callback):
        self._callbacks.append(callback)

    def cancel(self):
        self.is_cancelled = True

    def result(self):
        if self._reply is None:
            raise RuntimeError("the worker is gone")
        return self._reply

    def end(self, reply=None):
        self._reply = reply
        for callback in self._callbacks:
            callback(self)


class Client:
    """A cluster of two workers, which get the jobs in turn."""

    def __init__(self):
        self.given = []

    def submit(self, function, job, *, workers=None, **options):
        worker = workers[0] if workers else ("slow", "fast")[len(self.given) % 2]
        self.given.append(Future(f"job {len(self.given)}", worker))
        return self.given[-1]

    def processing(self):
        at_work = [f for f in self.given if f._reply is None and not f.is_cancelled]
        return {name: [f.key for f in at_work if f.worker == name] for name in ("slow", "fast")}


def ok(worker):
    return Reply({"status": "ok", "by": worker})


def begun():
    """A round of which the fast worker has done its job."""
    client = Client()
    batch = Round(client, JOBS)
    batch.help_out()
    assert [f.worker for f in client.given] == ["slow", "fast"]  # both have work
    client.given[1].end(ok("fast"))
    assert batch.answer() == (1, ok("fast"))
    batch.help_out()
    assert [f.worker for f in client.given] == ["slow", "fast", "fast"]
    batch.help_out()
    assert len(client.given) == 3  # a job has one twin at most
    return client, batch


def test_a_worker_that_stays_slow_holds_up_nobody():
    client, batch = begun()
    client.given[2].end(ok("fast"))
    assert batch.answer() == (0, ok("fast"))
    assert not batch.open
    assert client.given[0].is_cancelled
    client.given[0].end(ok("slow"))
    assert batch.answer() is None


def test_a_twin_may_be_slower_than_the_first():
    client, batch = begun()
    client.given[0].end(ok("slow"))
    assert batch.answer() == (0, ok("slow"))
    assert client.given[2].is_cancelled


def test_a_job_is_lost_where_both_who_have_it_are():
    client, batch = begun()
    client.given[0].end()
    assert batch.answer() is None  # its twin is still at it
    client.given[2].end()
    position, reply = batch.answer()
    assert (position, reply.data["status"]) == (0, LOST)
