"""Indices from data on a GPU: launches look for those that lie outside of a tensor.

On a CPU the host looks at indices before a kernel reads them (`CheckRange`). Here it would have to
wait for them; so a launch that reads them anyway looks, too, each thread at some of them, and
reports what it found. No launch needs the answer: kernels stay within bounds by themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dlc.schedule.gpu import IndexCheck, Launches
from dlc.schedule.loop import Buffer, Func, names_in
from dlc.schedule.program import (
    Allocate,
    CallKernel,
    CheckRange,
    Copy,
    HostIf,
    HostLoop,
    HostStmt,
    Place,
    Program,
    Put,
    Release,
    Take,
    View,
    statements,
)
from dlc.schedule.verify_program import verify_program
from dlc.te.expr import ZERO, Expr
from dlc.te.simplify import canonical, surely_equal
from dlc.te.transform import free_vars
from dlc.te.types import TensorType


@dataclass(frozen=True, slots=True)
class Look:
    """What some call of a kernel is to look for: indices in one of its inputs."""

    indices: str
    negative: bool
    columns: int  # how many sizes there are, for an element of a row each


class Names:
    """Which names of a program stand for the same elements, all of them."""

    def __init__(self, program: Program) -> None:
        given = (*program.inputs, *program.constants, *program.outputs)
        self.types: dict[str, TensorType] = {b.name: b.type for b in given}
        self._wholes: dict[str, str] = {}
        self._roots: dict[str, str] = {}
        for stmt in statements(program.body):
            match stmt:
                case Place(buffer) | Allocate(buffer) | Take(buffer):
                    self.types[buffer.name] = buffer.type
                case View(buffer, source, offset):
                    self.types[buffer.name] = buffer.type
                    self._roots[buffer.name] = self.root(source)
                    old, new = self.types[source], buffer.type
                    same = old.dtype is new.dtype and surely_equal(old.elems, new.elems)
                    if same and offset == ZERO:
                        self._wholes[buffer.name] = self.whole(source)
                case _:
                    pass

    def root(self, name: str) -> str:
        """The buffer that owns the memory."""
        return self._roots.get(name, name)

    def whole(self, name: str) -> str:
        """One name for all that are the same elements."""
        return self._wholes.get(name, name)


def with_checks_at_readers(program: Program, on_host: Collection[str]) -> Program:
    """Move each check of indices to the next call on the GPU that reads them, right before it.

    Where there is none, which is rare, a copy reads them that nobody needs. `on_host` are the
    kernels that do not run on the GPU.
    """
    mover = _Mover(program, on_host)
    body = mover.block(program.body)
    if body == program.body:
        return program
    arena = (*program.arena, *mover.regions)
    result = replace(program, arena=arena, body=(*mover.places, *body))
    verify_program(result, when="after with_checks_at_readers")
    return result


class _Mover:
    def __init__(self, program: Program, on_host: Collection[str]) -> None:
        self.names = Names(program)
        self.kernels = {k.name: k for k in program.kernels}
        self.on_host = on_host
        self.given = {size.name for size in program.sizes}
        self.first_region = len(program.arena)
        self.places: list[Place] = []
        self.regions: list[Expr] = []
        self.taken = set(self.names.types) | {k.name for k in program.kernels} | self.given

    def block(self, body: Sequence[HostStmt]) -> tuple[HostStmt, ...]:
        result: list[HostStmt] = []
        waiting: dict[int, list[CheckRange]] = {}  # by the position of the reader
        for position, stmt in enumerate(body):
            match stmt:
                case CheckRange():
                    reader = self.reader(stmt, body, position)
                    if reader is None:
                        result += self.copied(stmt)
                    else:
                        waiting.setdefault(reader, []).append(stmt)
                case HostIf(cond, then, other):
                    result.append(HostIf(cond, self.block(then), self.block(other)))
                case HostLoop(var, extent, inner, go):
                    result.append(HostLoop(var, extent, self.block(inner), go))
                case _:
                    result += [*waiting.get(position, ()), stmt]
        return tuple(result)

    def reader(self, check: CheckRange, body: Sequence[HostStmt], position: int) -> int | None:
        """Where the indices are read next, as they are now."""
        root = self.names.root(check.buffer)
        for at in range(position + 1, len(body)):
            match body[at]:
                case CallKernel(name, _, buffers):
                    kernel = self.kernels[name]
                    found = checked_input(kernel, buffers, check, self.names)
                    if found is not None and name not in self.on_host:
                        return at
                    written = buffers[len(kernel.inputs) :]  # in place, too
                    if root in map(self.names.root, written):
                        return None
                case Copy(name) | Release(name) | Put(_, name):
                    if self.names.root(name) == root:
                        return None
                case HostIf() | HostLoop():
                    return None
                case _:
                    pass
        return None

    def copied(self, check: CheckRange) -> list[HostStmt]:
        """A check, and a copy for it to belong to."""
        type_ = self.names.types[check.buffer]
        name = "checked"
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        buffer = Buffer(name, type_)
        if free_vars(type_.elems) <= self.given:
            self.places.append(Place(buffer, self.first_region + len(self.regions)))
            self.regions.append(canonical(type_.elems * type_.dtype.size_bytes))
            return [check, Copy(name, check.buffer)]
        return [Allocate(buffer), check, Copy(name, check.buffer), Release(name)]


def checked_input(
    kernel: Func, buffers: Sequence[str], check: CheckRange, names: Names
) -> str | None:
    """The input of a kernel that a call fills with the indices of a check, and leaves as it is."""
    written = {i for _, i in kernel.in_place}
    whole = names.whole(check.buffer)
    for param, name in zip(kernel.inputs, buffers, strict=False):
        if names.whole(name) == whole and param.name not in written:
            return param.name
    return None


def looks_of(program: Program) -> Mapping[str, tuple[Look, ...]]:
    """By kernel: what its calls are to look for. Each check stands before a call."""
    names = Names(program)
    kernels = {k.name: k for k in program.kernels}
    found: dict[str, Counter[Look]] = {}
    for call, checks in _calls(program.body):
        looks = Counter(look_of(kernels[call.kernel], call, check, names) for check in checks)
        found[call.kernel] = found.get(call.kernel, Counter()) | looks  # the most of any call
    return {name: tuple(looks.elements()) for name, looks in found.items()}


def look_of(kernel: Func, call: CallKernel, check: CheckRange, names: Names) -> Look:
    """What a check before a call asks of the kernel."""
    indices = checked_input(kernel, call.buffers, check, names)
    assert indices is not None, f"'{check.buffer}' is checked before a call that reads it"
    return Look(indices, check.negative, len(check.sizes))


def _calls(body: Sequence[HostStmt]) -> Iterator[tuple[CallKernel, list[CheckRange]]]:
    """The calls, and the checks before each."""
    checks: list[CheckRange] = []
    for stmt in body:
        match stmt:
            case CheckRange():
                checks.append(stmt)
            case CallKernel():
                yield stmt, checks
                checks = []
            case HostIf(_, then, other):
                yield from _calls(then)
                yield from _calls(other)
            case HostLoop(_, _, inner):
                yield from _calls(inner)
            case _:
                pass
    assert not checks, "a call follows each check"


def with_index_checks(launches: Launches, kernel: Func, looks: Sequence[Look]) -> Launches:
    """The launches of a kernel, the first one that reads some indices looking at them.

    Limits and the number of the report are further sizes of the launch, which each call gives.
    """
    funcs = list(launches.funcs)
    checks: list[IndexCheck] = []
    for number, look in enumerate(looks):
        at = next((n for n, f in enumerate(funcs) if _reads(f, look.indices)), None)
        if at is None:  # what reads them was found to change nothing
            at = 0
            extra = next(b for b in kernel.inputs if b.name == look.indices)
            funcs[0] = replace(funcs[0], inputs=(*funcs[0].inputs, extra))
        func = funcs[at]
        limits = tuple(
            _unused(func, f"limit_{number + 1}_{column + 1}") for column in range(look.columns)
        )
        report = _unused(func, f"report_{number + 1}")
        funcs[at] = replace(func, sizes=(*func.sizes, *limits, report))
        checks.append(IndexCheck(func.name, look.indices, look.negative, limits, report))
    return replace(launches, funcs=tuple(funcs), checks=tuple(checks))


def _reads(func: Func, name: str) -> bool:
    return name in {b.name for b in func.inputs} - {i for _, i in func.in_place}


def _unused(func: Func, name: str) -> str:
    taken = names_in(func)
    while name in taken:
        name += "_"
    return name
