"""Loop IR: loop nests over buffers. What schedules rewrite and codegen reads.

Loops start at 0 and step by 1; an extent is an expression over size variables and may be 0.
Names of loops, buffers and size variables are unique within a function, so a name is a stable
handle for a primitive and for a saved schedule.
"""

from __future__ import annotations

import enum
import keyword
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from dlc.core.remember import per_object
from dlc.core.types import DType
from dlc.te.expr import Binary, BinOp, Expr, Load
from dlc.te.transform import free_vars, loads, map_same
from dlc.te.transform import substitute as substitute_expr
from dlc.te.types import TensorType


class LoopKind(enum.StrEnum):
    """How the iterations of a loop run; the value is its spelling in IR text."""

    SERIAL = "range"
    PARALLEL = "parallel"  # on any threads, in any order
    VECTOR = "vectorize"  # as lanes of vectors; the extent is a constant
    UNROLL = "unroll"  # written out; the extent is a constant
    BLOCK = "block"  # on the blocks of a GPU, in any order
    THREAD = "thread"  # on the threads of a GPU's block, together with those nested inside of it
    WARP = "warp"  # as THREAD, each iteration on 32 threads that run one instruction together


class Scope(enum.StrEnum):
    """Where a buffer inside a function lives."""

    LOCAL = "local"  # memory of one thread, small enough for its caches
    REGISTER = "register"  # SSA values: every index is a constant or a vector lane after unrolling
    SHARED = "shared"  # memory of one GPU block, used by all of its threads
    TILE = "tile"  # 16 x 16 registers of a matrix engine: only instructions touch it

    @property
    def is_fixed(self) -> bool:
        """Whether the storage is registers: they are named, so a shape is constant."""
        return self in (Scope.REGISTER, Scope.TILE)


@dataclass(frozen=True, slots=True)
class Buffer:
    """Storage for one tensor, dense and row-major."""

    name: str
    type: TensorType


@dataclass(frozen=True, slots=True)
class Store:
    """`buffer[index] = value`."""

    buffer: str
    index: tuple[Expr, ...]
    value: Expr


@dataclass(frozen=True, slots=True)
class If:
    """Run `body` where `cond` holds."""

    cond: Expr
    body: Stmt


@dataclass(frozen=True, slots=True)
class Block:
    """Statements in order."""

    stmts: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class For:
    """`for var in range(extent)`. `notes` are hints for codegen; they change no result."""

    var: str
    extent: Expr
    kind: LoopKind
    body: Stmt
    notes: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Alloc:
    """A buffer that lives while `body` runs; its elements are undefined until stored."""

    buffer: Buffer
    scope: Scope
    body: Stmt


@dataclass(frozen=True, slots=True)
class Invoke:
    """One hardware instruction on regions of buffers.

    `operands` are (buffer, index of the region's first element); the instruction's declaration
    gives the shape of each region and the meaning as loop IR (`schedule/instruction.py`).
    """

    instruction: str
    operands: tuple[tuple[str, tuple[Expr, ...]], ...]


Stmt = Store | If | Block | For | Alloc | Invoke


@dataclass(frozen=True, slots=True)
class Func:
    """One kernel: size variables, buffers it reads, buffers it writes.

    Inputs and outputs never share memory, except an output with the input of the same position
    in `in_place`: (output name, input name) pairs.
    """

    name: str
    sizes: tuple[str, ...]
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    body: Stmt
    in_place: tuple[tuple[str, str], ...] = ()

    @property
    def params(self) -> tuple[Buffer, ...]:
        """Inputs, then outputs."""
        return (*self.inputs, *self.outputs)

    def __str__(self) -> str:
        from dlc.schedule.text import print_func  # the printer imports this module

        return print_func(self)


def rewrite(stmt: Stmt, visit: Callable[[Stmt], Stmt]) -> Stmt:
    """Rebuild a statement bottom-up; unchanged subtrees are returned as they are."""
    return visit(map_bodies(stmt, lambda part: rewrite(part, visit)))


