"""How cores share an image: each has some of its lines, in every kernel the same.

What a core has just written lies in its own caches; another waits for it several times as long. A
convolution adds up all channels of a line, so cores share lines of its result, and of whatever is
computed in between. An image of few lines has many channels and large weights as a rule: there,
cores share channels, and each reads its part of the weights alone.

Before:
    for image, block, line, ...:

After:
    for image, line / n:
        for block:
            for line % n, ...:

Source: measurements on a Xeon with AVX-512: 12 to 20 GB/s from or to lines of another core's
cache, 60 to 130 from its own.
"""

from __future__ import annotations

from fractions import Fraction

from dlc.core.target import Target
from dlc.schedule.trace import Trace

NEAR_BYTES = 50.0  # in a cycle from the second cache, which has the lines that strips share
OTHER_BYTES = 5.0  # the same of what another core has just written
LINES = 4  # of an image for each core, from which on cores share lines
MAX_IDLE = 1.1  # times what cores need for their parts, where the last of them end late


def shares_lines(lines: int | None, target: Target) -> bool:
    """Whether cores share the lines of an image, rather than its channels."""
    return lines is None or lines >= LINES * target.cores


def is_shared(parts: int, target: Target, most: float = MAX_IDLE) -> bool:
    """Whether cores would wait for the last parts if each of these ran on one of them.

    Cores may need up to `most` times what they would if none of them waited.
    """
    rounds = -(-parts // target.cores)
    return rounds * target.cores > parts * most


def share_lines(trace: Trace, block: str, line: str, window: int, target: Target) -> None:
    """Let strips of lines be the outer loop, which cores share, and blocks of channels the inner.

    `window` lines are read for one; the loops stand directly inside each other.
    """
    lines = trace.constant(line)
    if target.cores == 1 or lines is None or not shares_lines(lines, target):
        return
    strip = _choose_strip(lines, window, target.cores)
    outer, inner = trace.split(line, strip)
    trace.do("reorder", (outer, block, inner))


def _choose_strip(lines: int, window: int, cores: int) -> int:
    """Lines of a strip: the more, the fewer are read twice, and the more two cores may share."""

    def cost(strip: int) -> float:
        again = (strip + window - 1) / strip / NEAR_BYTES
        share = Fraction(lines // strip, cores)
        torn = sum((share * core).denominator > 1 for core in range(1, cores))
        return again + min(1.0, torn * strip / lines) / OTHER_BYTES

    return min((n for n in range(lines, 0, -1) if lines % n == 0), key=cost)
