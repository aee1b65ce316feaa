"""Which machines build and which measure, from the words of the command line."""

from __future__ import annotations

from collections.abc import Sequence

from dlc.autotune.executor import Asked, Executor, WorkerPool, local_pool
from dlc.autotune.job import Job
from dlc.autotune.peer_version import check_peer
from dlc.autotune.session import Machines
from dlc.autotune.worker import LOST, Worker
from dlc.core.errors import UserError
from dlc.core.machine import usable_cores

_SSH, _DASK, _RUN = "ssh://", "dask://", "run:"
_HELLO_SECONDS = 60.0  # to reach a machine and to import dlc there
_HINT = "write local, ssh://HOST, dask://HOST:PORT or run:COMMAND"


def open_machines(runners: Sequence[str] = (), jobs: int | None = None) -> Machines:
    """Builders on this machine, and whoever measures; default: this machine.

    Args:
        runners: `local`, `ssh://HOST` (where `dlc` is installed), `dask://HOST:PORT`, or
            `run:COMMAND`, which starts programs for the target, as `run:qemu-aarch64 -L SYSROOT`.
            Several measure at the same time, each candidate beside the default on one of them.
        jobs: how many candidates are built at the same time; default: one for each core.

    Raises:
        UserError: a runner that is not understood, or cannot be reached.
    """
    build = local_pool(jobs or usable_cores())
    try:
        return Machines(build, open_runners(runners or ["local"]))
    except BaseException:
        build.close()
        raise


def open_runners(runners: Sequence[str]) -> Executor:
    """What measures.

    Raises:
        UserError: as `open_machines`.
    """
    clusters = [r for r in runners if r.startswith(_DASK)]
    if clusters:
        if len(runners) > 1:
            raise UserError(detail="a dask cluster measures alone", hint="give one --runner")
        from dlc.autotune.dask_executor import DaskExecutor

        return DaskExecutor(clusters[0].removeprefix(_DASK))
    workers = [_worker(runner, number) for number, runner in enumerate(runners)]
    pool = WorkerPool(workers, speculate=len(workers) > 1)
    if any(runner.startswith(_SSH) for runner in runners):
        try:
            _greet(pool, runners)
        except BaseException:
            pool.close()
            raise
    return pool


def _greet(pool: WorkerPool, runners: Sequence[str]) -> None:
    """Ask workers that were just opened on other machines which dlc they have.

    Raises:
        UserError: one does not answer, or cannot be asked.
    """
    replies = pool.ask_each(Job({"job": "hello"}, seconds=_HELLO_SECONDS))
    for runner, reply in zip(runners, replies, strict=True):
        if not runner.startswith(_SSH):
            continue
        host = runner.removeprefix(_SSH)
        if reply.data.get("status") == LOST:
            hint = f"'ssh {host} dlc --version' must work without a question"
            raise UserError(detail=f"no answer: {reply.data['detail']}", hint=hint)
        check_peer(f"the machine {host}", reply.data)


def _worker(runner: str, number: int) -> Asked:
    if runner.startswith(_RUN) and runner.removeprefix(_RUN).strip():
        from dlc.autotune.foreign import ForeignWorker

        return ForeignWorker(runner.removeprefix(_RUN))
    if runner == "local":
        return Worker(name=f"local-{number}")
    host = runner.removeprefix(_SSH)
    if runner.startswith(_SSH) and host and not host.startswith("-"):
        # BatchMode: a question for a password would wait for ever.
        return Worker(ssh_command(host), name=host)
    raise UserError(detail=f"--runner '{runner}' is not understood", hint=_HINT)


def ssh_command(host: str) -> list[str]:
    """What starts a worker on another machine."""
    return ["ssh", "-o", "BatchMode=yes", "--", host, "dlc", "worker", "--stdio"]
