"""The invariants of a launch, checked after the loop passes: what a GPU can run."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import prod

from dlc.core.errors import VerifyError
from dlc.core.target import Gpu
from dlc.schedule.gpu import (
    block_bodies,
    block_phases,
    block_threads,
    is_sync,
    shared_offsets,
    strides,
    tails,
    thread_loops,
)
from dlc.schedule.instruction import INSTRUCTIONS
from dlc.schedule.loop import (
    Alloc,
    For,
    Func,
    If,
    Invoke,
    LoopKind,
    Scope,
    Stmt,
    Store,
    allocs,
    walk,
)
from dlc.schedule.passes.insert_barriers import insert_barriers
from dlc.schedule.verify_copies import wrong_copies
from dlc.te.expr import Const, Expr, Var
from dlc.te.transform import free_vars, loads
from dlc.te.types import const_size

Index = tuple[Expr, ...]


def verify_gpu(func: Func, gpu: Gpu, *, when: str) -> None:
    """Raise `VerifyError` listing every broken invariant of a launch.

    - Block loops stand outside of everything else; thread loops of a phase are nested.
    - The number of blocks of a launch with a tail is constant.
    - A barrier stands wherever phases conflict, and never inside of a phase.
    - Copies beside the threads are aligned, and have arrived where they are used (`verify_copies`).
    - A block has no more threads, shared memory and registers than the target offers.
    - Shared buffers have a constant shape and are allocated outside of phases; what else is
      allocated there has scope `register` and, in each phase, the thread's digits at the same
      places of every index.
    - A phase allocates only what has a constant shape.
    """
    problems = [
        *_loops(func),
        *_barriers(func),
        *wrong_copies(func),
        *_limits(func, gpu),
        *_allocations(func),
        *(p for a in _private(func) for p in _digits(func, a)),
    ]
    if problems:
        unit = f"launch '{func.name}'"
        raise VerifyError(unit=unit, when=when, problems="; ".join(dict.fromkeys(problems)))


def _loops(func: Func) -> Iterator[str]:
    for stmt in (s for body in block_bodies(func) for s in walk(body)):
        if isinstance(stmt, For) and stmt.kind is LoopKind.BLOCK:
            yield f"block loop '{stmt.var}' is not outside of everything else"
        if isinstance(stmt, For) and stmt.kind is LoopKind.PARALLEL:
            yield f"loop '{stmt.var}' is parallel, not bound to blocks or threads"
    for loop in (f for tail in tails(func) for f in (*tail.groups, *tail.members)):
        if not isinstance(loop.extent, Const):
            yield f"block loop '{loop.var}' before a tail has no constant extent"
    for phase in block_phases(func):
        yield from _nested(phase)


def _nested(phase: Stmt) -> Iterator[str]:
    """Whether all work of a phase is inside its innermost thread loop, and warps' by warps."""
    found = thread_loops(phase)
    by_warps = bool(found) and found[-1].kind is LoopKind.WARP
    for stmt in walk(phase):
        if isinstance(stmt, Store) and by_warps:
            yield f"a store stands inside of the warp loop '{found[-1].var}', but no thread loop"
        if isinstance(stmt, Invoke) and bool(INSTRUCTIONS[stmt.instruction].lanes) != by_warps:
            yield f"'{stmt.instruction}' does not stand in warp loops only"
    for outer, inner in pairwise(found):
        stores = [s for s in walk(outer.body) if isinstance(s, Store)]
        inside = [s for s in walk(inner) if isinstance(s, Store)]
        if len(stores) != len(inside):
            yield f"a store of a phase stands outside of its thread loop '{inner.var}'"


def _barriers(func: Func) -> Iterator[str]:
    for stmt in walk(func.body):
        is_thread_loop = isinstance(stmt, For) and stmt.kind in (LoopKind.THREAD, LoopKind.WARP)
        if is_thread_loop and any(is_sync(s) for s in walk(stmt)):
            yield "threads of a block wait for each other, or for copies, inside of a thread loop"
    if insert_barriers(func) != func:
        yield "phases conflict without a barrier between them"


