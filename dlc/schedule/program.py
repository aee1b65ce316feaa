"""Host program IR: what runs between kernels. It becomes native code like the kernels.

A program binds size variables, gives every buffer a place in one arena and calls kernels. What
is known only at run time (a size read from a buffer, a condition) has a statement of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import assert_never

from dlc.schedule.loop import Buffer, Func
from dlc.te.expr import ZERO, Expr, Load, ceil_div, maximum
from dlc.te.simplify import canonical
from dlc.te.transform import free_vars
from dlc.te.types import TensorType, const_size

ALIGNMENT = 64  # bytes, of every region and place: a cache line, and DLC_ALIGNMENT of dlc/abi.h


@dataclass(frozen=True, slots=True)
class SizeVar:
    """A size variable of the model, with the range of values it may take."""

    name: str
    minimum: int = 0
    maximum: int | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """`buffer` occupies a region of the arena from byte `offset` on, a multiple of 64."""

    buffer: Buffer
    region: int
    offset: Expr = ZERO


@dataclass(frozen=True, slots=True)
class View:
    """`buffer` is the memory of `source` from element `offset` on, under another shape."""

    buffer: Buffer
    source: str
    offset: Expr = ZERO


@dataclass(frozen=True, slots=True)
class CallKernel:
    """`kernel(sizes..., buffers...)`: values of its sizes, then one buffer for each parameter.

    `nodes` are the nodes of the model it stands for, for people; they are not part of the text.
    """

    kernel: str
    sizes: tuple[Expr, ...]
    buffers: tuple[str, ...]
    nodes: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy all elements of `source` to `target` (same number of elements, same type)."""

    target: str
    source: str


@dataclass(frozen=True, slots=True)
class CallRuntime:
    """Call a function of the runtime: its sizes, the buffers it reads, and the one it writes."""

    function: str
    sizes: tuple[Expr, ...]
    buffers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Check:
    """Fail with `message` unless `cond` holds."""

    cond: Expr
    message: str


@dataclass(frozen=True, slots=True)
class CheckRange:
    """Fail with `message` unless each integer in `buffer` is below its size and not below 0.

    There is one size, or one for each element of the last axis. Where `negative` is set, what is
    not below -size is fine, too.
    """

    buffer: str
    sizes: tuple[Expr, ...]
    negative: bool
    message: str


@dataclass(frozen=True, slots=True)
class Allocate:
    """`buffer` gets memory of its own, since its size was not known when the run began.

    `node` says which node of the model computes it, for people; it is not part of the text.
    """

    buffer: Buffer
    node: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Release:
    """Give up the memory of an allocated buffer."""

    buffer: str


@dataclass(frozen=True, slots=True)
class Provide:
    """Tell the caller the shape of output `name`, and write it where the caller wants it.

    An output whose shape reads sizes that the program binds has no memory before this. `node` as
    for `Allocate`.
    """

    name: str
    node: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class BindSize:
    """Bind a size variable to an expression, which may load integers from buffers.

    The run fails with `message` where the value is negative.
    """

    name: str
    value: Expr
    message: str


@dataclass(frozen=True, slots=True)
class WriteSize:
    """Write a size to an element of a buffer of type i64, for a `BindSize` elsewhere to load."""

    buffer: str
    index: int
    value: Expr


@dataclass(frozen=True, slots=True)
class Local:
    """`buffer` is a few elements in memory of the host, where kernels on a GPU do not see them."""

    buffer: Buffer


@dataclass(frozen=True, slots=True)
class Fetch:
    """Wait for the GPU, and let the host see `count` elements of a buffer as they are now.

    `first` is the first one's position among all elements. Loads read what was fetched last.
    """

    buffer: str
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Slot:
    """A place for memory that changes from step to step of a loop, or with a branch; empty."""

    name: str


@dataclass(frozen=True, slots=True)
class Put:
    """Let a slot own the memory of an allocated buffer; what the slot held is released."""

    slot: str
    buffer: str


@dataclass(frozen=True, slots=True)
class Take:
    """`buffer` is the memory that a slot holds now, until the slot is filled anew."""

    buffer: Buffer
    slot: str


