"""Columns whose lines lie far apart, brought side by side once for all rows.

Lines whole pages apart share few sets of a cache and evict each other. What is written to lines as
far apart is held against later reads of them, too: a processor that compares the low 12 bits of
addresses waits. A copy costs a share of one tile.

Tiles of 16 registers are two vectors wide, a line of the cache: each step reads another one, mostly
of another page, and nothing that fetches ahead follows. There a copy pays wherever columns do not
stay in the first cache.

Source: Intel 64 Optimization Reference Manual, "4-KByte Memory Aliasing". Measured on Zen 4: 1.2 to
1.6 times as fast where sums are short or rows come from beyond the L2 cache; 0.9 to 1.03 elsewhere.
On Zen 3, 64 rows and more by columns of 32 KiB and more: 1.02 to 1.6 times as fast, once 0.96; 25
to 60 rows by 320 steps and more: 1.02 to 2.4 times as fast, 7 of 84 times 0.83 to 0.97.
"""

from __future__ import annotations

from math import prod

from dlc.core.target import Target
from dlc.schedule.asking import LINE_BYTES
from dlc.schedule.loop import Func, loops
from dlc.schedule.nest import stages
from dlc.schedule.rules.contraction import Contraction, column_factor
from dlc.te.expr import Const, Load

PAGE_BYTES = 4096
MIN_ROWS = 64  # rows that use a copy
FEW_ROWS = 25  # those that do where a panel of columns does not stay in the first cache
SOME_ROWS = 40  # those of them that do even where all columns stay in the second cache
SHORT_SUM = 128  # products
WIDE_FILE = 32  # vector registers, whose tiles are four vectors wide
NARROW_LINE = 256  # bytes, from which on they lie apart: panels of packed columns are narrower
FAR_LINE = 1024  # bytes, from which on few rows pay, too
LARGE = 1024  # stands for a sum whose length only a run tells
CHUNKS = 4  # vectors of columns for each core: cores share columns, not the rows of a copy


def scattered_columns(func: Func, found: Contraction, target: Target) -> str | None:
    """The column operand where a copy of a tile of its columns pays, or None."""
    line, size = found.column_line, found.row_bytes
    is_narrow = target.vector_registers < WIDE_FILE
    if line is None or size is None:
        return None
    if line < NARROW_LINE if is_narrow else line % PAGE_BYTES:
        return None
    total = next(s for s in stages(func) if s.buffer == found.sum)
    assert total.factors is not None
    column = column_factor(total)
    if not isinstance(column, Load) or len(total.inner) != 1:
        return None
    if any(isinstance(f, Load) and f.buffer == column.buffer for f in total.factors if f != column):
        return None
    extents = {v: f.extent for v, f in loops(func.body).items()}
    known = {v: int(e.value) for v, e in extents.items() if isinstance(e, Const)}
    rows = prod(known.get(v, 1) for v in found.rows)
    columns = prod(known.get(v, 1) for v in (*found.batch, *found.columns, found.lane))
    if columns < CHUNKS * target.cores * target.lanes(4):
        return None
    depth = known.get(total.inner[0].var, LARGE)
    if is_narrow:
        pays = _pays_on_narrow(rows, depth, line, target)
    else:
        pays = rows >= MIN_ROWS and (depth <= SHORT_SUM or size > target.l2_bytes // 2)
    return column.buffer if pays else None


def _pays_on_narrow(rows: int, depth: int, line: int, target: Target) -> bool:
    """Whether a copy pays where tiles are two vectors wide; `line` is the bytes between steps."""
    if rows >= MIN_ROWS:
        return line * depth > target.l1_bytes
    if rows < FEW_ROWS or depth * 2 * LINE_BYTES <= target.l1_bytes:  # a step touches two lines
        return False
    if rows >= SOME_ROWS or line % PAGE_BYTES == 0:
        return True
    return line >= FAR_LINE and line * depth > target.l2_bytes
