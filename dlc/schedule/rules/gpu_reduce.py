"""Reductions inside of a block: a value for each lane of a warp, then shuffles between lanes.

Several rows go to the warps in turn. One long row goes to all warps; the first thread then takes in
what each of them has. The order depends on nothing but the sizes.

Source: CUDA C++ Programming Guide, "Warp Shuffle Functions", for the exchange of values; Harris,
"Optimizing Parallel Reduction in CUDA" (2007), for partial results per thread.
"""

from __future__ import annotations

from dlc.schedule.gpu import WARP
from dlc.schedule.instruction import WARP_REDUCTIONS, WarpReduction
from dlc.schedule.loop import accumulation
from dlc.schedule.nest import Stage
from dlc.schedule.primitive import refuse
from dlc.schedule.trace import Trace
from dlc.te.expr import ONE, BinOp

SHORT = 16  # values that one thread takes in by itself
LONG = 8  # values of a lane, from which on more warps share one row
_KINDS = {BinOp.ADD: "add", BinOp.MUL: "mul", BinOp.MIN: "min", BinOp.MAX: "max"}


def reduce_rows(trace: Trace, stage: Stage, names: list[str], threads: int) -> None:
    """Reduce the rows that `names` number, or the one there is, by the threads of a block."""
    buffer = stage.buffer
    if len(names) > 1:
        trace.do("reorder", tuple(names))  # moves guards inside
    row = trace.fuse_all(names) if len(names) > 1 else names[0]
    summand = trace.fuse_all([f.var for f in trace.stage(buffer).inner])
    rows, count = trace.constant(row), trace.constant(summand)
    if rows is None:
        refuse("rfactor", trace.func, f"'{buffer}' has {trace.extent(row)} rows in a block")
    instruction = _instruction(stage)
    if instruction is None or (count is not None and count <= SHORT):
        trace.do("bind", row, "thread")
    elif rows == 1 and (count is None or count > LONG * WARP) and threads > WARP:
        _by_all_warps(trace, buffer, summand, threads, instruction)
    else:
        _by_warps(trace, buffer, (row, summand), min(rows, threads // WARP), instruction)


def _instruction(stage: Stage) -> str | None:
    """What a warp does with its values, if it can."""
    kind = _KINDS.get(accumulation(stage.store) or BinOp.SUB)
    name = WarpReduction(kind or "", str(stage.value.dtype)).name
    return name if name in WARP_REDUCTIONS else None


def _by_warps(
    trace: Trace, buffer: str, over: tuple[str, str], warps: int, instruction: str
) -> None:
    """A warp for each row, in rounds."""
    row, summand = over
    _, lane = trace.split(summand, WARP)
    parts = f"{buffer}_parts"
    trace.do("rfactor", buffer, lane, parts)
    trace.do("expand_alloc", parts, row)
    trace.do("fission", row)
    if trace.extent(row) != ONE:
        trace.do("bind", row, "thread")
    rounds: list[str] = []
    for loop in (f"{row}_2", f"{row}_3"):
        turn, warp = trace.split(loop, warps)
        rounds.append(turn)
        inside = (lane, turn) if loop == f"{row}_2" else (turn, f"{lane}_final")
        trace.do("reorder", (warp, *inside))
    if warps > 1:
        trace.do("transform_layout", parts, (0, 1, 2), (warps, 1))
    trace.do("set_scope", parts, "register")
    trace.do("tensorize", f"{lane}_final", instruction)
    trace.do("bind", f"{row}_2i", "thread")
    trace.do("bind", lane, "thread")
    trace.do("bind", f"{row}_3i", "warp")
    for loop in rounds:
        trace.tile_loop(loop)


def _by_all_warps(trace: Trace, buffer: str, summand: str, threads: int, instruction: str) -> None:
    """All warps of the block take parts of one row."""
    _, part = trace.split(summand, threads)
    parts, last = f"{buffer}_parts", f"{buffer}_last"
    trace.do("rfactor", buffer, part, parts)
    warp, lane = trace.split(f"{part}_final", WARP)
    trace.do("rfactor", buffer, warp, last)
    trace.do("decompose_reduction", last, warp)
    trace.do("set_scope", last, "shared")
    own = trace.split(part, WARP)
    trace.do("transform_layout", parts, (0, 1), (WARP,))
    trace.do("set_scope", parts, "register")
    trace.do("tensorize", lane, instruction)
    for loop in (*own, f"{warp}_init"):
        trace.do("bind", loop, "thread")
    trace.do("bind", warp, "warp")