def block(*stmts: Stmt) -> Stmt:
    """Statements in order, nested blocks flattened; one statement stands alone.

    An allocation takes what follows it into its body, as it does in the text.
    """
    flat = [s for stmt in stmts for s in (stmt.stmts if isinstance(stmt, Block) else (stmt,))]
    for position, stmt in enumerate(flat[:-1]):
        if isinstance(stmt, Alloc):
            rest = block(stmt.body, *flat[position + 1 :])
            flat[position:] = [Alloc(stmt.buffer, stmt.scope, rest)]
            break
    return flat[0] if len(flat) == 1 else Block(tuple(flat))


def walk(stmt: Stmt) -> Iterator[Stmt]:
    """Yield every statement, parents first, in order."""
    pending: list[Stmt] = [stmt]
    while pending:
        node = pending.pop()
        yield node
        match node:
            case Store() | Invoke():
                pass
            case If() | For() | Alloc():
                pending.append(node.body)
            case Block():
                pending.extend(reversed(node.stmts))
            case _:
                assert_never(node)


def _everywhere(_: Stmt) -> bool:
    return True


def map_exprs(
    stmt: Stmt, fn: Callable[[Expr], Expr], *, where: Callable[[Stmt], bool] = _everywhere
) -> Stmt:
    """Apply `fn` to every subscript, value and condition of a statement (not to loop extents).

    Nothing changes in parts that are not `where`.
    """
    if not where(stmt):
        return stmt
    node = map_bodies(stmt, lambda part: map_exprs(part, fn, where=where))
    match node:
        case Store(buffer, index, value):
            new, stored = map_same(index, fn), fn(value)
            return node if new is index and stored is value else Store(buffer, new, stored)
        case If(cond, body):
            test = fn(cond)
            return node if test is cond else If(test, body)
        case Invoke(name, operands):
            moved = tuple((b, map_same(idx, fn)) for b, idx in operands)
            same = all(a is b for (_, a), (_, b) in zip(moved, operands, strict=True))
            return node if same else Invoke(name, moved)
        case Block() | For() | Alloc():
            return node
        case _:
            assert_never(node)


def substitute(stmt: Stmt, env: Mapping[str, Expr]) -> Stmt:
    """Replace variables by name in every expression of a statement."""
    return map_exprs(
        stmt, lambda e: substitute_expr(e, env), where=lambda s: not reads(s).isdisjoint(env)
    )


def exprs(stmt: Stmt) -> Iterator[Expr]:
    """Every subscript, value and condition of a statement and its children."""
    for node in walk(stmt):
        match node:
            case Store(_, index, value):
                yield from index
                yield value
            case If(cond, _):
                yield cond
            case Invoke(_, operands):
                for _, index in operands:
                    yield from index
            case For() | Alloc() | Block():
                pass
            case _:
                assert_never(node)


@per_object
def accumulation(stmt: Stmt) -> BinOp | None:
    """The operator of `C[i] = C[i] op value` where op is +, *, min or max, else None."""
    match stmt:
        case Store(buffer, index, Binary(op, Load(b, i, _), _)) if (b, i) == (buffer, index):
            return op if op in (BinOp.ADD, BinOp.MUL, BinOp.MIN, BinOp.MAX) else None
    return None


@per_object
def allocs(stmt: Stmt) -> Mapping[str, Alloc]:
    """The buffers a statement allocates, by name, outer before inner."""
    match stmt:
        case Store() | Invoke():
            return {}
        case Alloc(buffer, _, body):
            return {buffer.name: stmt, **allocs(body)}
        case If(_, body) | For(_, _, _, body):
            return allocs(body)
        case Block(stmts):
            return {name: alloc for s in stmts for name, alloc in allocs(s).items()}
        case _:
            assert_never(stmt)


