"""How sums go from the registers of a GPU's threads to what is computed from them.

A thread has sums that suit the products: of a matrix engine, two neighbours here and there. Through
shared memory, others take over: neighbours in memory then are those of neighbouring threads, which
write whole lines, and a thread works at few elements at a time.

Source: CUTLASS documentation, "Efficient GEMM in CUDA", section "Epilogue".
"""

from __future__ import annotations

from dlc.core.target import Target
from dlc.schedule.gpu import WARP
from dlc.schedule.loop import allocs, loops
from dlc.schedule.nest import Stage
from dlc.schedule.trace import Trace
from dlc.te.expr import Unary, UnOp
from dlc.te.transform import walk

GAP = 8  # elements behind each row in shared memory, so that rows begin in other banks
TOGETHER = 16  # elements of a thread that are written out, so that what they need is loaded at once
FEW = 4  # of a long function
LONG = frozenset({
    UnOp.EXP, UnOp.LOG, UnOp.TANH, UnOp.ERF, UnOp.NORMCDF, UnOp.NORMCDF_SHORT, UnOp.SIGMOID,
})  # fmt: skip


def is_long(result: Stage) -> bool:
    """Whether a stage computes a function of many instructions."""
    return any(isinstance(e, Unary) and e.op in LONG for e in walk(result.value))


def fits(trace: Trace, total: str, shape: tuple[int, int], target: Target) -> bool:
    """Whether shared memory holds the sums of a block."""
    assert target.gpu is not None, "shared memory is a GPU's"
    width = allocs(trace.func.body)[total].buffer.type.dtype.size_bytes
    return shape[0] * (shape[1] + GAP) * width <= target.gpu.shared_bytes


def place(
    trace: Trace, total: str, outer: tuple[str, ...], shape: tuple[int, int], threads: int
) -> tuple[str, str]:
    """Cut the result of a sum into tiles, and let a block's threads take it from shared memory.

    `outer` are the loops over the result: a batch, rows and columns. The loops over rows and
    columns that bring the sums there come back.
    """
    wide = _most(shape[1], WARP)
    high = _most(shape[0], max(1, threads // wide))
    cuts = (1,) * (len(outer) - 2) + (high, wide)
    sizes = (1,) * (len(outer) - 2) + shape
    digits = tuple(
        (*((("m", size // cut, "step"),) if size > cut else ()), ("t", cut, "thread"))
        for size, cut in zip(sizes, cuts, strict=True)
    )
    trace.do("distribute_digits", outer, digits)
    at, name = f"{outer[-1]}_b", f"{total}_staged"
    trace.do("compute_at", total, at)
    trace.do("hand_on", total, at, name, "shared")
    rank = len(trace.stage(name).store.index)
    trace.do("pad_dim", name, rank - 1, GAP)
    return f"{name}_{rank - 2}", f"{name}_{rank - 1}"


def _most(size: int, limit: int) -> int:
    """The largest part of a size that is within a limit, all parts being as large."""
    return next(n for n in range(min(size, limit), 0, -1) if size % n == 0)


def write_out(trace: Trace, outer: tuple[str, ...], result: str) -> None:
    """Write out a thread's elements of the result, or some of them at a time."""
    most = FEW if is_long(trace.stage(result)) else TOGETHER
    for loop in (f"{outer[-1]}_m", f"{outer[-2]}_m"):
        if loop in loops(trace.func.body):
            count = trace.constant(loop) or 1
            trace.tile_loop(trace.split(loop, most)[1] if count > most else loop)
            most = max(1, most // count)
