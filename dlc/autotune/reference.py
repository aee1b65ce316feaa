"""What candidates are compared with: the plain nest of a task, its sums formed side by side.

No rule and no primitive of schedules takes part, so that a fault of theirs is not in both. Each
element is still the same sum in the same order, so its bits are those of the plain nest.
"""

from __future__ import annotations

from dataclasses import replace

from dlc.schedule.loop import (
    Alloc,
    Block,
    Buffer,
    For,
    Func,
    LoopKind,
    Scope,
    Stmt,
    Store,
    accumulation,
    allocs,
    block,
    fresh_name,
    loops,
    map_exprs,
    put_inside,
    rewrite,
)
from dlc.te.expr import Binary, BinOp, Cast, Const, Expr, Load, Select, Var, index
from dlc.te.transform import loads, substitute, walk
from dlc.te.types import TensorType

_LANES = 16  # sums that are formed side by side: a vector, or two or four where they are narrow
_LANE = " lane"  # stands for the lane in what is built for several loops of lanes


def reference_nest(func: Func) -> Func:
    """A lowered function that computes the same bits, most of its sums some at a time."""
    taken = {*func.sizes, *(b.name for b in func.params), *allocs(func.body), *loops(func.body)}
    shared = {name for pair in func.in_place for name in pair}
    types = {b.name: b.type for b in func.params}
    types |= {name: a.buffer.type for name, a in allocs(func.body).items()}

    def visit(stmt: Stmt) -> Stmt:
        if not isinstance(stmt, For) or (parts := _sum_of(stmt)) is None:
            return stmt
        if parts[0].buffer in shared:
            return stmt
        return _side_by_side(stmt, *parts, types, taken)

    return replace(func, body=rewrite(func.body, visit))


def _sum_of(loop: For) -> tuple[Store, tuple[For, ...], Store] | None:
    """The parts of `for x: s[x] = first; for r: s[x] += f`, if different x may go side by side."""
    match loop:
        case For(var, Const(int(extent)), LoopKind.SERIAL, Block((Store() as first, rest)), ()):
            around: list[For] = []
            while isinstance(rest, For) and rest.kind is LoopKind.SERIAL and not rest.notes:
                around.append(rest)
                rest = rest.body
            if extent < _LANES or not around or not isinstance(rest, Store):
                return None
            return (first, tuple(around), rest) if _is_plain_sum(var, first, rest) else None
    return None


def _is_plain_sum(var: str, first: Store, added: Store) -> bool:
    """Whether a sum has an element of its own for each `var`, and simple summands."""
    target = (first.buffer, first.index)
    if accumulation(added) is None or (added.buffer, added.index) != target:
        return False
    _, summand = _operands(added)
    if not first.index or first.index[-1] != Var(var):
        return False
    if any(x.buffer == first.buffer for x in (*loads(first.value), *loads(summand))):
        return False
    return all(_is_simple(e) for e in walk(summand))


def _is_simple(expr: Expr) -> bool:
    """Whether lanes of an expression do the same: nothing is chosen by what was loaded."""
    match expr:
        case Select(cond):
            return not loads(cond)
        case Const() | Var() | Load() | Cast() | Binary():
            return True
    return False


def _operands(added: Store) -> tuple[BinOp, Expr]:
    assert isinstance(added.value, Binary)
    return added.value.op, added.value.b


def _side_by_side(
    loop: For,
    first: Store,
    around: tuple[For, ...],
    added: Store,
    types: dict[str, TensorType],
    taken: set[str],
) -> Stmt:
    """Groups of lanes, the sums of each in a buffer of its own; then what is left, one by one."""
    assert isinstance(loop.extent, Const)
    whole, rest = divmod(int(loop.extent.value), _LANES)
    group, sums = fresh_name(f"{loop.var}_group", taken), fresh_name(f"{first.buffer}_lanes", taken)
    op, summand = _operands(added)

    def lanes(suffix: str, buffer: str, position: tuple[Expr, ...], value: Expr) -> Stmt:
        """A statement for all lanes of a group."""
        lane = fresh_name(f"{loop.var}_{suffix}", taken)
        at = {loop.var: Var(group) * _LANES + Var(lane), _LANE: Var(lane)}
        body = map_exprs(Store(buffer, position, value), lambda e: substitute(e, at))
        return For(lane, index(_LANES), LoopKind.VECTOR, body)

    dtype = types[first.buffer].dtype
    own = Load(sums, (Var(_LANE),), dtype)
    step = put_inside(around, lanes("lane", sums, (Var(_LANE),), Binary(op, own, summand)))
    parts = block(
        lanes("first", sums, (Var(_LANE),), first.value),
        step,
        lanes("last", first.buffer, first.index, own),
    )
    small = Buffer(sums, TensorType((index(_LANES),), dtype))
    found = For(group, index(whole), LoopKind.SERIAL, Alloc(small, Scope.LOCAL, parts))
    if not rest:
        return found
    names = {v: Var(fresh_name(f"{v}_rest", taken)) for v in (loop.var, *(f.var for f in around))}
    at = names | {loop.var: names[loop.var] + whole * _LANES}
    left = map_exprs(added, lambda e: substitute(e, at))
    for outer in reversed(around):
        left = replace(outer, var=names[outer.var].name, body=left)
    left = block(map_exprs(first, lambda e: substitute(e, at)), left)
    return block(found, For(names[loop.var].name, index(rest), LoopKind.SERIAL, left))
