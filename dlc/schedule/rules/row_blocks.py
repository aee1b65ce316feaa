"""How many rows of a matrix attention computes before the next ones: their scores stay near."""

from __future__ import annotations

from dlc.core.target import Target
from dlc.schedule.rules.lines import is_shared
from dlc.te.expr import Expr
from dlc.te.simplify import surely_at_most
from dlc.te.types import const_or_none

MIN_ROWS = 4  # of a matrix or a block; below, the products are no tiles
MIN_CHUNKS = 4  # blocks of rows for a core, where it shares matrices with others
MIN_SHARE = 16  # rows of such a block: a few tiles
TALL = 12  # rows that tiles share evenly: those of a block, where blocks leave some
OPEN_BLOCK = 24  # rows of a block, where only a run tells how long they are
SCORE_BYTES = 2 * 4  # of a score and of the weight made of it


def choose_block(
    extent: Expr, width: int | None, matrices: int, target: Target, wanted: int = 0
) -> int:
    """The rows of a block; 0 where all of them go together.

    Args:
        extent: the rows of a matrix.
        width: how many scores a row has, None where only a run tells.
        matrices: how many there are, of one batch.
        target: whose second cache holds a block, and whose cores share blocks of few matrices.
        wanted: the most rows of a block, instead of what is near; 0 for those.
    """
    rows = const_or_none(extent)
    most = OPEN_BLOCK if width is None else target.l2_bytes // 4 // (SCORE_BYTES * width)
    if rows is not None:
        if is_shared(matrices, target):
            most = min(most, max(MIN_SHARE, rows * matrices // (target.cores * MIN_CHUNKS)))
        return even_block(rows, wanted or max(most, MIN_ROWS))
    if not surely_at_most(0, extent):
        return 0  # nobody could tell what blocks leave
    return wanted or min(max(most // TALL, 1) * TALL, OPEN_BLOCK)


def even_block(rows: int, most: int) -> int:
    """The rows of a block, of which so many are near; 0 where all of them go together.

    As many in each if that is no small number, else whole tiles, else fours. Fewer than those are
    left only where nothing else is possible: they are small tiles, and one row is none at all.
    """
    if rows <= most:
        return 0
    fits = range(most, MIN_ROWS - 1, -1)
    leaves = [n for n in fits if rows % n >= MIN_ROWS]
    even = [n for n in fits if rows % n == 0]
    choices = (
        [n for n in even if n >= min(MIN_SHARE, most)],
        [n for n in leaves if n % TALL == 0],
        [n for n in leaves if n % MIN_ROWS == 0],
        even,
        leaves,
        [n for n in (*fits, *range(most + 1, rows)) if rows % n != 1],
    )
    return next((sizes[0] for sizes in choices if sizes), 0)
