"""How the sums of a tile are added up: in registers, along vectors, their loops written out."""

from __future__ import annotations

from math import isqrt, prod

from dlc.schedule.loop import accumulation
from dlc.schedule.rules.prepare import unroll_factor
from dlc.schedule.trace import Trace
from dlc.te.expr import BinOp

MAX_OPERATIONS = 512  # vector operations written out for one tile
MAX_WIDTH = 16  # of rows of a window that are written out where the window is not
LONG_SUM = 32  # terms in one chain, whose rounding grows with its length
LONG_SQUARES = 256  # the same of squares, of which a norm has those of all pixels


def accumulate(
    trace: Trace,
    total: str,
    keep: bool,
    written_out: int = -1,
    lanes: int | None = None,
    outer: tuple[int, ...] = (),
) -> None:
    """Add a tile up in registers; its totals over subtotals too where `keep`.

    Of the loops of the window so many are written out, -1 for as many as seem good: all but those
    of `outer`, if there are any. Vectors have all elements of a line of the tile, or `lanes`.
    """
    trace.do("decompose_reduction", total, trace.stage(total).names[0])
    stage = trace.stage(total)
    inner = [f.var for f in stage.inner]
    around = [inner[i] for i in outer]
    inner = [*around, *(v for v in inner if v not in around)]
    trace.do("reorder", (*inner, *stage.names))
    for names in (stage.names, [f"{n}_init" for n in stage.names]):
        in_vectors(trace, names, lanes)
    inner, part = _subtotals(trace, inner, total)
    operations = prod(written_size(trace, v) for v in (*inner, *stage.names[:-1]))
    if outer and written_out < 0:
        written_out = len(inner) - len(outer)
    if written_out < 0:
        _unroll(trace, inner, operations <= MAX_OPERATIONS)
    for name in inner[::-1][:written_out] if written_out > 0 else ():
        trace.tile_loop(name)
    trace.do("set_scope", part, "register")
    if part != total and keep:
        trace.do("set_scope", total, "register")


def in_vectors(
    trace: Trace, names: list[str], lanes: int | None = None, *, write_out: bool = True
) -> None:
    """Run the last of some loops as one vector, or as several of `lanes`; write out the others."""
    if not names:
        return  # there is one element
    *others, last = names
    if lanes is not None and (trace.constant(last) or 0) > lanes:
        several, last = trace.split(last, lanes)
        others.append(several)
    for name in others if write_out else ():
        trace.tile_loop(name)
    trace.tile_loop(last, lanes=True)


def _subtotals(trace: Trace, inner: list[str], total: str) -> tuple[list[str], str]:
    """Add the terms of a long sum up in rows first: means over whole images.

    Returns the loops over terms inside of a row, and the buffer that adds one up.
    """
    stage = trace.stage(total)
    terms = prod(written_size(trace, v) for v in inner)
    factors = stage.factors
    longest = LONG_SUM if factors is None else LONG_SQUARES
    is_sum = accumulation(stage.store) is BinOp.ADD and (
        factors is None or factors[0] == factors[1]
    )
    if not is_sum or terms <= longest:
        return inner, total
    *outer, row = [v for v in inner if trace.constant(v) != 1]
    if not outer:
        factor = unroll_factor(trace.extent(row), isqrt(terms))
        if factor == 1:
            return inner, total  # a prime number of terms
        rows, row = trace.split(row, factor)
        outer = [rows]
    name = f"{total}_subtotal"
    trace.do("subtotal", total, outer[-1], name)
    return [row], name


def written_size(trace: Trace, loop: str) -> int:
    """The extent of a loop; an open one counts as too large to be written out."""
    extent = trace.constant(loop)
    return MAX_OPERATIONS + 1 if extent is None else extent


def _unroll(trace: Trace, inner: list[str], every: bool) -> None:
    """Unroll the loops of the window: all of them, or only a short innermost one."""
    for name in reversed(inner):
        if not every and (name != inner[-1] or written_size(trace, name) > MAX_WIDTH):
            break
        trace.tile_loop(name)