@dataclass(frozen=True, slots=True)
class HostIf:
    """Run `then` where `cond` (an expression over sizes) holds, else `other`."""

    cond: Expr
    then: tuple[HostStmt, ...]
    other: tuple[HostStmt, ...] = ()


@dataclass(frozen=True, slots=True)
class HostLoop:
    """Run `body` for var = 0 ... extent - 1, in order, while `go` holds before each step."""

    var: str
    extent: Expr
    body: tuple[HostStmt, ...]
    go: Expr | None = None


HostStmt = (
    Place
    | Allocate
    | Release
    | Provide
    | View
    | CallKernel
    | CallRuntime
    | Copy
    | Check
    | CheckRange
    | BindSize
    | WriteSize
    | Local
    | Fetch
    | Slot
    | Put
    | Take
    | HostIf
    | HostLoop
)


@dataclass(frozen=True, slots=True)
class Program:
    """A whole model: its interface, kernels, constants (data travels beside) and body."""

    name: str
    sizes: tuple[SizeVar, ...]
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    constants: tuple[Buffer, ...]
    kernels: tuple[Func, ...]
    arena: tuple[Expr, ...]  # bytes of each region; regions lie one behind the other
    body: tuple[HostStmt, ...]

    @property
    def arena_bytes(self) -> Expr:
        """What all regions take together."""
        total: Expr = ZERO
        for size in self.arena:  # one by one: a sum of hundreds is too deep to be walked
            total = canonical(total + region_bytes(size))
        return total

    def is_provided(self, output: Buffer) -> bool:
        """Whether the shape of an output is known only during the run."""
        known = {size.name for size in self.sizes}
        return any(free_vars(size) - known for size in output.type.shape)

    def __str__(self) -> str:
        from dlc.schedule.program_text import print_program  # the printer imports this module

        return print_program(self)


def region_bytes(size: Expr) -> Expr:
    """What a region of the arena takes: whole cache lines.

    A size such as `h - 2` may be below zero, where the sizes are refused anyway.
    """
    return maximum(ceil_div(size, ALIGNMENT) * ALIGNMENT, ZERO)


def element_position(load: Load, type_: TensorType) -> int:
    """Where an element that the host loads stands among all elements of its buffer."""
    flat = 0
    for at, size in zip(load.index, type_.shape, strict=True):
        flat = flat * const_size(size) + const_size(at)
    return flat


def statements(body: tuple[HostStmt, ...]) -> Iterator[HostStmt]:
    """All statements, those inside of branches and loops behind the one they are in."""
    for stmt in body:
        yield stmt
        match stmt:
            case HostIf(_, then, other):
                yield from statements(then)
                yield from statements(other)
            case HostLoop(_, _, inner):
                yield from statements(inner)
            case _:
                pass


def with_kernel_names(stmt: HostStmt, names: Mapping[str, str]) -> HostStmt:
    """A statement that calls its kernels by other names."""

    def renamed(body: tuple[HostStmt, ...]) -> tuple[HostStmt, ...]:
        return tuple(with_kernel_names(s, names) for s in body)

    match stmt:
        case CallKernel(kernel=name):
            return replace(stmt, kernel=names[name])
        case HostLoop(body=body):
            return replace(stmt, body=renamed(body))
        case HostIf(then=then, other=other):
            return replace(stmt, then=renamed(then), other=renamed(other))
        case _:
            return stmt


def steps(body: tuple[HostStmt, ...]) -> Iterator[CallKernel | Copy]:
    """The statements that do work, in the order of the text; a step's number is its position."""
    for stmt in body:
        match stmt:
            case CallKernel() | Copy():
                yield stmt
            case HostIf(_, then, other):
                yield from steps(then)
                yield from steps(other)
            case HostLoop(_, _, inner, _):
                yield from steps(inner)
            case Place() | Allocate() | Release() | Provide() | View() | Slot() | Put() | Take():
                pass
            case Check() | CheckRange() | BindSize() | WriteSize() | CallRuntime():
                pass
            case Local() | Fetch():
                pass
            case _:
                assert_never(stmt)
