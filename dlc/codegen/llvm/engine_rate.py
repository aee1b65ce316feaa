"""What the matrix engine of this machine takes beside its multiply-adds: measured once.

Machines of one family differ by two in it: in how fast an engine is, and in who else uses it.

A process of its own measures (`engine_loop`), as one that executes what its CPU lacks is killed;
its answer is kept in the cache. The engine counts as usual unless it is clearly slower, so that
most machines build the same artefact. Who else uses it changes within seconds and minutes: later
builds measure it again, some times, and the mean counts, as time grows with it.
"""

from __future__ import annotations

import json
import logging
import statistics
import subprocess
import sys
import time

from dlc.core.cache import default_cache
from dlc.core.machine import read_machine
from dlc.core.target import TILE_CYCLES, Target

_LOG = logging.getLogger("dlc.schedule")
_START = (
    "import sys; sys.path[:] = sys.argv[1:]; from dlc.codegen.llvm.engine_loop import main; main()"
)
_PATIENCE_S = 20.0
_RATES = (TILE_CYCLES, 35, 45)
"""Cycles that count. Few, so that builds of other hours are the same; from 45 on, six products of
tiles are hardly ever chosen, and three are worth it at any rate that was seen."""
_MOST = 6  # measurements of an engine
_APART_S = 300.0  # between one and the next


def native_tile_cycles(target: Target) -> int:
    """`Target.tile_cycles` of this machine, by what was measured on it before or is now."""
    cache = default_cache()
    key = f"cycles of a tile, 4 {read_machine().name} {sorted(target.features)}".encode()
    kept = json.loads(cache.get(key) or "[]")  # each time, and the cycles
    now = time.time()
    if _is_due(kept, now) and (found := _measured_apart()):
        kept.append((now, found))
        cache.put(key, json.dumps(kept).encode())
        text = "a product of tiles takes %s cycles here, and counts as %d"
        _LOG.info(text, found, _on_average(kept))
    return _on_average(kept)


def _on_average(kept: list[tuple[float, float]]) -> int:
    """How many cycles count by all that was measured."""
    return counted(statistics.fmean(cycles for _, cycles in kept) if kept else TILE_CYCLES)


def _is_due(kept: list[tuple[float, float]], now: float) -> bool:
    """Whether an engine is measured, for the first time or again."""
    return not kept or (len(kept) < _MOST and abs(now - kept[-1][0]) >= _APART_S)


def counted(cycles: float) -> int:
    """How many cycles count, for how many were measured: the nearest of a few."""
    return min(_RATES, key=lambda rate: abs(rate - cycles))


def _measured_apart() -> float:
    """What another process measures; 0 where it does not get that far."""
    from dlc.codegen.llvm.pool import can_start  # LLVM: nearly always the answer is known

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
