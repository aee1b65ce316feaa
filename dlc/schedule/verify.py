"""The invariants of loop IR, checked after every primitive and every loop pass."""

from __future__ import annotations

import functools
import keyword
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple, Never, assert_never

from dlc.core.errors import VerifyError
from dlc.core.remember import per_object
from dlc.core.types import INDEX, DType
from dlc.schedule.instruction import INSTRUCTIONS
from dlc.schedule.loop import (
    Alloc,
    Block,
    Buffer,
    For,
    Func,
    If,
    Invoke,
    LoopKind,
    Stmt,
    Store,
)
from dlc.te.expr import Const, Expr, UnOp
from dlc.te.transform import free_vars, loads

_CONSTANT_EXTENT = (LoopKind.VECTOR, LoopKind.UNROLL, LoopKind.THREAD, LoopKind.WARP)
_NOT_IN_VECTOR = (
    LoopKind.VECTOR,
    LoopKind.PARALLEL,
    LoopKind.BLOCK,
    LoopKind.THREAD,
    LoopKind.WARP,
)
# Words of the text that mean something else: a buffer of this name could not be read back.
RESERVED = frozenset(
    {"size", "alloc", "invoke", "in_place", "min", "max", "inf", "nan", "index"}
    | {kind.value for kind in LoopKind}
    | {dtype.value for dtype in DType}
    | {op.value for op in UnOp}
)


def verify_func(func: Func, *, when: str) -> None:
    """Raise `VerifyError` listing every broken invariant.

    - Names of sizes, buffers and loops are words of the text, each bound once in the function.
    - A variable is used only inside its loop; a buffer only inside its allocation.
    - Extents and shapes read size variables only; a constant extent is at least 1.
    - The extents of vector, unrolled and thread loops are constants, and inside a vector loop
      there is no other vector loop and no parallel one, be it of cores, blocks or threads.
    - A buffer is indexed with as many indices as it has dimensions, read and written in its own
      element type; inputs are not written.
    - Register and tile buffers have a constant shape.
    - `in_place` pairs an output with an input of the same type, each at most once.
    - An instruction is known and has operands of its ranks and element types.
    """
    if problems := list(dict.fromkeys(_problems(func))):
        unit = f"loop function '{func.name}'"
        raise VerifyError(unit=unit, when=when, problems="; ".join(problems))


def _problems(func: Func) -> Iterator[str]:
    facts = _facts(func.body)
    yield from _names(func, facts.bound)
    yield from _in_place(func)
    sizes = set(facts.sizes)
    for param in func.params:
        found, read = _shape(param)
        yield from found
        sizes |= read
    yield from facts.problems
    for name, what in sorted(sizes):
        if name not in func.sizes:
            yield f"{what} reads '{name}', which is no size variable"
    for name in sorted(facts.reads.difference(func.sizes)):
        yield f"variable '{name}' is not bound here"
    buffers = {b.name: b for b in func.params}
    read_only = {b.name for b in func.inputs}
    for access in sorted(facts.accesses):
        if access.is_written and access.buffer in read_only:
            yield f"input '{access.buffer}' is written"
        yield from _why_no_access(access, buffers.get(access.buffer))


def _names(func: Func, bound: tuple[str, ...]) -> Iterator[str]:
    params = (*func.sizes, *(b.name for b in func.params))
    names = (*params, *bound)
    if len(set(names)) < len(names):
        for name, count in Counter(names).items():
            if count > 1:
                yield f"the name '{name}' is bound {count} times"
    for name in params:
        yield from _why_no_name(name)


@functools.lru_cache(maxsize=65536)
def _why_no_name(name: str) -> tuple[str, ...]:
    is_name = name.isidentifier() and not keyword.iskeyword(name) and name not in RESERVED
    return () if is_name else (f"'{name}' cannot be a name",)


def _in_place(func: Func) -> Iterator[str]:
    inputs = {b.name: b.type for b in func.inputs}
    outputs = {b.name: b.type for b in func.outputs}
    for out, source in func.in_place:
        if out not in outputs or source not in inputs:
            yield f"in_place pairs '{out}' with '{source}', not an output with an input"
        elif outputs[out] != inputs[source]:
            yield f"in_place pairs '{out}' and '{source}', which differ in type"
    for names in zip(*func.in_place, strict=True):
        if len(set(names)) < len(names):
            yield "in_place names a buffer twice"


_NONE: frozenset[Never] = frozenset()


class _Access(NamedTuple):
    """An element that is read or written: its buffer, the number of its indices, its type."""

    buffer: str
    rank: int
    dtype: DType
    is_written: bool


class _Facts(NamedTuple):
    """What a statement is by itself, and what it asks of its surroundings.

    Attributes:
        problems: what is wrong wherever it stands.
        bound: the names of its loops and buffers, each as often as it is bound.
        reads: the variables it reads and does not bind.
        sizes: (variable, what it is a size of).
        accesses: those to buffers that it does not allocate.
        unlike_lanes: its loops that a vector loop may not hold.
    """

    problems: tuple[str, ...] = ()
    bound: tuple[str, ...] = ()
    reads: frozenset[str] = frozenset()
    sizes: frozenset[tuple[str, str]] = frozenset()
    accesses: frozenset[_Access] = frozenset()
    unlike_lanes: frozenset[tuple[LoopKind, str]] = frozenset()


