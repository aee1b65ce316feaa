"""pad_einsum: round a loop of a sum of products up to a multiple."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dlc.core.types import INDEX
from dlc.schedule.edit import sites, swap_alloc, swap_loop, touched_by_invoke
from dlc.schedule.loop import (
    Alloc,
    For,
    Func,
    LoopKind,
    Stmt,
    Store,
    accumulation,
    allocs,
    block,
)
from dlc.schedule.primitive import check_fresh, find_serial, primitive, refuse
from dlc.te.expr import ZERO, Binary, BinOp, Cast, Const, Expr, Load, Var, ceil_div, const
from dlc.te.simplify import canonical, surely_divides, surely_equal
from dlc.te.transform import free_vars
from dlc.te.types import TensorType


@primitive
def pad_einsum(func: Func, buffer: str, loop: str, multiple: int) -> Func:
    """Round the extent of a loop that accumulates products into `buffer` up to a multiple.

    The operands that the loop walks along, which must be intermediates, get zeros in the new
    places: a longer reduction adds 0, a longer spatial loop computes elements that nobody reads.

    Before:
        def f(A: f32[5], W: f32[5], *, C: f32[1]):
            a = alloc(f32[5], "local")
            for i in range(5):
                a[i] = A[i]
            w = alloc(f32[5], "local")
            for j in range(5):
                w[j] = W[j]
            C[0] = 0.0
            for k in range(5):
                C[0] += a[k] * w[k]

    Call:
        pad_einsum("C", "k", 4)

    After:
        def f(A: f32[5], W: f32[5], *, C: f32[1]):
            a = alloc(f32[8], "local")
            for a_pad_0 in range(3):
                a[a_pad_0 + 5] = 0.0
            for i in range(5):
                a[i] = A[i]
            w = alloc(f32[8], "local")
            for w_pad_0 in range(3):
                w[w_pad_0 + 5] = 0.0
            for j in range(5):
                w[j] = W[j]
            C[0] = 0.0
            for k in range(8):
                C[0] += a[k] * w[k]

    Raises:
        ScheduleError: no such loop; it is no longer serial; multiple below 2; the loop holds
            something else than one sum of products into the buffer; an operand is no
            intermediate, is not walked along by the loop alone over a whole dimension, or is used
            by an instruction; a factor of a longer reduction would not become 0; a name is taken.
    """
    target = find_serial("pad_einsum", func, loop)
    if multiple < 2:
        refuse("pad_einsum", func, f"multiple {multiple} is below 2")
    store = _sum(func, buffer, target)
    if surely_divides(multiple, target.extent):
        return func
    assert isinstance(store.value, Binary)
    factors = list(_factors(func, store.value.b))
    spatial = any(loop in free_vars(i) for i in store.index)
    operands: dict[str, int] = {}
    for factor in factors:
        if any(loop in free_vars(i) for i in factor.index):
            operands[factor.buffer] = _dimension(func, target, factor.buffer, factor.index)
        elif not spatial:
            refuse("pad_einsum", func, f"'{factor.buffer}' would not be 0 behind its end")
    grown = dict(operands)
    if spatial:
        grown[buffer] = _dimension(func, target, buffer, store.index)
    extent = canonical(ceil_div(target.extent, multiple) * multiple)

    result = swap_loop(func, loop, lambda f: replace(f, extent=extent))
    for name, dim in grown.items():
        alloc = allocs(func.body)[name]
        names = [f"{name}_pad_{d}" for d in range(alloc.buffer.type.rank)]
        check_fresh("pad_einsum", func, names)
        result = _grow(result, name, dim, extent, names if name in operands else None)
    return result


def _sum(func: Func, buffer: str, target: For) -> Store:
    """The one store inside of the loop."""
    found = [s.store for s in sites(target)]
    single = len(found) == 1 and found[0].buffer == buffer
    if not single or accumulation(found[0]) is not BinOp.ADD:
        reason = f"loop '{target.var}' holds something else than one sum into '{buffer}'"
        refuse("pad_einsum", func, reason)
    return found[0]


def _factors(func: Func, value: Expr) -> Iterator[Load]:
    """The elements whose product is added."""
    match value:
        case Binary(BinOp.MUL, a, b):
            yield from _factors(func, a)
            yield from _factors(func, b)
        case Cast(_, a):
            yield from _factors(func, a)
        case Load():
            yield value
        case _:
            refuse("pad_einsum", func, f"'{value}' is no product of elements")


def _dimension(func: Func, target: For, buffer: str, index: tuple[Expr, ...]) -> int:
    """The dimension of an intermediate that the loop walks along."""
    alloc = allocs(func.body).get(buffer)
    if alloc is None:
        refuse("pad_einsum", func, f"'{buffer}' is no intermediate", "cache_read it before")
    if touched_by_invoke(alloc, buffer):
        refuse("pad_einsum", func, f"an instruction uses '{buffer}'")
    dims = [d for d, part in enumerate(index) if target.var in free_vars(part)]
    whole = len(dims) == 1 and index[dims[0]] == Var(target.var)
    if not whole or not surely_equal(alloc.buffer.type.shape[dims[0]], target.extent):
        reason = f"loop '{target.var}' does not walk along a whole dimension of '{buffer}'"
        refuse("pad_einsum", func, reason)
    return dims[0]


def _grow(func: Func, name: str, dim: int, extent: Expr, names: list[str] | None) -> Func:
    """Lengthen one dimension of a buffer; with `names`, fill the new places with zeros."""

    def change(alloc: Alloc) -> Stmt:
        old = alloc.buffer.type
        shape = tuple(extent if d == dim else n for d, n in enumerate(old.shape))
        buffer = replace(alloc.buffer, type=TensorType(shape, old.dtype))
        body = alloc.body
        if names is not None:
            body = block(_zeros(name, old, dim, extent, names), body)
        return Alloc(buffer, alloc.scope, body)

    return swap_alloc(func, name, change)


def _zeros(name: str, old: TensorType, dim: int, extent: Expr, names: list[str]) -> Stmt:
    one = Const(1, INDEX)
    index: list[Expr] = []
    axes: list[tuple[str, Expr]] = []
    for d, (var, size) in enumerate(zip(names, old.shape, strict=True)):
        count = canonical(extent - size) if d == dim else size
        start = size if d == dim else ZERO
        index.append(start if count == one else canonical(start + Var(var)))
        axes += [] if count == one else [(var, count)]
    stmt: Stmt = Store(name, tuple(index), const(0, old.dtype))
    for var, count in reversed(axes):
        stmt = For(var, count, LoopKind.SERIAL, stmt)
    return stmt
