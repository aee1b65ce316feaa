"""The best of a search meets the default once more, at length: luck does not last."""

from __future__ import annotations

import time
from dataclasses import replace

from dlc.autotune import job as jobs
from dlc.autotune.bench_method import Method
from dlc.autotune.executor import Executor
from dlc.autotune.job import Reply
from dlc.autotune.record import Choice, quartile
from dlc.autotune.task_search import LEAST_GAIN, TaskSearch
from dlc.autotune.versions import versions

_CANDIDATES = 3
_ROUNDS = 31
_SECONDS = 0.6


def measure_again(
    search: TaskSearch, executor: Executor, method: Method, count: int
) -> list[tuple[float, Reply]]:
    """The fastest candidates of a search beside the default, at length.

    Returns:
        Of each that ran its speed-up and how it was built, the best first.
    """
    found = search.contenders(count)
    if not found or search.anchor is None:
        return []
    built = [jobs.build_steps(search.task, t.steps) for t in found]
    replies = dict(search.machines.build.run(built))
    long = replace(method, rounds=_ROUNDS, budget_seconds=_SECONDS)
    ready = [n for n in sorted(replies) if replies[n].data["status"] == "ok"]
    work = [jobs.measure(search.task, replies[n].blobs[0], search.anchor, long) for n in ready]
    again = []
    for position, reply in executor.run(work):
        if reply.data["status"] == "ok":
            speedup = quartile(reply.data["anchor_ns"]) / quartile(reply.data["times_ns"])
            again.append((speedup, replies[ready[position]]))
    return sorted(again, key=lambda pair: -pair[0])


def confirm(search: TaskSearch, executor: Executor, method: Method) -> Choice | None:
    """The choice for a task, or None where nothing beats the default for sure."""
    again = measure_again(search, executor, method, _CANDIDATES)
    if not again or again[0][0] < LEAST_GAIN:
        return None
    speedup, built = again[0]
    return Choice(
        task=search.key,
        steps=built.data["steps"],
        nest=built.data["nest"],
        default_nest=search.default_nest,
        speedup=round(speedup, 4),
        model_speedup=0.0,
        made_at=time.time(),
        versions=versions(),
    )
