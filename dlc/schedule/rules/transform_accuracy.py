"""How accurate sums of products between two transforms are: tiles that are, and chains that help.

See `transform`, the rule. Whole numbers do not round.
"""

from __future__ import annotations

CHAIN = 32  # products in a row where a transform multiplies rounding along one axis
SHORT_CHAIN = 16  # and along both
ACCURATE_FROM = {(): 0, (3,): 64, (4,): 64, (3, 3): 128, (3, 4): 256, (4, 4): 256}
"""Summands, by the results, in order, along the axes where transforms multiply rounding."""
MULTIPLIED = 6  # products along such an axis
PAIRS_ACCURATE_FROM = {(): 32, (3,): 80, (4,): 80}
"""Summands where transforms of another axis only add, but for three results, which have more of
them in common."""


def chain(tile: tuple[int, ...], positions: tuple[int, ...], depth: int) -> int | None:
    """How many products are added in one chain; None: as many as in any sum.

    Short chains round less, which makes up for what a transform of four results multiplies, where
    sums are long enough; where they are not, nobody counts on accuracy. Of lines of 64 channels,
    chains of 32 round 1.3 times as much as one chain of direct sums, and those of 16 0.9 times.
    """
    axes = _multiplied(tile, positions)
    if not is_accurate(tile, positions, depth):
        return None
    if not axes:
        return CHAIN if max(tile) > 2 else None
    is_long = len(tile) > 1 or depth >= 4 * CHAIN
    return CHAIN if len(axes) == 1 and is_long else SHORT_CHAIN


def is_accurate(tile: tuple[int, ...], positions: tuple[int, ...], depth: float) -> bool:
    """Whether results by a tile round about as direct sums in one chain of float32 do, or less.

    A tile has products at some `positions` along each axis, and one of these has `depth` summands.
    A schedule counts the zeros that fill up a kernel, too: it cuts chains that nobody needs short.

    Source: measured on random weights and pixels, half of them 0 as behind a Relu; root mean
    squares over those of one chain: 0.3 to 0.8 for tiles of 2 by 2, 1.1 for 2 by 4 at 64 channels
    and less above, 1.0 to 1.2 for 4 by 4 at 256; without short chains 1.4 and 2.8. Of kernels that
    are sums of others, at 64 to 84: 1.2 and less; of 3 by 3 results at 128, 0.9; of kernels of two
    by two 1.6 at 8, 1.2 at 32, and 0.9 at 64 by chains of 32; lines of four results 1.3 at 64 and
    1.4 at 128, 1.0 where no pixels are 0. Our own direct sums, in chains of 144, have 0.3 to 0.6.
    """
    axes = _multiplied(tile, positions)
    has_pairs = len(axes) < sum(n > 2 for n in tile)
    return depth >= (PAIRS_ACCURATE_FROM if has_pairs else ACCURATE_FROM)[axes]


def _multiplied(tile: tuple[int, ...], positions: tuple[int, ...]) -> tuple[int, ...]:
    """The results along those axes where the transforms multiply rounding, in order."""
    found = (n for n, count in zip(tile, positions, strict=True) if count == MULTIPLIED)
    return tuple(sorted(found))
