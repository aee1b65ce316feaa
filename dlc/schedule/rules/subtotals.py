"""Long sums as sums of subtotals: rounding grows with the length of a chain of additions."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from dlc.schedule.rules.prepare import unroll_factor
from dlc.schedule.trace import Trace

SUBTOTALS = (144,)  # products in one chain, whose rounding grows with its length; 9 * 16
SUBTOTALS_OF_LONG = (1024, 64)  # from LONG_SUM products on
LONG_SUM = 8192
SUBTOTALS_OF_ROW = (128, 16)  # one row waits for memory: it has time for sums of sums of sums


def chain_lengths(products: int, rows: int) -> tuple[int, ...]:
    """How many of the products of a sum are in one chain, the longest chains of chains first."""
    if rows == 1:
        return SUBTOTALS_OF_ROW
    return SUBTOTALS_OF_LONG if products >= LONG_SUM else SUBTOTALS


def cut_sum(trace: Trace, inner: Sequence[str], total: str, longest: int) -> tuple[list[str], str]:
    """Cut the sum over the loops `inner` into sums of about `longest` terms, which are added up.

    Returns the loops over the terms of a subtotal, and its buffer. A sum that is short, whose
    length is not known or has no fitting divisor (mostly a prime number) stays as it is.
    """
    loops = list(inner)
    extents = [trace.constant(v) for v in loops]
    if None in extents or prod(e or 1 for e in extents) < 2 * longest:
        return loops, total
    terms, first = 1, len(loops)  # of the loops from `first` on
    while first and terms * (extents[first - 1] or 1) <= longest:
        first -= 1
        terms *= extents[first] or 1
    if not first:
        return loops, total
    cut, inside = loops[first - 1], loops[first:]
    factor = unroll_factor(trace.extent(cut), max(1, longest // terms))
    if factor * terms < longest // 4:
        return loops, total
    if factor > 1:
        cut, own = trace.split(cut, factor)
        inside = [own, *inside]
    name = f"{total}_subtotal"
    trace.do("subtotal", total, cut, name)
    return inside, name
