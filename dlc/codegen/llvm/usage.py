"""What statements write and read, found by walking them with unrolled loops written out."""

from __future__ import annotations

from dlc.codegen.llvm.registers import Chunk
from dlc.codegen.llvm.values import Values
from dlc.core.errors import CodegenError
from dlc.core.target import Target
from dlc.schedule.edit import outputs, written
from dlc.schedule.loop import Alloc, Block, For, If, Invoke, LoopKind, Stmt, Store, walk
from dlc.te.expr import Const, Expr, Load
from dlc.te.transform import free_vars
from dlc.te.types import is_const


class Usage:
    """Questions about statements, asked where the emitter stands."""

    def __init__(self, values: Values, target: Target) -> None:
        self.values = values
        self.indices = values.indices
        self.memory = values.memory
        self.target = target
        self._stored: dict[int, tuple[Stmt, frozenset[str]]] = {}
        self._chunks: dict[tuple[object, ...], tuple[Stmt, dict[Chunk, None]]] = {}
        self._fenced: dict[int, tuple[For, bool]] = {}

    def stores(self, stmt: Stmt) -> frozenset[str]:
        """The buffers a statement writes."""
        found = self._stored.get(id(stmt))
        if found is None:
            found = self._stored[id(stmt)] = (stmt, frozenset(written(stmt)))
        return found[1]

    def written(self, stmt: Stmt) -> list[Chunk]:
        """The parts of live register buffers that a statement writes, in order."""
        live = {n for n, s in self.memory.storage.items() if s.base is None}
        return list(self._collected(stmt, live & self.stores(stmt)))

    def _collected(self, stmt: Stmt, live: set[str]) -> dict[Chunk, None]:
        """The same, remembered: nested loops ask again for what is inside them."""
        key = (id(stmt), *self.indices.fixed.items(), *sorted(live))
        found = self._chunks.get(key)
        if found is None:
            chunks: dict[Chunk, None] = {}
            self._collect(stmt, live, chunks)
            found = self._chunks[key] = (stmt, chunks)
        return found[1]

    def _collect(self, stmt: Stmt, live: set[str], found: dict[Chunk, None]) -> None:
        if not live & self.stores(stmt):
            return
        match stmt:
            case Store(buffer, index, _):
                found.update(dict.fromkeys(self.memory.register_chunks(buffer, index)))
            case Invoke():
                for buffer, index in outputs(stmt):
                    if buffer in live:
                        found.update(dict.fromkeys(self.memory.register_chunks(buffer, index)))
            case Block(stmts):
                for child in stmts:
                    self._collect(child, live, found)
            case If(_, body) | Alloc(_, _, body):
                self._collect(body, live, found)
            case For():
                self._collect_loop(stmt, live, found)

    def _collect_loop(self, loop: For, live: set[str], found: dict[Chunk, None]) -> None:
        self.indices.bind(loop.var, loop.extent)
        if is_const(loop.extent, 1) or loop.kind is LoopKind.UNROLL:
            for n in range(constant_extent(loop)):
                self.indices.fixed[loop.var] = n
                self._collect(loop.body, live, found)
            self.indices.fixed.pop(loop.var, None)
        elif loop.kind is LoopKind.VECTOR:
            with self.indices.as_lanes(loop.var, constant_extent(loop)):
                self._collect(loop.body, live, found)
        else:
            found.update(self._collected(loop.body, live & self.stores(loop.body)))

    def wants_fences(self, loop: For) -> bool:
        """Whether copies of a reduction share loaded values, but more than fit into registers.

        Such values would be kept on the stack, which costs more than to load them again.
        """
        found = self._fenced.get(id(loop))
        if found is None:
            found = self._fenced[id(loop)] = (loop, self._reuses_too_much(loop))
        return found[1]

    def _reuses_too_much(self, loop: For) -> bool:
        target, fixed = self.target, self.indices.fixed
        if constant_extent(loop) < 2 or not self._is_reduction(loop):
            return False
        read: list[set[object]] = [set(), set()]
        written: list[list[Chunk]] = []
        for n in (0, 1):
            fixed[loop.var] = n
            written.append(self.written(loop.body))
            if written[0] and written[0] == written[n]:
                self._collect_loads(loop.body, read[n])
        del fixed[loop.var]
        held = sum(-(-chunk.lanes * 32 // target.vector_bits) for chunk in written[0])
        return held + len(read[0]) > target.vector_registers and bool(read[0] & read[1])

    def _is_reduction(self, loop: For) -> bool:
        """Whether all iterations of a loop write the same registers."""
        storage, found = self.memory.storage, False
        for node in walk(loop.body):
            stored: tuple[tuple[str, tuple[Expr, ...]], ...] = ()
            if isinstance(node, Store):
                stored = ((node.buffer, node.index),)
            elif isinstance(node, Invoke):
                stored = outputs(node)
            for buffer, index in stored:
                if buffer not in storage or storage[buffer].base is not None:
                    return False
                if any(loop.var in free_vars(i) for i in index):
                    return False
                found = True
        return found

    def _collect_loads(self, stmt: Stmt, found: set[object]) -> None:
        """The places in memory that accumulations into registers read."""
        match stmt:
            case Store(buffer, _, value) if self.memory.storage[buffer].base is None:
                found.update(self.memory.place(load) for load in self.values.loads(value))
            case Invoke(_, operands) if outputs(stmt):
                inputs = [Load(b, i, self.memory.storage[b].dtype) for b, i in operands]
                found.update(map(self.memory.place, inputs))
            case Block(stmts):
                for child in stmts:
                    self._collect_loads(child, found)
            case For(var, _, LoopKind.UNROLL, body):
                for n in range(constant_extent(stmt)):
                    self.indices.fixed[var] = n
                    self._collect_loads(body, found)
                del self.indices.fixed[var]
            case For(_, _, LoopKind.VECTOR, body):
                with self.indices.as_lanes(stmt.var, constant_extent(stmt)):
                    self._collect_loads(body, found)
            case If(_, body):
                self._collect_loads(body, found)


def constant_extent(loop: For) -> int:
    """The number of iterations of a loop that must be written out."""
    if not isinstance(loop.extent, Const):
        raise CodegenError(
            stage="code generation",
            unit=f"loop '{loop.var}'",
            reason=f"the extent {loop.extent} of a {loop.kind} loop is no constant",
        )
    return int(loop.extent.value)
