"""Index formulas of operators that move elements."""

from __future__ import annotations

from collections.abc import Sequence

from dlc.te import tensor as te
from dlc.te.expr import ONE, TRUE, ZERO, Expr, both, const, maximum, minimum, select
from dlc.te.simplify import canonical, surely_equal, surely_less
from dlc.te.types import Shape


def reshaped_index(position: Sequence[Expr], shape: Shape, source: Shape) -> tuple[Expr, ...]:
    """Where a tensor of shape `source` holds the element at `position` of a reshape of it.

    Runs of dimensions with equally many elements are treated by themselves, so that dimensions
    that stay as they are keep plain indices.
    """
    result: list[Expr] = []
    i = j = 0
    while i < len(source) or j < len(shape):
        m, n = _run(source[i:], shape[j:])
        result += _within(position[j : j + n], shape[j : j + n], source[i : i + m])
        i, j = i + m, j + n
    return tuple(result)


def _run(source: Shape, shape: Shape) -> tuple[int, int]:
    """How many dimensions on either side hold the same number of elements; the fewest."""
    left, right = _products(source), _products(shape)
    pairs = [(m, n) for m in range(len(left)) for n in range(len(right))]
    for m, n in sorted(pairs, key=sum):
        if m + n and surely_equal(left[m], right[n]):
            return m, n
    return len(source), len(shape)


def _products(sizes: Shape) -> list[Expr]:
    totals: list[Expr] = [ONE]
    for size in sizes:
        totals.append(canonical(totals[-1] * size))
    return totals


def _within(position: Sequence[Expr], shape: Shape, source: Shape) -> list[Expr]:
    if len(position) == 1 and len(source) == 1:
        return [position[0]]
    flat: Expr = ZERO
    for at, size in zip(position, shape, strict=True):
        if size != ONE:
            flat = flat * size + at
    result: list[Expr] = []
    for d in range(len(source)):
        if source[d] == ONE:
            result.append(ZERO)
            continue
        inner = _products(source[d + 1 :])[-1]
        at = flat // inner if inner != ONE else flat
        outer = any(n != ONE for n in source[:d])
        result.append(at % source[d] if outer else at)
    return result


def padded_element(
    x: te.Tensor,
    position: Sequence[Expr],
    before: Sequence[Expr],
    after: Sequence[Expr],
    mode: str,
    value: float,
) -> Expr:
    """One element of `x` padded; `mode` says where what lies outside comes from."""
    inside: Expr = TRUE
    index: list[Expr] = []
    for at, size, low, high in zip(position, x.shape, before, after, strict=True):
        place = at - low
        if low == ZERO and high == ZERO:
            index.append(at)
            continue
        there = both(place >= 0, place < size)
        if mode == "constant":
            index.append(place)
            inside = both(inside, there)
        else:  # most elements are told from few: schedules part them
            index.append(select(there, place, _outside(mode, place, size, low, high)))
    load = x[tuple(index)]
    return load if inside == TRUE else select(inside, load, const(value, x.dtype))


def _outside(mode: str, place: Expr, size: Expr, low: Expr, high: Expr) -> Expr:
    last = size - 1
    if mode == "edge":
        return maximum(minimum(place, last), 0)
    if mode == "wrap":
        return place % size
    if surely_less(low, size) and surely_less(high, size):
        forward = maximum(place, -place)  # mirrored at most once at each end
        return minimum(forward, last * 2 - forward)
    period = maximum(last * 2, 1)
    phase = place % period
    return minimum(phase, last * 2 - phase)
