"""A long sum on several blocks of a GPU, for results that are too few to fill it.

Each block sums up a part of the summands and writes it to memory; the last one of them adds the
parts up, always in the same order, and goes on with what is computed from the sum.

Source: Osama et al., "Stream-K: Work-centric Parallel Decomposition for Dense Matrix-Matrix
Multiplication on the GPU" (2023), section 2, for splitting the summands ("split-K").
"""

from __future__ import annotations

from dataclasses import dataclass

from dlc.schedule.edit import loops_around
from dlc.schedule.trace import Trace

PART = "_part"


@dataclass(frozen=True, slots=True)
class Parts:
    """A sum in parts: `total` is what a block sums up, in `memory` are all of them.

    `row`, `column` and `summand` are the loops of a part, `result` those over rows and columns that
    begin the sum.
    """

    total: str
    row: str
    column: str
    summand: str
    part: str
    memory: str
    result: tuple[str, str]

    @property
    def loops(self) -> tuple[str, str, str]:
        """The loops of a part: rows, columns and summands."""
        return self.row, self.column, self.summand

    @property
    def final(self) -> tuple[str, str, str]:
        """The loops that add the parts up: rows, columns and parts."""
        row, column = (f"{v}{PART}_3" for v in self.result)
        return row, column, f"{self.part}_final"

    @property
    def out(self) -> tuple[str, str]:
        """The loops that write a part to memory."""
        return f"{self.row}_{self.total}", f"{self.column}_{self.total}"


def split_sum(trace: Trace, total: str, loops: tuple[str, str, str], count: int) -> Parts:
    """Split a sum that is computed in a block; `loops` are its rows, columns and summands."""
    row, column, summand = loops
    size = trace.constant(summand)
    assert size is not None, "`gpu_cost` splits no sum of unknown size"
    part, rest = trace.split(summand, size // count)
    memory, own = f"{total}_parts", f"{total}_part"
    trace.do("rfactor", total, part, memory)
    around = [v for v in trace.stage(total).names if v not in (row, column)]
    for loop in (column, row, *reversed(around)):
        trace.do("expand_alloc", memory, loop)
        trace.do("fission", loop, PART)
    lead = len(around)
    trace.do("transform_layout", memory, (*range(lead), lead + 2, lead, lead + 1))
    second = [f"{v}{PART}_2" for v in (*around, row, column)]
    trace.do("reorder", (part, *second))
    trace.do("cache_write", memory, part, own, "local")
    trace.do("defer", (*around, row)[0])  # the sum begins when its parts are there
    return Parts(own, second[-2], second[-1], rest, part, memory, (row, column))


def spread_parts(trace: Trace, total: str, parts: Parts) -> None:
    """Give each part a block of its own, inside of the loops over blocks of the result."""
    blocks = [f.var for f in loops_around(trace.func, parts.part)[:-1]]
    trace.do("bind", parts.part, "block")
    for loop in reversed(blocks):
        trace.do("expand_alloc", parts.memory, loop)
    trace.do("sink_alloc", total)
