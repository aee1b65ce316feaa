"""distribute_digits: as distribute, where threads and steps take turns in a loop's digits."""

from __future__ import annotations

from dlc.schedule.loop import Func
from dlc.schedule.primitive import primitive, refuse
from dlc.schedule.primitives.distribute import Digit, cut_digits


@primitive
def distribute_digits(
    func: Func, loops: tuple[str, ...], digits: tuple[tuple[Digit, ...], ...]
) -> Func:
    """Cut each loop of a perfect nest into blocks and digits: what warps have of their tiles.

    Each digit is what stands behind the name of its loop, its extent, and "thread" or "step";
    those of a loop come from the outermost on.

    Before:
        def fill(*, B: f32[64, 12]):
            for i in range(64):
                for j in range(12):
                    B[i, j] = 0.5

    Call:
        distribute_digits(
            ("i", "j"),
            ((("w", 2, "thread"), ("m", 2, "step"), ("d", 8, "thread")), (("t", 4, "thread"),)),
        )

    After:
        def fill(*, B: f32[64, 12]):
            for i_b in block(2):
                for j_b in block(3):
                    for i_w in thread(2):
                        for j_t in thread(4):
                            for i_d in thread(8):
                                for i_m in range(2):
                                    B[i_b * 32 + i_w * 16 + i_m * 8 + i_d, j_b * 4 + j_t] = 0.5

    Raises:
        ScheduleError: as `distribute`; not one list of digits for each loop; a digit is neither.
    """
    flat = [d for own in digits for d in own]
    if len(digits) != len(loops) or not all(digits):
        refuse("distribute_digits", func, f"there are {len(digits)} lists for {len(loops)} loops")
    for name, size, kind in flat:
        if size < 1 or kind not in ("thread", "step"):
            refuse("distribute_digits", func, f"digit '{name}' is {size} of '{kind}'")
    return cut_digits("distribute_digits", func, loops, digits)
