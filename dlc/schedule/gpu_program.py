"""From a host program to one whose kernels are launches on a GPU.

Every buffer lives in the GPU's memory. A kernel that became several launches is called as often,
with its scratch memory behind the arena; copies become kernels; constants become inputs, behind
those of the model, which the runtime fills once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dlc.core.types import DType
from dlc.schedule.gpu import Launches
from dlc.schedule.loop import Buffer, For, Func, LoopKind, Store
from dlc.schedule.program import (
    ALIGNMENT,
    Allocate,
    BindSize,
    CallKernel,
    CallRuntime,
    Check,
    CheckRange,
    Copy,
    HostIf,
    HostLoop,
    HostStmt,
    Place,
    Program,
    Provide,
    Release,
    View,
    statements,
)
from dlc.schedule.verify_program import verify_program
from dlc.te.expr import ZERO, Const, Expr, Load, Var, index
from dlc.te.simplify import canonical, surely_divides
from dlc.te.transform import loads, substitute
from dlc.te.types import TensorType, const_size


def why_not_on_gpu(program: Program) -> str:
    """Why the host cannot call the kernels of a program without seeing their data, or ""."""
    for stmt in statements(program.body):
        match stmt:
            case Allocate() | Release() | Provide():
                return "the size of a tensor depends on data"
            case BindSize(_, value, _) if loads(value):
                return "a size depends on data"
            case Check(cond) | HostIf(cond) if loads(cond):
                return "a check or a branch depends on data"
            case CallRuntime():
                return "texts are handled by the host"
            case _:
                pass
    return ""


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


def with_copy_kernels(program: Program) -> Program:
    """Turn copies into calls of kernels that copy element by element."""
    copies = _Copies(program)
    body = copies.block(program.body)
    if not copies.kernels:
        return program
    kernels = (*program.kernels, *copies.kernels.values())
    result = replace(program, kernels=kernels, body=body)
    verify_program(result, when="after with_copy_kernels")
    return result


def launch_program(program: Program, launches: Mapping[str, Launches]) -> Program:
    """The program that calls launches instead of kernels; its constants are its last inputs.

    Args:
        program: a program without copies.
        launches: what each of its kernels became, under names of their own.
    """
    calls = _Calls(program, launches)
    body = calls.block(program.body)
    result = replace(
        program,
        inputs=(*program.inputs, *program.constants),
        constants=(),
        kernels=tuple(f for one in launches.values() for f in one.funcs),
        arena=calls.arena,
        body=body,
    )
    verify_program(result, when="after launch_program")
    return result


class _Rewriter:
    """Replaces statements of a program, in order, in all its bodies."""

    def block(self, body: tuple[HostStmt, ...]) -> tuple[HostStmt, ...]:
        return tuple(new for stmt in body for new in self.stmt(stmt))

    def stmt(self, stmt: HostStmt) -> list[HostStmt]:
        match stmt:
            case HostIf(cond, then, other):
                return [HostIf(cond, self.block(then), self.block(other))]
            case HostLoop(var, extent, body):
                return [HostLoop(var, extent, self.block(body))]
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
        self.count = 0

    def visit(self, stmt: HostStmt) -> list[HostStmt]:
        match stmt:
            case Place(buffer) | View(buffer) | Allocate(buffer):
                self.types[buffer.name] = buffer.type
                return [stmt]
            case Copy(target, source):
                return self.copy(target, source)
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
        kernel = self.kernel(self.types[source].dtype)
        return [*found, CallKernel(kernel.name, (elems,), tuple(rows))]

    def kernel(self, dtype: DType) -> Func:
        name = f"copy_{dtype}"
        while name in self.taken:
            name += "_"
        if name not in self.kernels:
            size = Var("n")
            source, target = (Buffer(b, TensorType((size,), dtype)) for b in ("x", "y"))
            at = Var("i")
            store = Store("y", (at,), Load("x", (at,), dtype))
            body = For("i", size, LoopKind.SERIAL, store)
            self.kernels[name] = Func(name, ("n",), (source,), (target,), body)
        return self.kernels[name]


class _Calls(_Rewriter):
    """The first region of the arena counts blocks that arrived, at a place of its own for each
    call: it begins where the arena begins, whatever the sizes are, so what a run leaves there, 0,
    is what the next one finds. Scratch memory of constant size lies in one more region, which all
    calls share; each buffer of symbolic size gets a region of its own.
    """

    def __init__(self, program: Program, launches: Mapping[str, Launches]) -> None:
        self.launches = launches
        self.kernels = {k.name: k for k in program.kernels}
        self.shift = int(any(one.arrivals for one in launches.values()))
        self.arrival_bytes = 0
        self.common = self.shift + len(program.arena)
        self.common_bytes = 0
        self.regions: list[Expr] = [*[ZERO] * self.shift, *program.arena, ZERO]
        self.count = 0

    @property
    def arena(self) -> tuple[Expr, ...]:
        """The regions of the program, and before and behind it those of its launches."""
        self.regions[self.common] = index(self.common_bytes)
        if self.shift:
            self.regions[0] = index(self.arrival_bytes)
        return tuple(self.regions)

    def visit(self, stmt: HostStmt) -> list[HostStmt]:
        if isinstance(stmt, CheckRange):  # the host does not see them; kernels stay within bounds
            return []
        if isinstance(stmt, Place):
            return [replace(stmt, region=stmt.region + self.shift)]
        if not isinstance(stmt, CallKernel):
            return [stmt]
        kernel, launches = self.kernels[stmt.kernel], self.launches[stmt.kernel]
        env = dict(zip(kernel.sizes, stmt.sizes, strict=True))
        names = dict(zip((b.name for b in kernel.params), stmt.buffers, strict=True))
        found: list[HostStmt] = []
        used = 0
        for buffer in launches.arrivals:
            self.count += 1
            made = replace(buffer, name=f"scratch_{self.count}_{buffer.name}")
            names[buffer.name] = made.name
            found.append(Place(made, 0, index(self.arrival_bytes)))
            counts = const_size(buffer.type.elems) * buffer.type.dtype.size_bytes
            self.arrival_bytes += -(-counts // ALIGNMENT) * ALIGNMENT
        for buffer in launches.scratch:
            self.count += 1
            shape = tuple(canonical(substitute(n, env)) for n in buffer.type.shape)
            made = Buffer(f"scratch_{self.count}_{buffer.name}", replace(buffer.type, shape=shape))
            names[buffer.name] = made.name
            size = canonical(made.type.elems * made.type.dtype.size_bytes)
            if isinstance(size, Const):
                found.append(Place(made, self.common, index(used)))
                used += -(-int(size.value) // ALIGNMENT) * ALIGNMENT
            else:
                found.append(Place(made, len(self.regions)))
                self.regions.append(size)
        self.common_bytes = max(self.common_bytes, used)
        for func in launches.funcs:
            buffers = tuple(names[b.name] for b in func.params)
            sizes = tuple(env[s] for s in func.sizes)
            found.append(CallKernel(func.name, sizes, buffers, stmt.nodes))
        return found
