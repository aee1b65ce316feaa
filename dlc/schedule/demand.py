"""How much a kernel has to do, whatever its schedule: what a profile holds its time against."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dlc.core.types import DType
from dlc.schedule.loop import Alloc, Block, For, Func, If, Invoke, Stmt, Store, allocs
from dlc.te.expr import (
    ONE,
    ZERO,
    Binary,
    BinOp,
    Expr,
    Load,
    Select,
    Unary,
    maximum,
    minimum,
)
from dlc.te.simplify import canonical
from dlc.te.transform import free_vars, loads, walk

_COUNTED = {d for d in DType if d.is_float} | {DType.I32}  # sums of products of bytes are i32
_COMPARISONS = (BinOp.LT, BinOp.LE, BinOp.EQ, BinOp.NE)


@dataclass(frozen=True, slots=True)
class Demand:
    """Operations on floats and i32 (a multiply-add is two), and bytes read and written at least.

    Both are expressions over the kernel's sizes.
    """

    operations: Expr
    bytes: Expr


def demand(func: Func) -> Demand:
    """What a lowered function has to do. A guard counts as if it always held.

    A product that is computed once more where its sum is not finite counts as that sum: planes of
    bf16 and transforms, which come to the same by other operations, do not count beside it.
    """
    operations: Expr = ZERO
    read: dict[str, Expr] = {}
    written: dict[str, Expr] = {}
    own = allocs(func.body)
    found = list(_stores(func.body, ()))
    replaced = _replaced([store for store, _ in found], frozenset(own))
    for store, around in found:
        count = sum(map(_is_operation, walk(store.value)))
        if store.buffer in replaced:
            count = 0
        elif _checked(store) & replaced:
            count = 2
        operations += _trips(around) * count
        if store.buffer not in own:
            written[store.buffer] = written.get(store.buffer, ZERO) + _reach(store.index, around)
        for load in dict.fromkeys(loads(store.value)):
            if load.buffer not in own:
                more = read.get(load.buffer, ZERO) + _reach(load.index, around)
                read[load.buffer] = canonical(more)
    moved: Expr = ZERO
    for buffer in func.params:
        touched = (written if buffer in func.outputs else read).get(buffer.name, ZERO)
        moved += minimum(touched, buffer.type.elems) * buffer.type.dtype.size_bytes
    return Demand(canonical(operations), canonical(moved))


def _checked(store: Store) -> frozenset[str]:
    """What a statement looks at that adds up a product only where something is not finite."""
    match store.value:
        case Binary(BinOp.ADD, Load(buffer), Select(cond)) if buffer == store.buffer:
            return _read(cond)
        case _:
            return frozenset()


def _replaced(stores: Sequence[Store], own: frozenset[str]) -> frozenset[str]:
    """The intermediates that lead to sums which are computed once more, and to nothing else."""
    made: dict[str, frozenset[str]] = {}
    for store in stores:
        made[store.buffer] = made.get(store.buffer, frozenset()) | _read(store.value) & own
    again = [(seen & own, s) for s in stores if (seen := _checked(s)) & own]
    replaced = _reached(made, [name for seen, _ in again for name in seen])
    kept = _reached(made, [n for seen, s in again for n in made[s.buffer] - seen - {s.buffer}])
    return replaced - kept


def _reached(made: Mapping[str, frozenset[str]], names: Iterable[str]) -> frozenset[str]:
    """Intermediates, and all that they are made of."""
    found: set[str] = set()
    todo = list(names)
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += made.get(name, ())
    return frozenset(found)


def _read(expr: Expr) -> frozenset[str]:
    return frozenset(load.buffer for load in loads(expr))


def _is_operation(expr: Expr) -> bool:
    arithmetic = isinstance(expr, Binary | Unary) and expr.dtype in _COUNTED
    return arithmetic and getattr(expr, "op", None) not in _COMPARISONS


def _trips(around: Sequence[For]) -> Expr:
    """How often a statement runs."""
    total: Expr = ONE
    for loop in around:
        total = total * maximum(loop.extent, 0)
    return total


def _reach(index: Sequence[Expr], around: Sequence[For]) -> Expr:
    """How many elements an index can name while the loops run, at most."""
    names = frozenset(name for i in index for name in free_vars(i))
    return _trips([loop for loop in around if loop.var in names])


def _stores(stmt: Stmt, around: tuple[For, ...]) -> Iterator[tuple[Store, tuple[For, ...]]]:
    match stmt:
        case Store():
            yield stmt, around
        case For():
            yield from _stores(stmt.body, (*around, stmt))
        case If(_, body) | Alloc(_, _, body):
            yield from _stores(body, around)
        case Block(stmts):
            for child in stmts:
                yield from _stores(child, around)
        case Invoke():
            pass