@per_object
def _facts(stmt: Stmt) -> _Facts:
    match stmt:
        case For():
            return _loop(stmt)
        case If(cond, body):
            problems = () if cond.dtype is DType.BOOL else (f"a condition of type {cond.dtype}",)
            return _joined([_reading((cond,), problems), _facts(body)])
        case Alloc():
            return _alloc(stmt)
        case Store(buffer, index, value):
            own = _Access(buffer, len(index), value.dtype, True)
            return _reading((*index, value), _why_no_index(buffer, index), frozenset([own]))
        case Invoke():
            return _invoke(stmt)
        case Block(stmts):
            return _joined([_facts(child) for child in stmts])
        case _:
            assert_never(stmt)


def _joined(parts: Sequence[_Facts]) -> _Facts:
    problems, bound, reads, sizes, accesses, unlike = zip(_Facts(), *parts, strict=True)
    return _Facts(
        tuple(chain.from_iterable(problems)),
        tuple(chain.from_iterable(bound)),
        _NONE.union(*reads),
        _NONE.union(*sizes),
        _NONE.union(*accesses),
        _NONE.union(*unlike),
    )


def _loop(loop: For) -> _Facts:
    problems, bound, reads, sizes, accesses, unlike = _facts(loop.body)
    var, extent, kind = loop.var, loop.extent, loop.kind
    wrong = [*_why_no_name(var)]
    if not isinstance(extent, Const):
        found, read = _size(extent, f"the extent of loop '{var}'")
        wrong += found
        sizes |= read
        if kind in _CONSTANT_EXTENT:
            wrong.append(f"the extent of {kind} loop '{var}' is no constant")
    elif extent.value < 1:
        wrong.append(f"loop '{var}' has extent {extent.value}")
    if kind is LoopKind.VECTOR:
        wrong += [f"{other} loop '{v}' is inside a vector loop" for other, v in sorted(unlike)]
        unlike = frozenset()
    if kind in _NOT_IN_VECTOR:
        unlike |= {(kind, var)}
    return _Facts((*wrong, *problems), (var, *bound), reads - {var}, sizes, accesses, unlike)


def _alloc(stmt: Alloc) -> _Facts:
    buffer = stmt.buffer
    problems, bound, reads, sizes, accesses, unlike = _facts(stmt.body)
    found, read = _shape(buffer)
    wrong = [*found, *_why_no_name(buffer.name)]
    if stmt.scope.is_fixed and not buffer.type.is_static:
        wrong.append(f"{stmt.scope} buffer '{buffer.name}' has no constant shape")
    own = {access for access in accesses if access.buffer == buffer.name}
    for access in sorted(own):
        wrong += _why_no_access(access, buffer)
    bound = (buffer.name, *bound)
    return _Facts((*wrong, *problems), bound, reads, sizes | read, accesses - own, unlike)


def _invoke(stmt: Invoke) -> _Facts:
    known = INSTRUCTIONS.get(stmt.instruction)
    if known is None:
        return _Facts((f"there is no instruction '{stmt.instruction}'",))
    params = known.func.params
    if len(params) != len(stmt.operands):
        what = f"'{known.name}' has {len(params)} operands, not {len(stmt.operands)}"
        return _Facts((what,))
    outputs = {b.name for b in known.func.outputs}
    parts = []
    for param, (buffer, index) in zip(params, stmt.operands, strict=True):
        problems = _why_no_index(buffer, index)
        if param.type.rank > len(index):
            problems += (f"'{buffer}' has fewer dimensions than '{known.name}' needs",)
        own = _Access(buffer, len(index), param.type.dtype, param.name in outputs)
        parts.append(_reading(index, problems, frozenset([own])))
    return _joined(parts)


def _reading(
    exprs: Iterable[Expr],
    problems: tuple[str, ...] = (),
    accesses: frozenset[_Access] = frozenset(),
) -> _Facts:
    """The facts of expressions, added to what is known."""
    reads: set[str] = set()
    found = set(accesses)
    for expr in exprs:
        reads |= free_vars(expr)
        for load in loads(expr):
            problems += _why_no_index(load.buffer, load.index)
            found.add(_Access(load.buffer, len(load.index), load.dtype, False))
    return _Facts(problems, (), frozenset(reads), frozenset(), frozenset(found))


def _why_no_index(buffer: str, index: tuple[Expr, ...]) -> tuple[str, ...]:
    if any(part.dtype is not INDEX for part in index):
        return (f"'{buffer}' is indexed by something not an index",)
    return ()


def _why_no_access(access: _Access, buffer: Buffer | None) -> Iterator[str]:
    if buffer is None:
        yield f"buffer '{access.buffer}' is not declared here"
        return
    if buffer.type.rank != access.rank:
        yield f"'{buffer.name}' has {buffer.type.rank} dimensions and {access.rank} indices"
    if buffer.type.dtype is not access.dtype:
        yield f"'{buffer.name}' holds {buffer.type.dtype}, not {access.dtype}"


@per_object
def _shape(buffer: Buffer) -> tuple[list[str], set[tuple[str, str]]]:
    problems: list[str] = []
    sizes: set[tuple[str, str]] = set()
    for size in buffer.type.shape:
        found, read = _size(size, f"the shape of '{buffer.name}'")
        problems += found
        sizes |= read
    return problems, sizes


def _size(size: Expr, what: str) -> tuple[list[str], set[tuple[str, str]]]:
    """What is wrong with a size, and the variables it reads."""
    if isinstance(size, Const):
        return ([f"{what} is {size.value}"] if size.value < 0 else []), set()
    problems = [] if size.dtype is INDEX else [f"{what} is no index"]
    return problems, {(name, what) for name in free_vars(size)}
