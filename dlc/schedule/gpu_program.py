"""From a host program to one whose kernels are launches on a GPU.

Every buffer lives in the GPU's memory. A kernel that became several launches is called as often,
with its scratch memory behind the arena; copies become kernels, and so do writes of sizes that
kernels read; constants become inputs, behind those of the model, which the runtime fills once. What
the host must know of data it fetches (`host_reads.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dlc.core.types import DType
from dlc.schedule.gpu import IndexCheck, Launches
from dlc.schedule.host_reads import verify_fetches, with_fetches, written_for_host
from dlc.schedule.index_checks import Look, Names, look_of
from dlc.schedule.launch_memory import place_buffers
from dlc.schedule.loop import Buffer, For, Func, LoopKind, Store
from dlc.schedule.program import (
    ALIGNMENT,
    Allocate,
    CallKernel,
    CallRuntime,
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
    Release,
    Slot,
    Take,
    View,
    WriteSize,
    statements,
)
from dlc.schedule.verify_program import verify_program
from dlc.te.expr import Expr, Load, Var, cast, index
from dlc.te.simplify import canonical, surely_divides
from dlc.te.transform import free_vars, substitute
from dlc.te.types import TensorType, const_size


def why_not_on_gpu(program: Program) -> str:
    """Why a program's tensors cannot live in the memory of a GPU, or ""."""
    if any(isinstance(stmt, CallRuntime) for stmt in statements(program.body)):
        return "texts are handled by the host"
    return ""


def waits_for_data(program: Program) -> bool:
    """Whether a program of launches sees data or finds out sizes in some run, which is no graph."""
    kinds = (Fetch, Allocate, Provide, Slot)
    return any(isinstance(stmt, kinds) for stmt in statements(program.body))


def misaligned(program: Program, size_bytes: int) -> Mapping[str, frozenset[str]]:
    """By kernel: its parameters that may begin at no multiple of so many bytes.

    Buffers of their own are aligned; a view need not be.
    """
    kernels = {k.name: k for k in program.kernels}
    views: set[str] = set()
    found: dict[str, set[str]] = {name: set() for name in kernels}
    for stmt in statements(program.body):
        match stmt:
            case View(buffer, source, offset):
                whole = surely_divides(size_bytes, offset * buffer.type.dtype.size_bytes)
                if source in views or not whole:
                    views.add(buffer.name)
            case CallKernel(name, _, buffers):
                params = zip(kernels[name].params, buffers, strict=True)
                found[name] |= {p.name for p, b in params if b in views}
            case _:
                pass
    return {name: frozenset(names) for name, names in found.items()}


def constant_params(program: Program) -> Mapping[str, frozenset[str]]:
    """By kernel: its parameters that are constants of the model in each call, or views of them."""
    constants = {b.name for b in program.constants}
    kernels = {k.name: k for k in program.kernels}
    found: dict[str, set[str]] = {}
    for stmt in statements(program.body):
        match stmt:
            case View(buffer, source) if source in constants:
                constants.add(buffer.name)
            case CallKernel(name, _, buffers):
                params = zip(kernels[name].params, buffers, strict=True)
                here = {p.name for p, b in params if b in constants}
                found[name] = found.get(name, here) & here
            case _:
                pass
    return {name: frozenset(found.get(name, ())) for name in kernels}


def with_copy_kernels(program: Program) -> Program:
    """Turn copies into calls of kernels that copy element by element, and writes into calls, too.

    A buffer that only the host reads stays with the host.
    """
    copies = _Copies(program)
    body = copies.block(program.body)
    if body == program.body:
        return program
    kernels = (*program.kernels, *copies.kernels.values())
    result = replace(program, kernels=kernels, body=body)
    verify_program(result, when="after with_copy_kernels")
    return result


