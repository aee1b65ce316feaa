"""Windows that overlap, on a GPU: depthwise convolutions.

A thread computes a few neighbouring results of one channel. The box of pixels that their windows
cover and the weights come into its registers once, and everything is written out from there.
Neighbouring threads have neighbouring channels, so that a warp reads whole lines. What tiles have
beyond the image is computed from nothing and not stored.

Before:
    sums -> result

After:
    for tiles, channels:
        pixels, weights, sums of a tile
        result of a tile
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from dlc.core.target import Target
from dlc.schedule.loop import Func, loops
from dlc.schedule.nest import Stage, stages
from dlc.schedule.rules import window
from dlc.schedule.rules.gpu_block import unroll
from dlc.schedule.rules.gpu_finish import bind_elements
from dlc.schedule.space import Space
from dlc.schedule.trace import Trace
from dlc.te.affine import coefficients
from dlc.te.expr import Const, Load
from dlc.te.transform import loads

TILES = ((1, 1), (1, 2), (2, 2), (1, 4), (2, 4), (4, 4))  # rows and columns of one thread
MOST_REGISTERS = 160  # for pixels, weights and sums of a thread, of 255
FIXED = 32  # instructions of a thread besides, most of them for its place
IN_FLIGHT = 256  # threads of a processor that keep it busy while others wait for memory
LARGE = 1 << 20  # stands for a size that is only known at run time


@dataclass(frozen=True, slots=True)
class Overlapping:
    """Windows of products that overlap, by buffers and by loops of the nest of the result."""

    sum: str
    pixels: str
    weights: str
    loops: tuple[str, ...]  # of the result: ..., row, column, lane
    window: tuple[int, int]  # rows and columns of a window
    strides: tuple[int, int]


def match(func: Func, target: Target) -> Overlapping | None:
    """The windows in a function whose moves are inlined, or None."""
    found = window.find(func)
    if found is None:
        return None
    total = next(s for s in stages(func) if s.buffer == found.sum)
    names = next(s.names for s in stages(func) if found.lane in s.names)
    if total.factors is None or len(total.loops) < 3 or len(total.inner) != 2:
        return None
    size = [int(f.extent.value) for f in total.inner if isinstance(f.extent, Const)]
    first, second = (loads(f) for f in total.factors)
    if len(size) != 2 or len(first) != 1 or len(second) != 1:
        return None
    pixels, weights = first[0], second[0]
    if _strides(total, pixels) is None:
        pixels, weights = weights, pixels
    strides = _strides(total, pixels)
    if strides is None or _strides(total, weights) is not None or pixels.buffer == weights.buffer:
        return None
    if all(n <= s for n, s in zip(size, strides, strict=True)):
        return None
    return Overlapping(
        total.buffer, pixels.buffer, weights.buffer, tuple(names), (size[0], size[1]), strides
    )


def _strides(total: Stage, load: Load) -> tuple[int, int] | None:
    """How far windows of neighbours are apart, if each is a box of neighbouring pixels."""
    if len(load.index) < 3:
        return None
    found: list[int] = []
    for axis, inner, index in zip(total.names[-3:-1], total.inner, load.index[-3:-1], strict=True):
        steps = coefficients(index)
        if steps is None or steps.get(inner.var) != 1 or steps.get(axis, 0) < 1:
            return None
        found.append(steps[axis])
    return found[0], found[1]


def space(func: Func, target: Target) -> Space:
    """The tile of a thread; 0 is the analytic choice."""
    return Space({"tile": tuple(range(len(TILES) + 1))})


def schedule(trace: Trace, found: Overlapping, target: Target, knobs: Mapping[str, int]) -> None:
    """Compute some neighbours in one thread; see the module."""
    *outer, row, column, lane = found.loops
    wanted = knobs.get("tile", 0)
    tile = TILES[wanted - 1] if wanted else choose_tile(trace, found, target)
    row, rows = _split(trace, row, tile[0])
    column, columns = _split(trace, column, tile[1])
    steps = [*rows, *columns]
    trace.do("reorder", (*outer, row, column, lane, *steps))
    trace.do("compute_at", found.sum, lane)
    for what, buffer in (("pixels", found.pixels), ("weights", found.weights)):
        trace.do("cache_read", buffer, lane, f"{found.sum}_{what}", "register")
    trace.do("drop_guards", found.sum)
    trace.do("set_scope", found.sum, "register")
    unroll(trace, list(loops(trace.loop(lane).body)))
    bind_elements(trace, [*outer, row, column, lane], None)


def choose_tile(trace: Trace, found: Overlapping, target: Target) -> tuple[int, int]:
    """The cheapest tile: instructions of a thread by rounds of threads over the processors."""
    assert target.gpu is not None, "tiles of threads are for GPUs"
    *outer, row, column, lane = (trace.constant(v) or LARGE for v in found.loops)
    at_once = target.gpu.processors * IN_FLIGHT

    def cost(tile: tuple[int, int]) -> int:
        threads = prod(outer) * lane * -(-row // tile[0]) * -(-column // tile[1])
        registers = _registers(found, tile)
        products = prod(tile) * prod(found.window)
        return -(-threads // at_once) * (FIXED + registers + products)

    fitting = [
        t
        for t in TILES
        if t[0] <= row and t[1] <= column and _registers(found, t) <= MOST_REGISTERS
    ]
    return min(fitting, key=cost, default=TILES[0])


def _registers(found: Overlapping, tile: tuple[int, int]) -> int:
    """The pixels, weights and sums of a thread."""
    sizes = zip(tile, found.strides, found.window, strict=True)
    return prod((n - 1) * s + w for n, s, w in sizes) + prod(found.window) + prod(tile)


def _split(trace: Trace, name: str, count: int) -> tuple[str, list[str]]:
    """Cut a loop into threads and steps, of which there may be none."""
    if count == 1:
        return name, []
    outer, inner = trace.split(name, count)
    return outer, [inner]
