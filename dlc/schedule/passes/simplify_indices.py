"""Simplify every index by what the loops' bounds prove.

Before:
    def copy(A: f32[8], *, B: f32[8]):
        for io in range(1):
            for ii in range(8):
                if io * 8 + ii < 8:
                    B[(io * 8 + ii) % 8] = A[io * 8 + ii]

After:
    def copy(A: f32[8], *, B: f32[8]):
        for ii in range(8):
            B[ii] = A[ii]

Guards that are surely true are dropped, code that surely never runs as well. Loops of one
iteration become their body, loops whose whole body is guarded by a limit get shorter.

Position: after the last primitive, because it removes loops that a step may name; before
hoist_guards, which then finds simpler guards.
"""

from __future__ import annotations

from dataclasses import replace

from dlc.schedule.loop import Func
from dlc.schedule.simplify import simplify_stmt, tighten_stmt


def simplify_indices(func: Func) -> Func:
    """Simplify indices, guards and loops."""
    body = tighten_stmt(simplify_stmt(func.body, {}, drop=True), func.sizes)
    if body != func.body:
        body = simplify_stmt(body, {}, drop=True)  # a shorter loop may have one iteration
    return replace(func, body=body)
