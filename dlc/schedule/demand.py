"""How much a kernel has to do, whatever its schedule: what a profile holds its time against."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dlc.core.types import DType
from dlc.schedule.loop import Alloc, Block, For, Func, If, Invoke, Stmt, Store, allocs
from dlc.te.expr import (
    ONE,
    ZERO,
    Binary,
    BinOp,
    Cast,
    Expr,
    Load,
    Select,
    Unary,
    maximum,
    minimum,
)
from dlc.te.simplify import canonical
from dlc.te.transform import free_vars, loads, walk

_COMPARISONS = (BinOp.LT, BinOp.LE, BinOp.EQ, BinOp.NE)


@dataclass(frozen=True, slots=True)
class Demand:
    """Operations on floats (a multiply-add is two), and bytes that are read and written at least.

    Both are expressions over the kernel's sizes.
    """

    operations: Expr
    bytes: Expr


def demand(func: Func) -> Demand:
    """What a lowered function has to do. A guard counts as if it always held.

    Sums of products of bf16 planes count as the sums of products of floats that they stand for.
    """
    operations: Expr = ZERO
    read: dict[str, Expr] = {}
    written: dict[str, Expr] = {}
    own = allocs(func.body)
    found = list(_stores(func.body, ()))
    sums = {store.buffer for store, _ in found if _is_sum_of_planes(store)}
    planes = {name for name, alloc in own.items() if alloc.buffer.type.dtype is DType.BF16}
    for store, around in found:
        count = sum(map(_is_operation, walk(store.value)))
        if sums and store.buffer in sums | planes:
            count = 0  # what is summed once more, in floats, counts for all of it
        elif _is_summed_again(store, sums):
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


def _is_sum_of_planes(store: Store) -> bool:
    """Whether a statement adds up products of bf16."""
    match store.value:
        case Binary(
            BinOp.ADD, Load(), Binary(BinOp.MUL, Cast(_, Load() as a), Cast(_, Load() as b))
        ):
            return a.dtype is DType.BF16 and b.dtype is DType.BF16
        case _:
            return False


def _is_summed_again(store: Store, sums: set[str]) -> bool:
    """Whether a statement adds up a product where a sum of planes is not finite."""
    match store.value:
        case Binary(BinOp.ADD, Load(), Select(cond)):
            return any(x.buffer in sums for x in loads(cond))
        case _:
            return False


def _is_operation(expr: Expr) -> bool:
    arithmetic = isinstance(expr, Binary | Unary) and expr.dtype.is_float
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