def launch_program(program: Program, launches: Mapping[str, Launches]) -> Program:
    """The program that calls launches instead of kernels; its constants are its last inputs.

    Args:
        program: a program without copies, with each check of indices before a call that reads them.
        launches: what each of its kernels became, under names of their own.
    """
    calls = _Calls(program, launches)
    body = with_fetches(program, calls.block(program.body))
    kernels = {f.name: f for one in launches.values() for f in one.funcs}
    places, regions = place_buffers(body, calls.owned, kernels)
    if calls.counts:  # the first region, whatever the sizes of the others are
        places = (*calls.counts, *(replace(p, region=p.region + 1) for p in places))
        regions = (index(calls.count_bytes), *regions)
    result = replace(
        program,
        inputs=(*program.inputs, *program.constants),
        constants=(),
        kernels=tuple(kernels.values()),
        arena=regions,
        body=(*places, *body),
    )
    verify_program(result, when="after launch_program")
    verify_fetches(result, when="after launch_program")
    return result


class _Rewriter:
    """Replaces statements of a program, in order, in all its bodies."""

    def block(self, body: tuple[HostStmt, ...]) -> tuple[HostStmt, ...]:
        return tuple(new for stmt in body for new in self.stmt(stmt))

    def stmt(self, stmt: HostStmt) -> list[HostStmt]:
        match stmt:
            case HostIf(cond, then, other):
                return [HostIf(cond, self.block(then), self.block(other))]
            case HostLoop(var, extent, body, go):
                return [HostLoop(var, extent, self.block(body), go)]
            case _:
                return self.visit(stmt)

    def visit(self, stmt: HostStmt) -> list[HostStmt]:
        raise NotImplementedError


class _Copies(_Rewriter):
    def __init__(self, program: Program) -> None:
        self.kernels: dict[str, Func] = {}
        self.types = {b.name: b.type for b in (*program.inputs, *program.outputs)}
        self.types |= {b.name: b.type for b in program.constants}
        self.taken = {k.name for k in program.kernels}
        self.on_host = written_for_host(program)
        self.count = 0

    def visit(self, stmt: HostStmt) -> list[HostStmt]:
        match stmt:
            case Place(buffer) if buffer.name in self.on_host:
                return [Local(buffer)]
            case Place(buffer) | View(buffer) | Allocate(buffer) | Take(buffer):
                self.types[buffer.name] = buffer.type
                return [stmt]
            case Copy(target, source):
                return self.copy(target, source)
            case WriteSize(buffer, at, value) if buffer not in self.on_host:
                return self.write(buffer, at, value)
            case _:
                return [stmt]

    def copy(self, target: str, source: str) -> list[HostStmt]:
        """Both buffers as elements in a row, and the call."""
        self.count += 1
        found: list[HostStmt] = []
        rows: list[str] = []
        elems = canonical(self.types[source].elems)
        for name, role in ((source, "from"), (target, "to")):
            row = f"copy_{self.count}_{role}"
            type_ = TensorType((elems,), self.types[name].dtype)
            found.append(View(Buffer(row, type_), name))
            rows.append(row)
        kernel = self.kernel(_copy_kernel(self.types[source].dtype))
        return [*found, CallKernel(kernel, (elems,), tuple(rows))]

    def write(self, buffer: str, at: int, value: Expr) -> list[HostStmt]:
        """The element as a buffer, and the call that stores the size."""
        self.count += 1
        element = f"write_{self.count}_to"
        view = View(Buffer(element, TensorType((1,), DType.I64)), buffer, index(at))
        return [view, CallKernel(self.kernel(_write_kernel()), (value,), (element,))]

    def kernel(self, func: Func) -> str:
        """The name under which a kernel is part of the program."""
        name = func.name
        while name in self.taken:
            name += "_"
        self.kernels.setdefault(name, replace(func, name=name))
        return name


def _is_for(check: IndexCheck, look: Look) -> bool:
    return look == Look(check.indices, check.negative, len(check.limits))


