"""One function of a host program as LLVM IR text: `run`, one that reports its steps, or `plan`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import assert_never

from dlc.codegen.llvm.host_expr import HostBuilder
from dlc.codegen.llvm.host_range import emit_check_range
from dlc.codegen.llvm.host_report import Reports
from dlc.codegen.weight_offsets import WEIGHTS_SYMBOL, weight_offsets
from dlc.core.types import INDEX, DType
from dlc.schedule.demand import Demand
from dlc.schedule.loop import Buffer
from dlc.schedule.program import (
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
    element_position,
    region_bytes,
)
from dlc.schedule.runtime_function import FUNCTIONS
from dlc.te.expr import ZERO, Binary, BinOp, Const, Expr, Load, Var
from dlc.te.simplify import canonical
from dlc.te.transform import free_vars, loads, substitute
from dlc.te.types import TensorType, const_size

_OFFSETS = {"allocate": 32, "release": 40, "output": 48}  # in dlc_host
_OFFSETS |= {"step": 56, "text": 64, "read": 88}  # in dlc_profile_, dlc_text_ and dlc_gpu_host
_RUN = "define internal i32 @{}(ptr %host, ptr %sizes, ptr %inputs, ptr %outputs, ptr %arena) #0"
_PLAN = "define internal i32 @dlc_plan(ptr %host, ptr %sizes, ptr %dims, ptr %bytes) #0"
_LATER = Const(-1, INDEX)  # a dimension that `plan` cannot tell


def _bytes(type_: TensorType) -> Expr:
    """The bytes of a tensor: not multiplied out, for sums of many sizes would become very long."""
    total: Expr = Const(type_.dtype.size_bytes, INDEX)
    for size in type_.shape:
        total = Binary(BinOp.MUL, total, size)
    return total


class HostFunction:
    """Writes one function of a program; `pointers` are the buffers that have a place so far.

    With `demands` of the kernels, the function reports its steps to a `dlc_profile_host`.
    """

    def __init__(
        self,
        program: Program,
        names: Mapping[str, str],
        messages: dict[str, str],
        demands: Mapping[str, Demand] | None = None,
    ) -> None:
        self.program = program
        self.demands = demands
        self.kernels = {kernel.name: kernel for kernel in program.kernels}
        self.steps = 0
        self.names = names
        self.out = HostBuilder(program.name, messages, self._element)
        self.reports = Reports(self.out)
        self.buffers: dict[str, Buffer] = {}
        self.pointers: dict[str, str] = {}
        self.fetched: dict[str, dict[int, str]] = {}  # by buffer: where the host has its elements
        self.copies: dict[Fetch, str] = {}  # memory for what is fetched
        self.offsets = weight_offsets(program.constants)[0]
        self.regions: list[Expr] = []  # where each region of the arena begins, and the last ends

    def run(self) -> str:
        """`run`: bind the buffers, then the statements."""
        self._bind_sizes()
        for array, buffers in (("inputs", self.program.inputs), ("outputs", self.program.outputs)):
            for position, buffer in enumerate(buffers):
                if array == "inputs" or not self.program.is_provided(buffer):
                    self._bind(buffer, self._load("ptr", array, position))
        for buffer in self.program.constants:
            self.buffers[buffer.name] = buffer
        self.regions = self._regions()
        self._stmts(self.program.body)
        if self.demands is None:
            return self._finish(_RUN.format("dlc_run"))
        self._call_step(-1, ZERO, ZERO)
        return self._finish(_RUN.format("dlc_run_profiled"))

    def plan(self) -> str:
        """`plan`: check the sizes, then compute the shapes of the outputs and the arena's size."""
        self._bind_sizes()
        known = {size.name for size in self.program.sizes}
        for stmt in self.program.body:
            if isinstance(stmt, Check) and free_vars(stmt.cond) <= known and not loads(stmt.cond):
                self._check(stmt)
        dims = [dim for buffer in self.program.outputs for dim in buffer.type.shape]
        for position, dim in enumerate(dims):
            self._store_size(dim if free_vars(dim) <= known else _LATER, "dims", position)
        *_, end = self._regions()
        self._store_size(end, "bytes", 0)
        return self._finish(_PLAN)

    def _regions(self) -> list[Expr]:
        """Where each region begins, and the last one ends; symbolic places are computed here."""
        begins: list[Expr] = [ZERO]
        for number, size in enumerate(self.program.arena):
            end = begins[-1] + region_bytes(size)
            if isinstance(size, Const) and isinstance(begins[-1], Const):
                begins.append(canonical(end))
            else:
                name = f"region.{number}.end"
                self.out.bind(name, self.out.expr(end))
                begins.append(Var(name))
        return begins

    def _finish(self, head: str) -> str:
        self.out.line("ret i32 0")
        out = self.out
        lines = [head + " {", "entry:", *out.slots, *out.lines, *out.failures(), "}", ""]
        return "\n".join(lines)

    def _bind_sizes(self) -> None:
        for position, size in enumerate(self.program.sizes):
            value = self._load("i64", "sizes", position)
            self.out.bind(size.name, value)
            low, high = max(size.minimum, 0), size.maximum
            wanted = f"at least {low}" if high is None else f"from {low} to {high}"
            message = f"size '{size.name}' must be {wanted}"
            self.out.require(self.out.value(f"icmp sge i64 {value}, {low}"), message)
            if high is not None:
                self.out.require(self.out.value(f"icmp sle i64 {value}, {high}"), message)

    def _load(self, kind: str, array: str, position: int) -> str:
        at = self.out.value(f"getelementptr i8, ptr %{array}, i64 {8 * position}")
        return self.out.value(f"load {kind}, ptr {at}, align 8")

    def _store_size(self, size: Expr, array: str, position: int) -> None:
        value = self.out.expr(size)
        at = self.out.value(f"getelementptr i8, ptr %{array}, i64 {8 * position}")
        self.out.line(f"store i64 {value}, ptr {at}, align 8")

    def _bind(self, buffer: Buffer, pointer: str) -> None:
        self.buffers[buffer.name] = buffer
        self.pointers[buffer.name] = pointer

    def _pointer(self, name: str) -> str:
        if name not in self.pointers and name in self.offsets:
            offset = self.offsets[name]
            return f"getelementptr (i8, ptr @{WEIGHTS_SYMBOL}, i64 {offset})"
        return self.pointers[name]

    def _stmts(self, stmts: tuple[HostStmt, ...]) -> None:
        for stmt in stmts:
            self._stmt(stmt)

    def _report(self, stmt: CallKernel | Copy) -> None:
        """Tell which step begins, and what it has to do."""
        if self.demands is None:
            return
        operations: Expr = ZERO
        if isinstance(stmt, Copy):
            kind = self.buffers[stmt.target].type
            moved = kind.elems * (2 * kind.dtype.size_bytes)
        else:
            values = dict(zip(self.kernels[stmt.kernel].sizes, stmt.sizes, strict=True))
            found = self.demands[stmt.kernel]
            operations = substitute(found.operations, values)
            moved = substitute(found.bytes, values)
        self._call_step(self.steps, operations, moved)
        self.steps += 1

    def _call_step(self, step: int, operations: Expr, moved: Expr) -> None:
        out = self.out
        numbers = f"i64 {step}, i64 {out.expr(operations)}, i64 {out.expr(moved)}"
        function, host = self._host_function("step")
        out.line(f"call void {function}(ptr {host}, {numbers})")

    def _stmt(self, stmt: HostStmt) -> None:  # noqa: C901 - a case per statement
        out = self.out
        match stmt:
            case Place(buffer, region, offset):
                at = out.expr(self.regions[region] + offset)
                self._bind(buffer, out.value(f"getelementptr i8, ptr %arena, i64 {at}"))
            case View(buffer, source, offset):
                at = out.expr(offset * buffer.type.dtype.size_bytes)
                start = self._pointer(source)
                self._bind(buffer, out.value(f"getelementptr i8, ptr {start}, i64 {at}"))
            case CallKernel(kernel, sizes, buffers, _):
                self._report(stmt)
                arguments = ["ptr %host", *(f"i64 {out.expr(size)}" for size in sizes)]
                arguments += [f"ptr {self._pointer(name)}" for name in buffers]
                out.line(f"call void @{self.names[kernel]}({', '.join(arguments)}) #0")
            case CallRuntime():
                self._call_runtime(stmt)
            case Copy(target, source):
                self._report(stmt)
                self._copy(target, source)
            case Check():
                self._check(stmt)
            case CheckRange():
                buffer = self.buffers[stmt.buffer]
                emit_check_range(self.reports, stmt, buffer.type, self._pointer(stmt.buffer))
            case Allocate(buffer, node):
                self._allocate(buffer, node)
            case Release(name):
                self._release(self._pointer(name))
            case Provide(name, node):
                self._provide(name, node)
            case BindSize(name, size, message):
                failure = self.reports.failure(message, size)
                with out.failing(failure):
                    value = out.expr(size)
                out.require(out.value(f"icmp sge i64 {value}, 0"), failure)
                out.bind(name, value)
                self.reports.bound(name, size)
            case WriteSize(name, index, size):
                value = out.expr(size)
                element = Load(name, (Const(index, INDEX),), DType.I64)
                out.line(f"store i64 {value}, ptr {self._element(element)}, align 8")
            case Local(buffer):
                self._bind(buffer, out.slot(f"[{const_size(buffer.type.elems)} x i64]"))
            case Fetch():
                self._fetch(stmt)
            case Slot(name):
                self.pointers[name] = out.slot("ptr", "null")
                self._put(self.pointers[name], "null")  # inside a loop it holds something
            case Put(slot, name):
                self._put(self.pointers[slot], self._pointer(name))
            case Take(buffer, slot):
                self._bind(buffer, out.value(f"load ptr, ptr {self.pointers[slot]}, align 8"))
            case HostIf(cond, then, other):
                self._if(out.expr(cond), then, other)
            case HostLoop(var, extent, body, go):
                self._loop(var, out.expr(extent), body, go)
            case _:
                assert_never(stmt)

    def _check(self, stmt: Check) -> None:
        failure = self.reports.unmet(stmt.cond, stmt.message)
        with self.out.failing(failure):
            cond = self.out.expr(stmt.cond)
        self.out.require(cond, failure)

    def _call_runtime(self, stmt: CallRuntime) -> None:
        """The runtime says itself what is wrong where a call fails; its message is first."""
        out = self.out
        sizes = self._array("i64", [out.expr(size) for size in stmt.sizes])
        buffers = self._array("ptr", [self._pointer(name) for name in stmt.buffers])
        function, host = self._host_function("text")
        number = FUNCTIONS[stmt.function].number
        arguments = f"ptr {host}, i32 {number}, ptr {sizes}, ptr {buffers}"
        failed = out.value(f"call i32 {function}({arguments})")
        out.require(out.value(f"icmp eq i32 {failed}, 0"), "a text function failed")

    def _fetch(self, stmt: Fetch) -> None:
        """What the host sees has one place: each step of a loop fetches the condition there."""
        out, kind = self.out, self.buffers[stmt.buffer].type.dtype
        size = kind.size_bytes
        if stmt not in self.copies:
            self.copies[stmt] = out.slot(f"[{stmt.count * size} x i8]")
        memory = self.copies[stmt]
        source = self._pointer(stmt.buffer)
        source = out.value(f"getelementptr i8, ptr {source}, i64 {stmt.first * size}")
        function, host = self._host_function("read")
        arguments = f"ptr {host}, ptr {memory}, ptr {source}, i64 {stmt.count * size}"
        failed = out.value(f"call i32 {function}({arguments})")
        out.require(out.value(f"icmp eq i32 {failed}, 0"), "the GPU cannot be read")
        places = self.fetched.setdefault(stmt.buffer, {})
        for number in range(stmt.count):
            at = f"getelementptr i8, ptr {memory}, i64 {number * size}"
            places[stmt.first + number] = at

    def _element(self, load: Load) -> str:
        flat = element_position(load, self.buffers[load.buffer].type)
        if (fetched := self.fetched.get(load.buffer)) is not None:
            return self.out.value(fetched[flat])
        offset = flat * load.dtype.size_bytes
        return self.out.value(f"getelementptr i8, ptr {self._pointer(load.buffer)}, i64 {offset}")

    def _array(self, kind: str, values: Sequence[str]) -> str:
        """Memory of the function that holds these values."""
        array = self.out.slot(f"[{max(len(values), 1)} x {kind}]")
        for position, value in enumerate(values):
            at = self.out.value(f"getelementptr {kind}, ptr {array}, i64 {position}")
            self.out.line(f"store {kind} {value}, ptr {at}, align 8")
        return array

    def _host_function(self, name: str) -> tuple[str, str]:
        """A function of the host, and what to pass as its first argument."""
        at = self.out.value(f"getelementptr i8, ptr %host, i64 {_OFFSETS[name]}")
        return (
            self.out.value(f"load ptr, ptr {at}, align 8"),
            self.out.value("load ptr, ptr %host, align 8"),
        )

    def _put(self, slot: str, memory: str) -> None:
        out = self.out
        old = out.value(f"load ptr, ptr {slot}, align 8")
        self._release(old)
        out.line(f"store ptr {memory}, ptr {slot}, align 8")

    def _release(self, memory: str) -> None:
        function, host = self._host_function("release")
        self.out.line(f"call void {function}(ptr {host}, ptr {memory})")

    def _allocate(self, buffer: Buffer, node: str) -> None:
        failure = self.reports.no_memory(buffer.name, buffer.type, node)
        with self.out.failing(failure):
            size = self.out.expr(_bytes(buffer.type))
        function, host = self._host_function("allocate")
        memory = self.out.value(f"call ptr {function}(ptr {host}, i64 {size})")
        self.out.require(self.out.value(f"icmp ne ptr {memory}, null"), failure)
        self._bind(buffer, memory)

    def _provide(self, name: str, node: str) -> None:
        """The runtime says itself what is wrong with the caller's memory; its message is first."""
        found = [(i, b) for i, b in enumerate(self.program.outputs) if b.name == name]
        ((position, buffer),) = found
        failure = self.reports.no_memory(name, buffer.type, node)
        with self.out.failing(failure):
            self.out.expr(_bytes(buffer.type))
        dims = self._array("i64", [self.out.expr(size) for size in buffer.type.shape])
        function, host = self._host_function("output")
        memory = self.out.value(f"call ptr {function}(ptr {host}, i32 {position}, ptr {dims})")
        self.out.require(self.out.value(f"icmp ne ptr {memory}, null"), failure)
        self._bind(buffer, memory)

    def _copy(self, target: str, source: str) -> None:
        kind = self.buffers[target].type
        size = self.out.expr(_bytes(kind))
        to, of = self._pointer(target), self._pointer(source)
        self.out.line(f"call void @llvm.memcpy.p0.p0.i64(ptr {to}, ptr {of}, i64 {size}, i1 false)")

    def _if(self, cond: str, then: tuple[HostStmt, ...], other: tuple[HostStmt, ...]) -> None:
        arms = [(self.out.fresh_label("then"), then), (self.out.fresh_label("else"), other)]
        after = self.out.fresh_label("after")
        self.out.line(f"br i1 {cond}, label %{arms[0][0]}, label %{arms[1][0]}")
        for label, stmts in arms:
            self.out.start(label)
            with self.out.scope():
                self._stmts(stmts)
            self.out.line(f"br label %{after}")
        self.out.start(after)

    def _loop(self, var: str, extent: str, body: tuple[HostStmt, ...], go: Expr | None) -> None:
        out = self.out
        labels = [out.fresh_label(stem) for stem in ("head", "body", "latch", "after")]
        head, inner, latch, after = labels
        before = out.label
        out.line(f"br label %{head}")
        out.start(head)
        step = f"%{latch}_next"
        position = out.value(f"phi i64 [0, %{before}], [{step}, %{latch}]")
        more = out.value(f"icmp slt i64 {position}, {extent}")
        if go is not None:
            test = out.fresh_label("go")
            out.line(f"br i1 {more}, label %{test}, label %{after}")
            out.start(test)
            with out.scope():
                more = out.expr(go)
        out.line(f"br i1 {more}, label %{inner}, label %{after}")
        out.start(inner)
        with out.scope():
            out.bind(var, position)
            self._stmts(body)
        out.line(f"br label %{latch}")
        out.start(latch)
        out.line(f"{step} = add nuw nsw i64 {position}, 1")
        out.line(f"br label %{head}")
        out.start(after)
