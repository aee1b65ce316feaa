"""Move guards out of loops.

Before:
    def copy(n: size, A: f32[n, 8], *, B: f32[n, 8]):
        for i in range(16):
            for j in range(8):
                if i < n:
                    B[i, j] = A[i, j]

After:
    def copy(n: size, A: f32[n, 8], *, B: f32[n, 8]):
        for i in range(16):
            if i < n:
                for j in range(8):
                    B[i, j] = A[i, j]

A guard stops at the loop whose variable it reads. A guard that loads stays where it is, because
what it loads may change in the loop.

Position: after simplify_indices, so that guards which are surely true are gone.
"""

from __future__ import annotations

from dataclasses import replace

from dlc.schedule.loop import Func
from dlc.schedule.simplify import hoist_stmt, tighten_stmt


def hoist_guards(func: Func) -> Func:
    """Test loop-invariant conditions once."""
    return replace(func, body=tighten_stmt(hoist_stmt(func.body), func.sizes))