def _copy_kernel(dtype: DType) -> Func:
    size, at = Var("n"), Var("i")
    source, target = (Buffer(b, TensorType((size,), dtype)) for b in ("x", "y"))
    store = Store("y", (at,), Load("x", (at,), dtype))
    body = For("i", size, LoopKind.SERIAL, store)
    return Func(f"copy_{dtype}", ("n",), (source,), (target,), body)


def _write_kernel() -> Func:
    target = Buffer("y", TensorType((1,), DType.I64))
    store = Store("y", (Var("i"),), cast(DType.I64, Var("n")))
    body = For("i", index(1), LoopKind.SERIAL, store)
    return Func("write_size", ("n",), (), (target,), body)


class _Calls(_Rewriter):
    """Takes the places out, and collects what needs one.

    Counts of blocks that arrived have a place of their own for each call, in a region that begins
    where the arena begins, whatever the sizes are: what a run leaves there, 0, is what the next one
    finds.
    """

    def __init__(self, program: Program, launches: Mapping[str, Launches]) -> None:
        self.launches = launches
        self.kernels = {k.name: k for k in program.kernels}
        self.sizes = {size.name for size in program.sizes}
        self.owned: list[Buffer] = []
        self.made = 0
        self.counts: list[Place] = []
        self.count_bytes = 0
        self.names = Names(program)
        self.checks = 0  # so far
        self.waiting: list[CheckRange] = []  # for the call that they belong to

    def visit(self, stmt: HostStmt) -> list[HostStmt]:
        match stmt:
            case CheckRange():
                self.waiting.append(stmt)
                return []
            case Place(buffer):
                self.owned.append(buffer)
                return []
            case CallKernel():
                return self.call(stmt)
            case _:
                return [stmt]

    def call(self, stmt: CallKernel) -> list[HostStmt]:
        """The launches of a kernel. Scratch memory of a size from data lives for these alone."""
        kernel, launches = self.kernels[stmt.kernel], self.launches[stmt.kernel]
        env = dict(zip(kernel.sizes, stmt.sizes, strict=True)) | self.limits(stmt, launches)
        names = dict(zip((b.name for b in kernel.params), stmt.buffers, strict=True))
        for buffer in launches.arrivals:
            made = names[buffer.name] = self.scratch_name(buffer)
            self.counts.append(Place(replace(buffer, name=made), 0, index(self.count_bytes)))
            counts = const_size(buffer.type.elems) * buffer.type.dtype.size_bytes
            self.count_bytes += -(-counts // ALIGNMENT) * ALIGNMENT
        own: list[Buffer] = []
        for buffer in launches.scratch:
            shape = tuple(canonical(substitute(n, env)) for n in buffer.type.shape)
            made = names[buffer.name] = self.scratch_name(buffer)
            known = all(free_vars(n) <= self.sizes for n in shape)
            (self.owned if known else own).append(
                Buffer(made, TensorType(shape, buffer.type.dtype))
            )
        calls = [
            CallKernel(
                func.name,
                tuple(env[s] for s in func.sizes),
                tuple(names[b.name] for b in func.params),
                stmt.nodes,
            )
            for func in launches.funcs
        ]
        return [*map(Allocate, own), *calls, *(Release(b.name) for b in own)]

    def limits(self, stmt: CallKernel, launches: Launches) -> dict[str, Expr]:
        """What the launches of a call are given for their checks, in the order of the program."""
        kernel, asked = self.kernels[stmt.kernel], dict.fromkeys(launches.checks)
        env: dict[str, Expr] = {}
        for check in self.waiting:
            look = look_of(kernel, stmt, check, self.names)
            own = next(c for c in asked if _is_for(c, look))
            del asked[own]
            env |= dict(zip(own.limits, check.sizes, strict=True))
            env[own.report] = index(self.checks)
            self.checks += 1
        self.waiting = []
        for other in asked:  # of other calls
            env |= dict.fromkeys((*other.limits, other.report), index(-1))
        return env

    def scratch_name(self, buffer: Buffer) -> str:
        self.made += 1
        return f"scratch_{self.made}_{buffer.name}"
