"""Operands of products that are stored in fewer bits than they are multiplied in.

Where few results read an element, each makes the number it stands for by itself, in registers;
where many do, it is stored once before the products.
"""

from __future__ import annotations

from math import prod

from dlc.core.types import DType
from dlc.schedule.loop import Func, allocs
from dlc.schedule.nest import Stage, stages
from dlc.te.expr import Binary, BinOp, Cast, Const, Expr, Load
from dlc.te.transform import free_vars, loads, walk

MIN_USES = 4  # of a packed operand; below, sums along its contiguous dimension cost less
MANY_ROWS = 32
"""Rows for which an operand of fewer bytes is unpacked into memory once, not by each tile of rows.

Source: measured on Zen 4, weights of 4 bits: see ADR 58.
"""


def unwidened(factor: Expr) -> Expr:
    """The 16-bit float that a factor is made of by widening it; another factor as it is."""
    match factor:
        case Cast(DType.F32, Load(_, _, DType.F16 | DType.BF16) as narrow):
            return narrow
        case _:
            return factor


def loaded(factor: Expr | None) -> Load | None:
    """The element that a factor is, or is cast from; None where it is another one."""
    operand = factor.a if isinstance(factor, Cast) else factor
    return operand if isinstance(operand, Load) else None


def is_few(extents: list[Expr]) -> bool:
    """Whether an operand is surely used less often than pays for packing it."""
    sizes = [int(n.value) for n in extents if isinstance(n, Const)]
    return len(sizes) == len(extents) and prod(sizes) < MIN_USES


def is_unpacked(func: Func, buffer: str) -> bool:
    """Whether a buffer is computed element by element of what lies in parts of inputs' words."""
    made, inputs = [s for s in stages(func) if s.buffer == buffer], {b.name for b in func.inputs}
    if len(made) != 1 or made[0].is_reduction or buffer not in allocs(func.body):
        return False
    shifts = any(isinstance(e, Binary) and e.op is BinOp.SHR for e in walk(made[0].value))
    return shifts and {x.buffer for x in loads(made[0].value)} <= inputs


def is_unpacked_by_few(func: Func, name: str) -> bool:
    """Whether a buffer is a factor of products that `unpacks_for_few`."""
    reads = [(s, f) for s in stages(func) for f in s.factors or () if isinstance(f, Load)]
    return any(unpacks_for_few(func, s, f) for s, f in reads if f.buffer == name)


def unpacks_for_few(func: Func, total: Stage, operand: Load) -> bool:
    """Whether an operand is unpacked by the results, so few of which read each element."""
    used = {v for i in operand.index for v in free_vars(i)}
    rows = [f.extent for f in total.loops if f.var not in used]
    known = [int(n.value) for n in rows if isinstance(n, Const)]
    few = len(known) == len(rows) and prod(known) < MANY_ROWS
    return few and is_unpacked(func, operand.buffer)


def widens_once(made: Stage, total: Stage, factor: Load) -> bool:
    """Whether a stage makes float32 of 16-bit floats, each for few products, by vectors."""
    if unwidened(made.value) is made.value:
        return False
    used = free_vars(factor)
    others = [f.extent for f in total.loops if f.var not in used]
    return bool(total.names) and total.names[-1] in used and is_few(others)