def _limits(func: Func, gpu: Gpu) -> Iterator[str]:
    threads = block_threads(func)
    if threads > gpu.threads:
        yield f"{threads} threads in a block; the most are {gpu.threads}"
    shared = shared_bytes(func)
    if shared is not None and shared > gpu.shared_bytes:
        yield f"{shared} bytes of shared memory; the most are {gpu.shared_bytes}"
    words = sum(
        const_size(a.buffer.type.elems) * max(1, a.buffer.type.dtype.size_bytes // 4)
        for a in _private(func)
        if a.buffer.type.is_static
    )
    if words > gpu.registers:
        yield f"{words} registers in a block; the most are {gpu.registers}"


def shared_bytes(func: Func) -> int | None:
    """The shared memory of a block; None if not constant."""
    shared = [a.buffer for a in allocs(func.body).values() if a.scope is Scope.SHARED]
    return shared_offsets(func)[1] if all(b.type.is_static for b in shared) else None


def _allocations(func: Func) -> Iterator[str]:
    inside = {id(s) for p in block_phases(func) for s in walk(p)}
    for stmt in walk(func.body):
        if not isinstance(stmt, Alloc):
            continue
        name = stmt.buffer.name
        if not stmt.buffer.type.is_static:
            yield f"buffer '{name}' has no constant shape"
        if id(stmt) in inside and stmt.scope is Scope.SHARED:
            yield f"shared buffer '{name}' is allocated inside of a phase"
        if id(stmt) not in inside and stmt.scope is Scope.LOCAL:
            yield f"local buffer '{name}' is allocated outside of all phases"


def _private(func: Func) -> list[Alloc]:
    """The register buffers that live across phases."""
    inside = {id(s) for p in block_phases(func) for s in walk(p)}
    found = [s for s in walk(func.body) if isinstance(s, Alloc) and id(s) not in inside]
    return [a for a in found if a.scope is Scope.REGISTER]


def thread_dims(func: Func, buffer: str) -> dict[int, tuple[int, int]]:
    """The dimensions of a register buffer that number threads: (stride, extent) of the digit."""
    found: dict[int, tuple[int, int]] = {}
    for index, digits in _accesses(func, buffer):
        for dim, part in enumerate(index):
            if isinstance(part, Var) and part.name in digits:
                found[dim] = digits[part.name]
    return found


def _accesses(func: Func, buffer: str) -> Iterator[tuple[Index, dict[str, tuple[int, int]]]]:
    """Every index of a buffer, and the digits of the thread loops of its phase."""
    for phase in block_phases(func):
        digits = strides(thread_loops(phase))
        for stmt in walk(phase):
            for index in _indices(stmt, buffer):
                yield index, digits
            if isinstance(stmt, Invoke):
                yield from _regions(stmt, buffer, digits)


def _regions(
    stmt: Invoke, buffer: str, digits: dict[str, tuple[int, int]]
) -> Iterator[tuple[Index, dict[str, tuple[int, int]]]]:
    """The regions of an instruction; the threads of its warp are digits too."""
    known = INSTRUCTIONS[stmt.instruction]
    for param, (name, index) in zip(known.func.params, stmt.operands, strict=True):
        if name != buffer:
            continue
        lead = len(index) - param.type.rank
        lanes = {f"#{d}": (s, n) for p, d, s, n in known.lanes if p == param.name}
        whole = [Var(f"#{d - lead}") if f"#{d - lead}" in lanes else x for d, x in enumerate(index)]
        yield tuple(whole), digits | lanes


def _indices(stmt: Stmt, buffer: str) -> Iterator[Index]:
    match stmt:
        case Store(name, index, value):
            if name == buffer:
                yield index
            for expr in (*index, value):
                yield from (x.index for x in loads(expr) if x.buffer == buffer)
        case If(cond, _):
            yield from (x.index for x in loads(cond) if x.buffer == buffer)
        case _:
            pass


def _digits(func: Func, alloc: Alloc) -> Iterator[str]:
    """A register buffer: each index names the same digits at the same places."""
    buffer = alloc.buffer
    dims = thread_dims(func, buffer.name)
    for index, digits in _accesses(func, buffer.name):
        for dim, part in enumerate(index):
            reads = {v for v in digits if digits[v][1] > 1 and _reads(part, v)}
            if dim not in dims and reads:
                yield f"index {dim} of register buffer '{buffer.name}' mixes digits of threads"
            if dim in dims and not _is_digit(part, digits, dims[dim]):
                yield f"index {dim} of register buffer '{buffer.name}' is not always one digit"
        named = {part.name for part in index if isinstance(part, Var)}
        for var, (_, extent) in digits.items():
            if extent > 1 and var not in named:
                yield f"an index of register buffer '{buffer.name}' lacks the digit '{var}'"
    parts = prod(const_size(buffer.type.shape[d]) for d in dims) if buffer.type.is_static else 1
    if parts > prod(extent for _, extent in dims.values()):
        yield f"register buffer '{buffer.name}' has more parts than threads"


def _reads(expr: Expr, var: str) -> bool:
    return var in free_vars(expr)


def _is_digit(part: Expr, digits: dict[str, tuple[int, int]], digit: tuple[int, int]) -> bool:
    if isinstance(part, Const):
        return digit[1] == 1
    return isinstance(part, Var) and digits.get(part.name) == digit
