"""Loops that time a matrix engine beside multiply-adds: see `engine_rate`."""

from __future__ import annotations

import ctypes
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from dlc.codegen.llvm.compile import compile_ir
from dlc.codegen.llvm.emit import emit_func
from dlc.codegen.llvm.load import load
from dlc.codegen.llvm.peaks import FMA_CHAINS, fma_loop
from dlc.core.aligned import aligned_zeros
from dlc.core.machine import may_use_tiles
from dlc.core.target import Target
from dlc.core.target_parse import parse_target
from dlc.schedule.loop import Func
from dlc.schedule.text import parse_func

PANELS = 16  # of operands, each two tiles: 32 KB of rows and as many of columns
PRODUCTS = 8  # of tiles in each step, for four tiles that are loaded


@dataclass(frozen=True, slots=True)
class Effort:
    """How long is measured. The clock falls while an engine is at work, and rises afterwards."""

    rounds: int = 10
    apart_s: float = 0.1  # as what others do to the engine changes within seconds
    round_s: float = 0.01  # of each loop, of which the second half counts
    tile_steps: int = 4000
    fma_steps: int = 100_000


def measure_tile_cycles(target: Target, effort: Effort) -> float:
    """Time products of tiles and multiply-adds in turns; this process must have the engine.

    Returns: cycles of a product, on average, where multiply-adds of so many elements run at their
    usual rate.

    Raises:
        CodegenError: LLVM rejects the loops.
    """
    lanes = target.lanes(4)
    vectors, engine = (
        load(compile_ir(text, target), name)
        for name, text in (
            ("fma_loop", fma_loop(lanes)),
            ("tile_loop", emit_func(tile_loop(), target)),
        )
    )
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    fma = ctypes.CFUNCTYPE(None, pointer, size)(vectors["fma_loop"])
    tiles = ctypes.CFUNCTYPE(None, pointer, size, *[pointer] * 3)(engine["tile_loop"])
    sums, vector = np.zeros((2, 2, 16, 16), np.float32), np.zeros(lanes, np.float32)
    arrays = [_on_lines(a) for a in (random_panels(16, 1, 32), random_panels(16, 16, 2), sums)]
    places = [array.ctypes.data for array in arrays]
    fma_cycles = effort.fma_steps * FMA_CHAINS / target.multiply_adds
    fma_ns = tile_ns = 0.0
    for turn in range(effort.rounds):
        time.sleep(effort.apart_s if turn else 0.0)
        fma_ns += _median_ns(lambda: fma(vector.ctypes.data, effort.fma_steps), effort.round_s)
        tile_ns += _median_ns(lambda: tiles(None, effort.tile_steps, *places), effort.round_s)
    return tile_ns / (effort.tile_steps * PRODUCTS) * fma_cycles / fma_ns


def main() -> None:
    """Print what was measured; the status is 1 where this process may not use the engine."""
    if not may_use_tiles():
        sys.exit(1)
    sys.stdout.write(f"{measure_tile_cycles(parse_target('native'), Effort()):.1f}")


def _median_ns(run: Callable[[], object], seconds: float) -> float:
    """The median time of the runs in the second half of so many seconds, of one at least."""
    times: list[tuple[float, int]] = []
    begin = now = time.perf_counter()
    while now - begin < seconds or not times:
        start = time.perf_counter_ns()
        run()
        times.append((now - begin, time.perf_counter_ns() - start))
        now = time.perf_counter()
    return statistics.median([ns for at, ns in times if at >= seconds / 2] or [times[-1][1]])


def _on_lines(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy that starts at a cache line, as the rows of kernels' tiles do.

    Rows that cross lines are loaded half as fast.
    """
    copy = aligned_zeros(array)
    copy[...] = array
    return copy


def random_panels(*shape: int) -> np.ndarray[Any, Any]:
    """Panels of bf16: real data takes more power than zeros do."""
    values = np.random.default_rng(0).standard_normal((PANELS, 2, *shape), np.float32)
    return values.astype(ml_dtypes.bfloat16)


def tile_loop() -> Func:
    """The sum of products of panels, each of which counts twice: two by two tiles at a time."""
    dot = "rows[i % 16, {a}, 0, 0, 0], columns[i % 16, {b}, 0, 0, 0], t[{a}, {b}, 0, 0]"
    rows, columns = f"bf16[{PANELS}, 2, 16, 1, 32]", f"bf16[{PANELS}, 2, 16, 16, 2]"
    lines = [
        f"def tile_loop(n: size, rows: {rows}, columns: {columns}, *, sums: f32[2, 2, 16, 16]):",
        '    t = alloc(f32[2, 2, 16, 16], "tile")',
        *_for_each_tile('    invoke("tile_zero_f32", t[{a}, {b}, 0, 0])'),
        "    for i in range(n):",
        *_for_each_tile(f'        invoke("tile_dot_bf16", {dot})') * (PRODUCTS // 4),
        *_for_each_tile('    invoke("tile_store_f32", t[{a}, {b}, 0, 0], sums[{a}, {b}, 0, 0])'),
    ]
    return parse_func("\n".join(lines))


def _for_each_tile(line: str) -> list[str]:
    return [line.format(a=a, b=b) for a in range(2) for b in range(2)]
