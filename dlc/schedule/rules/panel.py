"""How many vectors of columns a reduction takes together: a panel, whose lines are longer.

One vector of columns takes one line of a cache from each row. The next row lies as far away as a
row is long: nothing brings its lines in ahead of their use, the lines beside them are gone before
their turn, and rows that lie whole pages apart share few sets of a cache. A panel reads some lines
side by side from each row, with an accumulator for each vector.

Source: measurements on Zen 4, sums over the rows of [1024, 1024]: 190 us with one vector, 150 with
two, 57 with four, 50 with eight; of [4096, 2048], from memory: 8.6, 4.2, 2.2 and 1.6 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from dlc.core.target import Target
from dlc.schedule.loop import Func
from dlc.schedule.nest import Stage, stages
from dlc.schedule.rules.tile import vector_registers
from dlc.schedule.work import operations
from dlc.te.expr import Const, Expr
from dlc.te.transform import free_vars, loads
from dlc.te.types import const_or

VECTORS = 8  # at most
FEW_ROWS = 16  # that lie near enough to each other, or are too few to matter
OPEN = 64  # stands for an extent that is known at run time only
COSTLY = 8  # operations for an element, from which on they take the time


def choose_vectors(
    func: Func, width: Expr, groups: Sequence[Expr], lanes: int, target: Target
) -> int:
    """The vectors of `lanes` columns that go together: 1 where a panel is no better.

    There are `width` columns in each iteration of loops of the extents `groups`, which may all run
    at once.
    """
    sums = [s for s in stages(func) if s.is_reduction]
    rows = max(prod(const_or(f.extent, OPEN) for f in s.inner) for s in sums)
    if rows < FEW_ROWS or any((operations(s.store) or 0) >= COSTLY for s in sums):
        return 1
    most = min(VECTORS, vector_registers(target, lanes) // 2)
    again = len(stages(func)) - 1 > len(sums)
    if again:  # a panel stays in the second cache until its last stage
        bytes_of_row = 2 * lanes * sums[0].value.dtype.size_bytes
        most = min(most, max(1, target.l2_bytes // 2 // (rows * bytes_of_row)))
    others = prod(const_or(e, OPEN) for e in groups)
    columns = const_or(width, VECTORS * lanes * target.cores)

    def cost(vectors: int) -> int:
        panels, rest = divmod(columns, vectors * lanes)
        last = -(-rest // lanes)
        turns = -(-panels * others // target.cores)
        return turns * (vectors + 1) + (last > 0) * -(-others // target.cores) * (last + 1)

    return min(range(1, most + 1), key=cost)


def shares_nothing(total: Stage) -> bool:
    """Whether neighbouring results have nothing in common that they are computed from.

    What one reads another does where an element is chosen by its place and a summand together, as
    in a window that slides, or by no place at all, as a weight is.
    """
    own = {f.var for f in total.inner if f.extent != 1}
    places = {f.var for f in total.loops if not isinstance(f.extent, Const) or f.extent.value != 1}
    for load in loads(total.value):
        if any(free_vars(i) & own and free_vars(i) & places for i in load.index):
            return False
        if places - {total.names[-1]} - {v for i in load.index for v in free_vars(i)}:
            return False
    return True
