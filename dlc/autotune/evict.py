"""A program that fills the caches of all cores with other data, as the rest of a model does.

It runs on the threads that run candidates. Were only the caches of one core filled, a schedule
that lets every core read all weights would seem faster than it is in a model.
"""

from __future__ import annotations

from dlc.autotune.task import Task, make_task
from dlc.core.target import Target
from dlc.schedule.text import parse_func

_LINE_WORDS = 8  # of 64 bits in a line of a cache, of which one is read
_TEXT = """
def evict(x: i64[{lines}, {words}], *, y: i64[{cores}, {words}]):
    for core in parallel({cores}):
        y[core, 0] = i64(0)
        for line in range({lines}):
            y[core, 0] += x[line, 0]
"""


def eviction_task(target: Target) -> Task:
    """The task whose plain nest reads twice what the second cache holds, on each core."""
    lines = 2 * target.l2_bytes // (8 * _LINE_WORDS)
    text = _TEXT.format(lines=lines, words=_LINE_WORDS, cores=target.cores)
    return make_task(parse_func(text), target)
