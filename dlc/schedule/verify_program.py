"""The invariants of host programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import assert_never

from dlc.core.errors import VerifyError
from dlc.core.types import INDEX, DType
from dlc.schedule.loop import Buffer, Func
from dlc.schedule.program import (
    ALIGNMENT,
    Allocate,
    BindSize,
    CallKernel,
    CallRuntime,
    Check,
    CheckRange,
    Copy,
    Fetch,
    HostIf,
    HostLoop,
    HostStmt,
    Local,
    Place,
    Program,
    Provide,
    Put,
    Release,
    Slot,
    Take,
    View,
    WriteSize,
)
from dlc.schedule.runtime_function import FUNCTIONS
from dlc.schedule.verify_sharing import sharing_problems
from dlc.te.expr import Const, Expr, Load
from dlc.te.simplify import surely_at_most, surely_differ, surely_less
from dlc.te.transform import free_vars, loads, substitute
from dlc.te.types import TensorType

# Words of the text that are called: a call of a kernel of this name could not be read back.
WORDS = frozenset(
    {
        "allocate",
        "arena",
        "bind",
        "check",
        "const",
        "copy",
        "fetch",
        "local",
        "place",
        "provide",
        "put",
        "release",
        "runtime",
        "size",
        "slot",
        "take",
        "view",
        "within",
        "write",
    }
)


def verify_program(program: Program, *, when: str) -> None:
    """Raise `VerifyError` listing every broken invariant.

    - No kernel is called as a word of the text (`copy`, `check`, ...).
    - Names of sizes, buffers and kernels are bound once, before use, on every path; what is bound
      in a branch or in a loop is not used outside of it.
    - A call passes the sizes and buffers that its kernel declares, of fitting types; so does a call
      of a function of the runtime.
    - Nothing writes to an input or a constant of the program.
    - A view is not surely larger than its source; a copy is between equal element types.
    - Places are multiples of 64 where that is known, and end within their region of the arena.
    - Two buffers that live at the same time share no byte, whatever the sizes.
    - An output whose shape reads sizes that the program binds is provided once, before it is used.
    - Only allocated buffers are released, and nothing uses their memory from then on.
    - Kernels and views do not use what lies in memory of the host; the host fetches integers and
      bools inside of a buffer that does not.
    - Elements are loaded from integers and bools, at constant positions inside of their buffers.
    """
    checker = _Checker(program)
    if problems := [*checker.problems(), *sharing_problems(program)]:
        unit = f"program '{program.name}'"
        raise VerifyError(unit=unit, when=when, problems="; ".join(dict.fromkeys(problems)))


class _Checker:
    """One walk over a program with what is defined so far."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.kernels: dict[str, Func] = {k.name: k for k in program.kernels}
        self.names: set[str] = set()  # every name ever bound
        self.sizes: set[str] = set()
        self.buffers: dict[str, TensorType] = {}
        fixed = (*program.inputs, *program.constants)
        self.read_only = {b.name for b in fixed}
        self.local: set[str] = set()
        self.late = {b.name: b for b in program.outputs if program.is_provided(b)}
        self.allocated: set[str] = set()
        self.slots: set[str] = set()
        self.stale: set[str] = set()  # buffers whose memory is gone
        self.roots: dict[str, str] = {}  # view -> the buffer that owns its memory

    def problems(self) -> Iterator[str]:
        program = self.program
        for kernel in program.kernels:
            yield from self.bind(kernel.name)
            if kernel.name in WORDS:
                yield f"'{kernel.name}' cannot be the name of a kernel"
        for size in program.sizes:
            yield from self.bind(size.name)
            self.sizes.add(size.name)
            if size.minimum < 0 or (size.maximum is not None and size.maximum < size.minimum):
                yield f"size '{size.name}' has no values"
        for b in (*program.inputs, *program.constants, *program.outputs):
            if b.name not in self.late:
                yield from self.define(b)
        for number, extent in enumerate(program.arena):
            yield from self.index(extent, f"the size of region {number}")
        yield from self.stmts(program.body)
        for name in self.late:
            if name not in self.buffers:
                yield f"output '{name}' is not provided"

    def bind(self, name: str) -> Iterator[str]:
        if name in self.names:
            yield f"the name '{name}' is bound twice"
        self.names.add(name)

    def define(self, buffer: Buffer) -> Iterator[str]:
        yield from self.bind(buffer.name)
        for n in buffer.type.shape:
            yield from self.index(n, f"the shape of '{buffer.name}'")
        self.buffers[buffer.name] = buffer.type

    def index(self, expr: Expr, what: str) -> Iterator[str]:
        if expr.dtype is not INDEX:
            yield f"{what} is no index"
        for name in sorted(free_vars(expr) - self.sizes):
            yield f"{what} reads '{name}', which is no size defined before"
        for load in loads(expr):
            yield from self.load(load, what)

    def load(self, load: Load, what: str) -> Iterator[str]:
        type_ = self.buffers.get(load.buffer)
        if type_ is None:
            yield f"buffer '{load.buffer}' is not defined"
        elif type_.dtype is not load.dtype or not (load.dtype.is_int or load.dtype is DType.BOOL):
            yield f"{what} loads {load.dtype} from '{load.buffer}: {type_}'"
        elif len(load.index) != type_.rank or not all(
            isinstance(at, Const) and at.value >= 0 and not surely_at_most(n, at)
            for at, n in zip(load.index, type_.shape, strict=True)
        ):
            yield f"{what} loads '{load}', which lies outside of {type_}"

    def stmts(self, stmts: Iterable[HostStmt]) -> Iterator[str]:
        for stmt in stmts:
            yield from self.stmt(stmt)

    def scoped(self, stmts: Iterable[HostStmt]) -> Iterator[str]:
        sizes, buffers, read_only = set(self.sizes), dict(self.buffers), set(self.read_only)
        allocated, self.allocated = self.allocated, set()  # what is outside stays
        yield from self.stmts(stmts)
        self.sizes, self.buffers, self.read_only = sizes, buffers, read_only
        self.allocated = allocated
        for name in self.stale & self.buffers.keys():
            del self.buffers[name]

    def stmt(self, stmt: HostStmt) -> Iterator[str]:  # noqa: C901 - a case per statement
        match stmt:
            case Place():
                yield from self.place(stmt)
            case View(buffer, source, offset):
                yield from self.view(buffer, source, offset)
            case CallKernel():
                yield from self.call(stmt)
            case CallRuntime():
                yield from self.call_runtime(stmt)
            case Copy(target, source):
                yield from self.copy(target, source)
            case Check(cond, _):
                yield from self.cond(cond)
            case CheckRange():
                yield from self.range(stmt)
            case Allocate(buffer):
                yield from self.define(buffer)
                self.allocated.add(buffer.name)
            case Release(name):
                yield from self.release(name)
            case WriteSize(name, index, value):
                yield from self.index(value, f"what is written to '{name}'")
                yield from self.load(Load(name, (Const(index, INDEX),), DType.I64), "a write")
                if name in self.read_only:
                    yield f"a write to '{name}', an input or a constant"
            case Local(buffer):
                yield from self.define(buffer)
                self.local.add(buffer.name)
            case Fetch():
                yield from self.fetch(stmt)
            case Slot(name):
                yield from self.bind(name)
                self.slots.add(name)
            case Put(slot, name):
                yield from self.known_slot(slot)
                yield from self.release(name)
                self.allocated.discard(name)
                self.forget(slot)
            case Take(buffer, slot):
                yield from self.known_slot(slot)
                self.roots[buffer.name] = slot
                yield from self.define(buffer)
            case Provide(name):
                if name not in self.late or name in self.buffers:
                    yield f"'{name}' is no output that may be provided here"
                else:
                    yield from self.define(self.late[name])
            case BindSize(name, value, _):
                yield from self.index(value, f"size '{name}'")
                yield from self.bind(name)
                self.sizes.add(name)
            case HostIf(cond, then, other):
                yield from self.cond(cond)
                yield from self.scoped(then)
                yield from self.scoped(other)
            case HostLoop(var, extent, body, go):
                yield from self.index(extent, f"the extent of loop '{var}'")
                if go is not None:
                    yield from self.cond(go)
                yield from self.bind(var)
                outer = set(self.sizes)
                self.sizes.add(var)
                yield from self.scoped(body)
                self.sizes = outer
            case _:
                assert_never(stmt)

    def cond(self, cond: Expr) -> Iterator[str]:
        if cond.dtype is not DType.BOOL:
            yield f"a condition of type {cond.dtype}"
        for name in sorted(free_vars(cond) - self.sizes):
            yield f"a condition reads '{name}', which is no size defined before"
        for load in loads(cond):
            yield from self.load(load, "a condition")

    def place(self, stmt: Place) -> Iterator[str]:
        buffer, offset = stmt.buffer, stmt.offset
        if not 0 <= stmt.region < len(self.program.arena):
            yield f"the arena has no region {stmt.region}"
        yield from self.index(offset, f"the offset of '{buffer.name}'")
        if isinstance(offset, Const) and offset.value % ALIGNMENT:
            yield f"the offset of '{buffer.name}' is no multiple of {ALIGNMENT}"
        yield from self.define(buffer)

    def view(self, buffer: Buffer, source: str, offset: Expr) -> Iterator[str]:
        yield from self.index(offset, f"the offset of '{buffer.name}'")
        if source in self.buffers:
            have = self.buffers[source].elems * self.buffers[source].dtype.size_bytes
            if surely_less(have, offset * buffer.type.dtype.size_bytes + _bytes(buffer.type)):
                yield f"view '{buffer.name}' is larger than '{source}'"
        else:
            yield f"buffer '{source}' is not defined"
        if source in self.local:
            yield f"view '{buffer.name}' is of '{source}', which lies on the host"
        if source in self.read_only:
            self.read_only.add(buffer.name)
        self.roots[buffer.name] = self.roots.get(source, source)
        yield from self.define(buffer)

    def fetch(self, stmt: Fetch) -> Iterator[str]:
        type_ = self.buffers.get(stmt.buffer)
        if type_ is None:
            yield f"buffer '{stmt.buffer}' is not defined"
            return
        end = Const(stmt.first + stmt.count, INDEX)
        kind = type_.dtype
        if stmt.buffer in self.local or not (kind.is_int or kind is DType.BOOL):
            yield f"'{stmt.buffer}: {type_}' is fetched"
        if stmt.first < 0 or stmt.count < 1 or surely_less(type_.elems, end):
            yield f"elements outside of '{stmt.buffer}: {type_}' are fetched"

    def release(self, name: str) -> Iterator[str]:
        if name not in self.allocated or name not in self.buffers:
            yield f"'{name}' is released, but is not allocated"
            return
        self.forget(name)

    def known_slot(self, name: str) -> Iterator[str]:
        if name not in self.slots:
            yield f"there is no slot '{name}'"

    def forget(self, root: str) -> None:
        """Nothing may use the memory of this buffer or slot from now on."""
        for other in [b for b in self.buffers if self.roots.get(b, b) == root]:
            del self.buffers[other]
            self.stale.add(other)

    def call(self, stmt: CallKernel) -> Iterator[str]:
        kernel = self.kernels.get(stmt.kernel)
        if kernel is None:
            yield f"there is no kernel '{stmt.kernel}'"
            return
        if len(stmt.sizes) != len(kernel.sizes) or len(stmt.buffers) != len(kernel.params):
            yield (
                f"kernel '{kernel.name}' takes {len(kernel.sizes)} sizes and "
                f"{len(kernel.params)} buffers"
            )
            return
        for size in stmt.sizes:
            yield from self.index(size, f"a size passed to '{kernel.name}'")
        env = dict(zip(kernel.sizes, stmt.sizes, strict=True))
        outputs = {b.name for b in kernel.outputs}
        for param, name in zip(kernel.params, stmt.buffers, strict=True):
            yield from self.argument(kernel.name, param, name, env)
            if param.name in outputs and name in self.read_only:
                yield f"kernel '{kernel.name}' writes '{name}', an input or a constant"

    def range(self, stmt: CheckRange) -> Iterator[str]:
        type_ = self.buffers.get(stmt.buffer)
        if type_ is None:
            yield f"buffer '{stmt.buffer}' is not defined"
        elif type_.dtype not in (DType.I32, DType.I64):
            yield f"indices in '{stmt.buffer}: {type_}'"
        elif len(stmt.sizes) != 1 and type_.shape[-1:] != (Const(len(stmt.sizes), INDEX),):
            yield f"{len(stmt.sizes)} sizes for '{stmt.buffer}: {type_}'"
        for size in stmt.sizes:
            yield from self.index(size, f"a size that '{stmt.buffer}' is checked against")

    def call_runtime(self, stmt: CallRuntime) -> Iterator[str]:
        function = FUNCTIONS.get(stmt.function)
        if function is None:
            yield f"the runtime has no function '{stmt.function}'"
            return
        wanted = (*function.inputs, function.output)
        found = tuple(self.buffers[b].dtype for b in stmt.buffers if b in self.buffers)
        if len(stmt.sizes) != function.sizes or found != wanted:
            yield f"'{stmt.function}' takes {function.sizes} sizes and buffers of {wanted}"
        for size in stmt.sizes:
            yield from self.index(size, f"a size passed to '{stmt.function}'")
        if stmt.buffers[-1:] and stmt.buffers[-1] in self.read_only:
            yield f"'{stmt.function}' writes '{stmt.buffers[-1]}', an input or a constant"

    def argument(
        self, kernel: str, param: Buffer, name: str, env: dict[str, Expr]
    ) -> Iterator[str]:
        type_ = self.buffers.get(name)
        if type_ is None:
            yield f"buffer '{name}' is not defined"
            return
        if name in self.local:
            yield f"kernel '{kernel}' takes '{name}', which lies on the host"
        shape = [substitute(n, env) for n in param.type.shape]
        fits = type_.dtype is param.type.dtype and type_.rank == len(shape)
        if not fits or any(map(surely_differ, type_.shape, shape)):
            yield f"kernel '{kernel}' takes {param.type} as '{param.name}', not {type_}"

    def copy(self, target: str, source: str) -> Iterator[str]:
        for name in (target, source):
            if name not in self.buffers:
                yield f"buffer '{name}' is not defined"
                return
        a, b = self.buffers[target], self.buffers[source]
        if a.dtype is not b.dtype or surely_differ(a.elems, b.elems):
            yield f"a copy of {b} to {a}"
        if target in self.read_only:
            yield f"a copy to '{target}', an input or a constant"
        for name in self.local & {target, source}:
            yield f"a copy of '{name}', which lies on the host"


def _bytes(type_: TensorType) -> Expr:
    return type_.elems * type_.dtype.size_bytes
