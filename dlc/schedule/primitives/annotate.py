"""annotate: a hint for code generation on a loop."""

from __future__ import annotations

from dataclasses import replace

from dlc.schedule.edit import swap_loop
from dlc.schedule.loop import Func
from dlc.schedule.primitive import find_loop, primitive, refuse


@primitive
def annotate(func: Func, loop: str, key: str, value: int) -> Func:
    """Put a hint on a loop, in place of one with the same key; it changes no result.

    Before:
        def copy(n: size, A: f32[n], *, B: f32[n]):
            for i in range(n):
                B[i] = A[i]

    Call:
        annotate("i", "prefetch", 2)

    After:
        def copy(n: size, A: f32[n], *, B: f32[n]):
            for i in range(n, prefetch=2):
                B[i] = A[i]

    Raises:
        ScheduleError: no such loop; the key is not a word.
    """
    find_loop("annotate", func, loop)
    if not key.isidentifier():
        refuse("annotate", func, f"'{key}' is not a word")

    def note(notes: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
        return (*((k, v) for k, v in notes if k != key), (key, value))

    return swap_loop(func, loop, lambda f: replace(f, notes=note(f.notes)))