@per_object
def loops(stmt: Stmt) -> Mapping[str, For]:
    """The loops of a statement by variable, outer before inner."""
    match stmt:
        case Store() | Invoke():
            return {}
        case For(var, _, _, body):
            return {var: stmt, **loops(body)}
        case If(_, body) | Alloc(_, _, body):
            return loops(body)
        case Block(stmts):
            return {var: loop for s in stmts for var, loop in loops(s).items()}
        case _:
            assert_never(stmt)


def innermost_loops(stmt: Stmt) -> list[str]:
    """Serial loops that contain no loop."""
    return [
        var
        for var, loop in loops(stmt).items()
        if loop.kind is LoopKind.SERIAL and not loops(loop.body)
    ]


@per_object
def reads(stmt: Stmt) -> frozenset[str]:
    """The variables in the subscripts, values and conditions of a statement, its own as well."""
    match stmt:
        case Store(_, index, value):
            return free_vars(value).union(*map(free_vars, index))
        case Invoke(_, operands):
            return frozenset().union(*(free_vars(i) for _, index in operands for i in index))
        case If(cond, body):
            return reads(body) | free_vars(cond)
        case For(_, _, _, body) | Alloc(_, _, body):
            return reads(body)
        case Block(stmts):
            return frozenset().union(*map(reads, stmts))
        case _:
            assert_never(stmt)


@per_object
def touches(stmt: Stmt) -> frozenset[str]:
    """The buffers that a statement reads or writes, be they its own."""
    match stmt:
        case Store(buffer, index, value):
            own = (e.buffer for part in (*index, value) for e in loads(part))
            return frozenset([buffer, *own])
        case Invoke(_, operands):
            parts = (i for _, index in operands for i in index)
            own = (e.buffer for part in parts for e in loads(part))
            return frozenset([*(buffer for buffer, _ in operands), *own])
        case If(cond, body):
            return touches(body).union(e.buffer for e in loads(cond))
        case For(_, _, _, body) | Alloc(_, _, body):
            return touches(body)
        case Block(stmts):
            return frozenset().union(*map(touches, stmts))
        case _:
            assert_never(stmt)


def map_bodies(stmt: Stmt, change: Callable[[Stmt], Stmt]) -> Stmt:
    """The statement over changed parts; the statement itself where none changed."""
    match stmt:
        case Store() | Invoke():
            return stmt
        case For(var, extent, kind, body, notes):
            new = change(body)
            return stmt if new is body else For(var, extent, kind, new, notes)
        case Alloc(buffer, scope, body):
            new = change(body)
            return stmt if new is body else Alloc(buffer, scope, new)
        case If(cond, body):
            new = change(body)
            return stmt if new is body else If(cond, new)
        case Block(stmts):
            parts = [change(s) for s in stmts]
            return stmt if all(map(operator.is_, parts, stmts)) else block(*parts)
        case _:
            assert_never(stmt)


def dtypes(func: Func) -> dict[str, DType]:
    """The element type of every buffer of a function."""
    types = {b.name: b.type.dtype for b in func.params}
    types |= {a.buffer.name: a.buffer.type.dtype for a in allocs(func.body).values()}
    return types


def put_inside(around: Sequence[For | If | Alloc], stmt: Stmt) -> Stmt:
    """A statement inside of others, the outermost first."""
    for outer in reversed(around):
        stmt = replace(outer, body=stmt)
    return stmt


def names_in(func: Func) -> set[str]:
    """All names that a function binds: of sizes, parameters, intermediates and loops."""
    params = (b.name for b in func.params)
    return {*func.sizes, *params, *allocs(func.body), *loops(func.body)}


def fresh_name(wanted: str, taken: set[str]) -> str:
    """A name that is not taken, as near to `wanted` as possible; it is taken then."""
    name, number = wanted, 1
    while name in taken or keyword.iskeyword(name):
        name, number = f"{wanted}_{number}", number + 1
    taken.add(name)
    return name
