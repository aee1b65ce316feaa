"""The best of a search meets the default again, in several processes: luck does not last.

A search measures each candidate in one process, where its pages lie well or badly; the fastest of
many is one that was lucky. So those that seem fastest run in processes of their own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from dlc.autotune import job as jobs
from dlc.autotune.duel import Duel
from dlc.autotune.executor import Executor
from dlc.autotune.job import Reply
from dlc.autotune.record import Choice
from dlc.autotune.task_search import LEAST_GAIN, TaskSearch
from dlc.autotune.versions import versions

_CANDIDATES = 3
_LIVES = 4  # processes for each of them
_ROUNDS = 9
_SECONDS = 0.2  # in each process


def rebuild(search: TaskSearch, count: int) -> list[Reply]:
    """The fastest candidates of a search, built anew; those that build."""
    built = [jobs.build_steps(search.task, t.steps) for t in search.contenders(count)]
    replies = dict(search.machines.build.run(built))
    return [replies[n] for n in sorted(replies) if replies[n].data["status"] == "ok"]


def meet_default(
    search: TaskSearch,
    built: Sequence[Reply],
    executor: Executor,
    lives: int = _LIVES,
) -> list[tuple[float, Reply]]:
    """Measure candidates beside the default in `lives` processes each.

    Returns:
        The speed-up of each that ran in all of them (the geometric mean), the best first.
    """
    if search.anchor is None:
        return []
    in_each = replace(search.method, rounds=_ROUNDS, budget_seconds=_SECONDS)
    work = [
        jobs.measure(search.task, candidate.blobs[0], search.anchor, in_each)
        for _ in range(lives)
        for candidate in built
    ]
    found: list[list[tuple[list[int], list[int]]]] = [[] for _ in built]
    for position, reply in executor.run(work):
        if reply.data["status"] == "ok":
            times = reply.data["anchor_ns"], reply.data["times_ns"]
            found[position % len(built)].append(times)
    again = [
        (Duel(tuple(times)).speedup, candidate)
        for times, candidate in zip(found, built, strict=True)
        if len(times) == lives
    ]
    return sorted(again, key=lambda pair: -pair[0])


def confirm(search: TaskSearch, executor: Executor) -> Choice | None:
    """The choice for a task, or None where nothing beats the default for sure."""
    again = meet_default(search, rebuild(search, _CANDIDATES), executor)
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
