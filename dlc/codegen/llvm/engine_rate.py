"""What the matrix engine of this machine takes beside its multiply-adds: measured once.

Machines of one family differ by two in it: in how fast an engine is, and in who else uses it.

A process of its own measures, as one that executes what its CPU lacks is killed; its answer is
kept in the cache. The engine counts as usual unless it is clearly slower, so that most machines
build the same artefact, and those that are not quiet as well. A slow one may have been so for
minutes: later builds measure it again, some times, and the least counts.
"""

from __future__ import annotations

import ctypes
import json
import logging
import statistics
import subprocess
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
from dlc.codegen.llvm.pool import can_start
from dlc.core.aligned import aligned_zeros
from dlc.core.cache import default_cache
from dlc.core.machine import may_use_tiles, read_machine
from dlc.core.target import TILE_CYCLES, Target
from dlc.core.target_parse import parse_target
from dlc.schedule.loop import Func
from dlc.schedule.text import parse_func

_LOG = logging.getLogger("dlc.schedule")
_START = (
    "import sys; sys.path[:] = sys.argv[1:]; from dlc.codegen.llvm.engine_rate import main; main()"
)
_PATIENCE_S = 20.0
_CLEARLY = 1.25  # times the usual, from which on an engine is slower
_NEAREST = 5  # cycles that are told apart
_MOST = 6  # measurements of a slow engine
_APART_S = 300.0  # between one and the next

PANELS = 16  # of operands, each two tiles: 32 KB of rows and as many of columns
PRODUCTS = 8  # of tiles in each step, for four tiles that are loaded


@dataclass(frozen=True, slots=True)
class Effort:
    """How long is measured. The clock falls while an engine is at work, and rises afterwards."""

    rounds: int = 5
    round_s: float = 0.01  # of each loop, of which the second half counts
    tile_steps: int = 4000
    fma_steps: int = 100_000


def native_tile_cycles(target: Target) -> int:
    """`Target.tile_cycles` of this machine, by what was measured on it before or is now."""
    cache = default_cache()
    key = f"cycles of a tile, 3 {read_machine().name} {sorted(target.features)}".encode()
    kept = json.loads(cache.get(key) or "[]")  # each time, and the cycles
    now = time.time()
    if (not kept or _may_be_faster(kept, now)) and (found := _measured_apart()):
        kept.append((now, found))
        cache.put(key, json.dumps(kept).encode())
        text = "a product of tiles takes %s cycles here, and the least counts as %d"
        _LOG.info(text, found, _least(kept))
    return _least(kept)


def _least(kept: list[tuple[float, float]]) -> int:
    """How many cycles count of all that was measured."""
    return counted(min((cycles for _, cycles in kept), default=TILE_CYCLES))


def _may_be_faster(kept: list[tuple[float, float]], now: float) -> bool:
    """Whether an engine was slow so far, but perhaps not for long."""
    is_slow = _least(kept) != TILE_CYCLES
    return is_slow and len(kept) < _MOST and abs(now - kept[-1][0]) >= _APART_S


def counted(cycles: float) -> int:
    """How many cycles count, for how many were measured."""
    if cycles < _CLEARLY * TILE_CYCLES:
        return TILE_CYCLES
    return _NEAREST * round(cycles / _NEAREST)


def measure_tile_cycles(target: Target, effort: Effort) -> float:
    """Time products of tiles and multiply-adds in turns; this process must have the engine.

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
    ratios = []
    for _ in range(effort.rounds):
        fma_ns = _median_ns(lambda: fma(vector.ctypes.data, effort.fma_steps), effort.round_s)
        tile_ns = _median_ns(lambda: tiles(None, effort.tile_steps, *places), effort.round_s)
        ratios.append(tile_ns / (effort.tile_steps * PRODUCTS) * fma_cycles / fma_ns)
    return statistics.median(ratios)


def main() -> None:
    """Print what was measured; the status is 1 where this process may not use the engine."""
    if not may_use_tiles():
        sys.exit(1)
    sys.stdout.write(f"{measure_tile_cycles(parse_target('native'), Effort()):.1f}")


def _measured_apart() -> float:
    """What another process measures; 0 where it does not get that far."""
    if not can_start():
        return 0.0
    command = [sys.executable, "-c", _START, *sys.path]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PATIENCE_S, check=True
        )
        return float(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        _LOG.info("what the matrix engine takes was not measured: %s", error)
        return 0.0


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
