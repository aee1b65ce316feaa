"""Where the constants of a program lie: one behind the other, behind one symbol."""

from __future__ import annotations

from dlc.schedule.loop import Buffer
from dlc.schedule.program import ALIGNMENT
from dlc.te.types import const_size

WEIGHTS_SYMBOL = "dlc_weights"


def weight_offsets(constants: tuple[Buffer, ...]) -> tuple[dict[str, int], int]:
    """Where each constant begins, in bytes from `WEIGHTS_SYMBOL`, and the bytes of all of them."""
    offsets, end = {}, 0
    for buffer in constants:
        offsets[buffer.name] = end
        size = const_size(buffer.type.elems) * buffer.type.dtype.size_bytes
        end += (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
    return offsets, end
