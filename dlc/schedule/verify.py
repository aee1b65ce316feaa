"""The invariants of loop IR, checked after every primitive and every loop pass."""

from __future__ import annotations

import keyword
from collections import Counter
from collections.abc import Iterator
from typing import assert_never

from dlc.core.errors import VerifyError
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
    walk,
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
    if problems := [*_names(func), *_in_place(func), *_Checker(func).problems()]:
        unit = f"loop function '{func.name}'"
        raise VerifyError(unit=unit, when=when, problems="; ".join(dict.fromkeys(problems)))


def _names(func: Func) -> Iterator[str]:
    names = [*func.sizes, *(b.name for b in func.params)]
    for stmt in walk(func.body):
        if isinstance(stmt, For):
            names.append(stmt.var)
        elif isinstance(stmt, Alloc):
            names.append(stmt.buffer.name)
    for name, count in Counter(names).items():
        if count > 1:
            yield f"the name '{name}' is bound {count} times"
        if not name.isidentifier() or keyword.iskeyword(name) or name in RESERVED:
            yield f"'{name}' cannot be a name"


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


class _Checker:
    """One walk over a function with what is in scope."""

    def __init__(self, func: Func) -> None:
        self.func = func
        self.sizes = frozenset(func.sizes)
        self.scope = set(func.sizes)  # variables
        self.buffers = {b.name: b.type for b in func.params}
        self.read_only = frozenset(b.name for b in func.inputs)

    def problems(self) -> Iterator[str]:
        for param in self.func.params:
            yield from self.shape(param)
        yield from self.stmt(self.func.body, in_vector=False)

    def shape(self, buffer: Buffer) -> Iterator[str]:
        for size in buffer.type.shape:
            yield from self.size(size, f"the shape of '{buffer.name}'")

    def size(self, size: Expr, what: str) -> Iterator[str]:
        if isinstance(size, Const):
            if size.value < 0:
                yield f"{what} is {size.value}"
            return
        if size.dtype is not INDEX:
            yield f"{what} is no index"
        for name in sorted(free_vars(size)):
            if name not in self.sizes:
                yield f"{what} reads '{name}', which is no size variable"

    def stmt(self, stmt: Stmt, *, in_vector: bool) -> Iterator[str]:
        match stmt:
            case For():
                yield from self.loop(stmt, in_vector=in_vector)
            case If(cond, body):
                if cond.dtype is not DType.BOOL:
                    yield f"a condition of type {cond.dtype}"
                yield from self.expr(cond)
                yield from self.stmt(body, in_vector=in_vector)
            case Alloc():
                yield from self.alloc(stmt, in_vector=in_vector)
            case Store():
                yield from self.store(stmt)
            case Invoke():
                yield from self.invoke(stmt)
            case Block(stmts):
                for child in stmts:
                    yield from self.stmt(child, in_vector=in_vector)
            case _:
                assert_never(stmt)

    def loop(self, loop: For, *, in_vector: bool) -> Iterator[str]:
        if isinstance(loop.extent, Const) and loop.extent.value < 1:
            yield f"loop '{loop.var}' has extent {loop.extent.value}"
        yield from self.size(loop.extent, f"the extent of loop '{loop.var}'")
        if loop.kind in _CONSTANT_EXTENT and not isinstance(loop.extent, Const):
            yield f"the extent of {loop.kind} loop '{loop.var}' is no constant"
        if in_vector and loop.kind in _NOT_IN_VECTOR:
            yield f"{loop.kind} loop '{loop.var}' is inside a vector loop"
        bound = loop.var in self.scope
        self.scope.add(loop.var)
        yield from self.stmt(loop.body, in_vector=in_vector or loop.kind is LoopKind.VECTOR)
        if not bound:
            self.scope.discard(loop.var)

    def alloc(self, stmt: Alloc, *, in_vector: bool) -> Iterator[str]:
        buffer = stmt.buffer
        yield from self.shape(buffer)
        if stmt.scope.is_fixed and not buffer.type.is_static:
            yield f"{stmt.scope} buffer '{buffer.name}' has no constant shape"
        self.buffers[buffer.name] = buffer.type
        yield from self.stmt(stmt.body, in_vector=in_vector)
        self.buffers.pop(buffer.name, None)

    def store(self, stmt: Store) -> Iterator[str]:
        if stmt.buffer in self.read_only:
            yield f"input '{stmt.buffer}' is written"
        yield from self.access(stmt.buffer, stmt.index, stmt.value.dtype)
        for part in (*stmt.index, stmt.value):
            yield from self.expr(part)

    def access(self, buffer: str, index: tuple[Expr, ...], dtype: DType) -> Iterator[str]:
        type_ = self.buffers.get(buffer)
        if type_ is None:
            yield f"buffer '{buffer}' is not declared here"
            return
        if type_.rank != len(index):
            yield f"'{buffer}' has {type_.rank} dimensions and {len(index)} indices"
        if type_.dtype is not dtype:
            yield f"'{buffer}' holds {type_.dtype}, not {dtype}"
        if any(part.dtype is not INDEX for part in index):
            yield f"'{buffer}' is indexed by something not an index"

    def expr(self, expr: Expr) -> Iterator[str]:
        for name in sorted(free_vars(expr) - self.scope):
            yield f"variable '{name}' is not bound here"
        for load in loads(expr):
            yield from self.access(load.buffer, load.index, load.dtype)

    def invoke(self, stmt: Invoke) -> Iterator[str]:
        known = INSTRUCTIONS.get(stmt.instruction)
        if known is None:
            yield f"there is no instruction '{stmt.instruction}'"
            return
        params = known.func.params
        if len(params) != len(stmt.operands):
            yield f"'{known.name}' has {len(params)} operands, not {len(stmt.operands)}"
            return
        outputs = {b.name for b in known.func.outputs}
        for param, (buffer, index) in zip(params, stmt.operands, strict=True):
            yield from self.access(buffer, index, param.type.dtype)
            for part in index:
                yield from self.expr(part)
            if param.type.rank > len(index):
                yield f"'{buffer}' has fewer dimensions than '{known.name}' needs"
            if param.name in outputs and buffer in self.read_only:
                yield f"input '{buffer}' is written"
