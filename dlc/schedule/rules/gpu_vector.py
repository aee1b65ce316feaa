"""Products of one row with a matrix on a GPU, as classifiers and steps of generation have.

Each weight is read once, so all that counts is how many are on their way. A block has some columns
that lie side by side, so that its threads read whole sectors of memory; they share the summands,
each asks for several at once, and in the end the first ones add up what the others have.

Source: CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from dlc.core.target import Target
from dlc.schedule.loop import Func
from dlc.schedule.rules.contraction import find_contraction
from dlc.schedule.rules.gpu_block import unroll
from dlc.schedule.rules.gpu_contract import sum_and_result
from dlc.schedule.space import Space
from dlc.schedule.trace import Trace
from dlc.te.expr import ONE, Binary, BinOp, Const, Expr, Var
from dlc.te.transform import loads

THREADS = 512
COLUMNS = (64, 32, 16, 8)  # of a block
SECTOR = 32  # bytes that memory reads at a time
AHEAD = 16  # summands that a thread asks for at once
MIN_SUMMANDS = 32  # below, a thread adds them up alone


@dataclass(frozen=True, slots=True)
class Vector:
    """A product of one row: the buffer of its sums, and the columns that a block may have."""

    total: str
    result: str
    columns: tuple[int, ...]  # the most first


def match(func: Func, target: Target) -> Vector | None:
    """The product in a function whose moves are inlined, or None."""
    found = find_contraction(func)
    if found is None:
        return None
    total, result = sum_and_result(func, found)
    wide = [f for f in result.loops if f.extent != ONE]
    if [f.var for f in wide] != [found.lane] or not isinstance(wide[0].extent, Const):
        return None
    inner = [int(f.extent.value) for f in total.inner if isinstance(f.extent, Const)]
    if len(inner) != len(total.inner) or prod(inner) < MIN_SUMMANDS:
        return None
    own = [f for f in total.loops if f.extent != ONE]
    weights = [x for x in loads(total.value) if x.index and _is_along(x.index[-1], own[-1].var, 1)]
    if len(own) != 1 or len(weights) != 1:
        return None
    width = weights[0].dtype.size_bytes
    fitting = [
        n for n in COLUMNS
        if n <= wide[0].extent.value
        and n * width >= SECTOR
        and _is_along(weights[0].index[-1], own[-1].var, n)
    ]  # fmt: skip
    return Vector(total.buffer, result.buffer, tuple(fitting)) if fitting else None


def _is_along(index: Expr, column: str, count: int) -> bool:
    """Whether so many columns side by side, a multiple of them before, are neighbours in memory."""
    match index:
        case Var(name):
            return name == column
        case Binary(BinOp.MOD, Var(name), Const(panel)):
            return name == column and panel % count == 0
        case _:
            return False


def space(func: Func, target: Target) -> Space:
    """The columns of a block; 0 is analytic."""
    return Space({"columns": (0, *COLUMNS)})


def schedule(trace: Trace, found: Vector, target: Target, knobs: Mapping[str, int]) -> None:
    """Let blocks have neighbouring columns, and their threads share the summands."""
    assert target.gpu is not None, "blocks are for GPUs"
    total = found.total
    names = trace.stage(found.result).names
    lane = next(v for v in names if trace.extent(v) != ONE)
    size = trace.constant(lane) or 1
    filling = [n for n in found.columns if -(-size // n) >= target.gpu.processors]
    count = filling[0] if filling else found.columns[-1]
    if knobs.get("columns", 0) in found.columns:
        count = knobs["columns"]
    units = [v for v in names if v != lane]
    block, column = trace.split(lane, count)
    trace.do("reorder", (*units, block, column))
    trace.do("compute_at", total, block)
    for loop in (*units, block):
        trace.do("bind", loop, "block")
    trace.do("bind", column, "thread")
    _share(trace, total, THREADS // count)


def _share(trace: Trace, total: str, groups: int) -> None:
    """Let groups of threads share the summands of a block's sums, a thread for each column."""
    row = trace.fuse_all(trace.stage(total).names)
    summand = trace.fuse_all([f.var for f in trace.stage(total).inner])
    turns, group = trace.split(summand, groups)
    parts, own = f"{total}_parts", f"{total}_own"
    trace.do("rfactor", total, group, parts)
    trace.do("expand_alloc", parts, row)
    trace.do("fission", row)
    second, last = f"{row}_2", f"{row}_3"
    trace.do("transform_layout", parts, (1, 0))
    trace.do("reorder", (group, second))
    trace.do("cache_write", parts, second, own, "local")
    if (trace.constant(turns) or 1) > AHEAD:
        unroll(trace, [trace.split(turns, AHEAD)[1]])
    else:
        unroll(trace, [turns])
    trace.do("set_scope", parts, "shared")
    trace.do("set_scope", total, "register")
    for loop in (row, group, second, last):
        trace.do("bind", loop, "thread")
    unroll(trace, [f"{group}_final"])
