"""Loop IR -> LLVM IR text: statements, loops and whole kernels.

A kernel is `void @name(ptr host, i64 sizes..., ptr buffers...)`, buffers in the order of
`Func.params`. The outermost parallel loops become functions of their own, which `host->parallel`
calls on ranges of iterations. The IR is final: nothing but the code generator runs on it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from dlc.codegen.llvm.arith import Arith
from dlc.codegen.llvm.frame import Frame
from dlc.codegen.llvm.guards import Guards
from dlc.codegen.llvm.ir import VALUE_TYPES, Builder, Val, phi_text
from dlc.codegen.llvm.limit import limited
from dlc.codegen.llvm.module import Module
from dlc.codegen.llvm.moving import advance, is_innermost
from dlc.codegen.llvm.storage import Storage, register_strides, strides_of
from dlc.codegen.llvm.tiles import Tiles
from dlc.codegen.llvm.unroll import Unroll
from dlc.codegen.llvm.usage import Usage, constant_extent
from dlc.codegen.llvm.values import Values
from dlc.core.errors import CodegenError
from dlc.core.target import Target
from dlc.schedule.loop import (
    Alloc,
    Block,
    For,
    Func,
    If,
    Invoke,
    LoopKind,
    Scope,
    Stmt,
    Store,
    accumulation,
    exprs,
    walk,
)
from dlc.te.expr import Binary, Const, Expr
from dlc.te.transform import free_vars, loads
from dlc.te.types import const_or_none


def emit_func(func: Func, target: Target) -> str:
    """One kernel as a whole LLVM module in text form.

    Raises:
        CodegenError: a register buffer has an index that is no constant, or an instruction is not
            known.
    """
    module = Module(func, target)
    names = [f"%s{n}" for n in range(len(func.sizes))] + [f"%b{n}" for n in range(len(func.params))]
    same = {name for pair in func.in_place for name in pair}
    kinds = ["i64"] * len(func.sizes)
    kinds += ["ptr" if b.name in same else "ptr noalias" for b in func.params]
    operands = [f"{k} {n}" for k, n in zip(kinds, names, strict=True)]
    body = Body(module)
    body.host = Val("%host", "ptr")
    for name, ref in zip(func.sizes, names[: len(func.sizes)], strict=True):
        body.values.indices.vars[name] = (Val(ref, "i64"), 0)
    aliases = dict(func.in_place)
    for buffer, ref in zip(func.params, names[len(func.sizes) :], strict=True):
        alias = aliases.get(buffer.name, buffer.name)
        strides = strides_of(buffer.type.shape)
        body.values.memory.storage[buffer.name] = Storage(
            buffer.name, buffer.type.dtype, strides, buffer.type.shape, Val(ref, "ptr"), alias
        )
    text = body.emit(module.body, module.frame)
    return module.text(f"@{func.name}({', '.join(['ptr %host', *operands])})", text)


class Body:
    """The body of one LLVM function: a kernel, or an outlined parallel loop."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.builder = Builder(module.declarations)
        self.values = Values(self.builder, Arith(self.builder, module.target))
        self.indices = self.values.indices
        self.memory = self.values.memory
        self.memory.given = frozenset(b.name for b in module.func.inputs)
        self.memory.results = frozenset(b.name for b in module.func.outputs)
        self.tiles = Tiles(self.memory)
        self.usage = Usage(self.values, module.target)
        self.host = Val("%host", "ptr")
        self.outlining = True
        self.guards = Guards(self.values, self.usage, module.nested_if, self.stmt)
        self.unroll = Unroll(self.values, self.usage, self.stmt)
        self._frame: dict[str, Val] = {}

    def emit(self, stmt: Stmt, frame: Frame) -> str:
        """The blocks of the function, as text."""
        self._make_frame(frame)
        self.stmt(stmt)
        return self._close()

    def emit_range(self, loop: For, frame: Frame) -> str:
        """The blocks of an outlined parallel loop, over the range it is called for."""
        self._make_frame(frame)
        self._serial(loop, Val("%begin", "i64"), Val("%end", "i64"), never_empty=False)
        return self._close()

    def _close(self) -> str:
        self.tiles.release()
        self.builder.current.end = "ret void"
        return self.builder.body()

    def _make_frame(self, frame: Frame) -> None:
        """Get memory for the LOCAL buffers: from the stack, or from the host."""
        if not frame.offsets:
            return
        if frame.on_stack:
            base = Val(self.builder.alloca(f"[{frame.bytes} x i8], align 64"), "ptr")
        else:
            base = self._scratch(frame.bytes)
        for name, offset in frame.offsets.items():
            flat = self.indices.flat(offset)
            at = self.indices.pointer(base, flat._replace(const=0), 1)
            if flat.const:  # where what does not depend on a loop finds it
                at = self.builder.index_op(0, f"getelementptr i8, {at}, i64 {flat.const}", "ptr")
            self._frame[name] = at

    def _scratch(self, size_bytes: Expr) -> Val:
        """Scratch memory; without it the kernel fails and returns."""
        builder = self.builder
        size = self._extent(size_bytes)
        start, entry = builder.current, builder.entry
        builder.enter(entry)
        context, get = self.host_field(0), self.host_field(2)
        base = builder.fresh(f"call ptr {get.ref}({context}, {size})", "ptr")
        missing = builder.fresh(f"icmp eq {base}, null", "i1")
        top, fail = builder.block("top"), builder.block("fail")
        builder.branch(missing, fail, top)
        top.end = f"br label %{start.label}"
        builder.enter(fail)
        report, message = self.host_field(3), self.module.fail_message()
        builder.line(f"call void {report.ref}({context}, ptr {message})")
        fail.end = "ret void"
        builder.levels[0].block = top
        builder.enter(start)
        return base

    # Statements.

    def stmt(self, stmt: Stmt) -> None:
        """Emit one statement."""
        match stmt:
            case Store(buffer, index, value):
                self._store(stmt, buffer, index, value)
            case Block(stmts):
                for child in stmts:
                    self.stmt(child)
            case For():
                self._loop(stmt)
            case If(cond, body):
                self.guards.run(cond, body)
            case Alloc():
                self._alloc(stmt)
            case Invoke():
                self.tiles.invoke(stmt)
            case _:
                assert_never(stmt)

    def _store(self, stmt: Store, buffer: str, index: tuple[Expr, ...], value: Expr) -> None:
        op = accumulation(stmt) if self.indices.lane_var is not None else None
        if op is not None and self.memory.is_shared(buffer, index):
            assert isinstance(value, Binary)
            dtype = value.dtype
            added = self.indices.splat(self.values.expr(value.b), self.indices.lanes)
            total = self.values.reduce(op, added, dtype)
            old = self.memory.load(buffer, index)
            self.memory.store(buffer, index, self.values.arith.binary(op, old, total, dtype))
        else:
            self.memory.store(buffer, index, self.values.expr(value))

    def _alloc(self, stmt: Alloc) -> None:
        if stmt.scope is Scope.TILE:
            with self.tiles.allocated(stmt):
                self.stmt(stmt.body)
            return
        name, kind = stmt.buffer.name, stmt.buffer.type
        lane = self.indices.lane_var
        lanes = self.indices.lanes if lane else 0
        if stmt.scope is Scope.REGISTER:
            base, strides = None, register_strides(kind.shape, lanes)
        else:
            base, strides = self._frame[name], strides_of(kind.shape, lanes)
        self.memory.storage[name] = Storage(
            name, kind.dtype, strides, kind.shape, base, name, lane or ""
        )
        if base is None:
            self.memory.registers.declare(name, VALUE_TYPES[kind.dtype])
        else:
            self.memory.changed(name)
        self.stmt(stmt.body)
        del self.memory.storage[name]
        if base is None:
            self.memory.registers.forget(name)

    # Loops.

    def _loop(self, loop: For) -> None:
        outer = self.memory.ahead
        self.memory.ahead = dict(loop.notes).get("prefetch", outer)
        self._run(loop)
        self.memory.ahead = outer

    def _run(self, loop: For) -> None:
        self.indices.bind(loop.var, loop.extent)
        count = const_or_none(loop.extent)
        if count == 0:
            return
        if count == 1 or loop.kind is LoopKind.UNROLL:
            self.unroll.run(loop)
        elif loop.kind is LoopKind.VECTOR:
            with self.indices.as_lanes(loop.var, constant_extent(loop)):
                self.stmt(loop.body)
        elif loop.var in self.module.outlined and self.outlining:
            self._parallel(loop)
        else:
            loop = limited(loop, self.indices.lane_var)
            fixed = isinstance(loop.extent, Const)
            self._serial(loop, Val("0", "i64"), self._extent(loop.extent), never_empty=fixed)

    def _extent(self, extent: Expr) -> Val:
        return self.indices.scalar(self.indices.flat(extent))

    def _serial(self, loop: For, begin: Val, end: Val, *, never_empty: bool) -> None:
        """A bottom-tested loop, behind a test unless it surely runs; registers become phis."""
        builder, registers = self.builder, self.memory.registers
        chunks = registers.shape(self.usage.written(loop.body))
        before = [registers.read(c) for c in chunks]
        label = loop.var if loop.var.isascii() else "loop"
        start, head = builder.current, builder.block(label)
        after = builder.block(f"{label}.end")
        if never_empty:
            builder.jump(head)
        else:
            builder.branch(builder.op(f"icmp slt {begin}, {end.ref}", "i1"), head, after)
        builder.enter(head)
        moves = self.module.moves and is_innermost(loop)
        builder.open_level(head, loop.var, begin if moves else None)
        counter = Val(builder.name(), "i64")
        self.indices.vars[loop.var] = (counter, len(builder.levels) - 1)
        current = [Val(builder.name(), v.elem, v.lanes) for v in before]
        for chunk, value in zip(chunks, current, strict=True):
            registers.write(chunk, value)
        self.memory.forget(self.usage.stores(loop.body))
        self.stmt(loop.body)
        final = [registers.read(c) for c in chunks]
        latch = builder.current
        again = advance(builder, start, counter, begin, end, read=loop.var in self.indices.read)
        builder.branch(again, head, after)
        for name, old, new in zip(current, before, final, strict=True):
            head.phis.append(phi_text(name.ref, name, [(old, start), (new, latch)]))
        builder.close_level()
        builder.enter(after)
        merged = [
            new if never_empty else builder.phi([(old, start), (new, latch)])
            for old, new in zip(before, final, strict=True)
        ]
        registers.replace(dict(zip(chunks, merged, strict=True)))
        self.memory.forget(self.usage.stores(loop.body))

    # Parallel loops.

    def _parallel(self, loop: For) -> None:
        """Call `host->parallel` on a function that runs a range of the iterations."""
        names = _names(loop.body)
        for name, storage in self.memory.storage.items():
            if storage.base is None and name in names:
                raise CodegenError(
                    stage="code generation",
                    unit=f"register buffer '{name}'",
                    reason=f"the parallel loop '{loop.var}' uses it",
                    hint="allocate it inside the parallel loop, or use scope 'local'",
                )
        body = Body(self.module)
        body.outlining = False
        captured: list[Val] = [self.host]
        for name, (value, _) in self.indices.vars.items():
            if name in self.module.func.sizes or name in names:
                captured.append(value)
                self.indices.read.add(name)
                inner = body.captured(len(captured) - 1, value.elem)
                body.indices.vars[name] = (inner, 0)
        for name, storage in self.memory.storage.items():
            if storage.base is not None and name in names:
                captured.append(storage.base)
                base = body.captured(len(captured) - 1, "ptr")
                body.memory.storage[name] = replace(storage, base=base)
        body.host = body.captured(0, "ptr")
        body.indices.fixed.update(self.indices.fixed)
        body.indices.bounds.update(self.indices.bounds)
        symbol = self.module.symbol()
        text = body.emit_range(loop, self.module.inner[loop.var])
        signature = f"@{symbol}(ptr %closure, i64 %begin, i64 %end)"
        self.module.functions.append(f"define internal void {signature} #0 {{\n{text}\n}}")
        self._call_parallel(loop, symbol, captured)

    def captured(self, slot: int, elem: str) -> Val:
        """A value the caller stored in the closure."""
        at = self.builder.index_op(0, f"getelementptr i8, ptr %closure, i64 {slot * 8}", "ptr")
        return self.builder.index_op(0, f"load {elem}, {at}, align 8", elem)

    def _call_parallel(self, loop: For, symbol: str, captured: list[Val]) -> None:
        builder = self.builder
        closure = builder.alloca(f"[{len(captured)} x i64], align 8")
        for slot, value in enumerate(captured):
            at = builder.op(f"getelementptr i8, ptr {closure}, i64 {slot * 8}", "ptr")
            builder.line(f"store {value}, {at}, align 8")
        context = self.host_field(0)
        extent = self._extent(loop.extent)
        operands = f"{context}, ptr @{symbol}, ptr {closure}, {extent}"
        builder.line(f"call void {self.host_field(1).ref}({operands})")
        self.tiles.configure_again()
        self.memory.forget(self.usage.stores(loop.body))

    def host_field(self, slot: int) -> Val:
        """A field of the `dlc_host`."""
        at = self.builder.op(f"getelementptr i8, {self.host}, i64 {slot * 8}", "ptr")
        return self.builder.fresh(f"load ptr, {at}, align 8", "ptr")


def _names(stmt: Stmt) -> set[str]:
    """Every variable and every buffer a statement mentions."""
    found: set[str] = set()
    for expr in exprs(stmt):
        found |= free_vars(expr)
        found.update(load.buffer for load in loads(expr))
    for node in walk(stmt):
        match node:
            case Store(buffer, _, _):
                found.add(buffer)
            case Invoke(_, operands):
                found.update(buffer for buffer, _ in operands)
    return found
