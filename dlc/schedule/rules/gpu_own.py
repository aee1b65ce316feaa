"""Reductions whose result each thread needs alone: pooling, depthwise convolution, long sums.

Where every element of the result reads an element of the reduction that no other one reads, the
thread that computes the one computes the other as well, in a register, in the same launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dlc.core.target import Target
from dlc.schedule.loop import Func, allocs
from dlc.schedule.nest import Stage, readers, simple_index, stages
from dlc.schedule.space import Space
from dlc.schedule.trace import Trace
from dlc.te.expr import ONE, Var
from dlc.te.transform import loads


@dataclass(frozen=True, slots=True)
class Own:
    """Reductions and the loop of their reader that they go to."""

    places: tuple[tuple[str, str], ...]


def match(func: Func, target: Target) -> Own | None:
    """The reductions that each thread can compute by itself, or None."""
    known = stages(func)
    made = allocs(func.body)
    found: list[tuple[str, str]] = []
    for total in known:
        if not total.is_reduction or total.buffer not in made:
            continue
        users = [s for s in known if s is not total and s.reads(total.buffer)]
        if len(users) == 1 and readers(func, total.buffer) == 1 and _is_own(users[0], total.buffer):
            found.append((total.buffer, users[0].names[-1]))
    return Own(tuple(found)) if found else None


def _is_own(user: Stage, buffer: str) -> bool:
    """Whether different elements of the reader read different elements."""
    if user.is_reduction or not user.loops:
        return False
    wide = {f.var for f in user.loops if f.extent != ONE}
    index = next(x.index for x in loads(user.value) if x.buffer == buffer)
    position = [simple_index(i, user.loops) for i in index]
    return wide <= {p.name for p in position if isinstance(p, Var)}


def space(func: Func, target: Target) -> Space:
    """Nothing to choose yet."""
    return Space({})


def schedule(trace: Trace, found: Own, target: Target, knobs: Mapping[str, int]) -> None:
    """Move each reduction to its reader."""
    for buffer, loop in found.places:
        trace.do("compute_at", buffer, loop)
