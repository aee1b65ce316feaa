"""Accesses to buffers of scope REGISTER, whose indices are constants or lanes by now."""

from __future__ import annotations

from dataclasses import dataclass

from dlc.codegen.llvm.arith import Arith
from dlc.codegen.llvm.flatten import Flat
from dlc.codegen.llvm.index import Indices
from dlc.codegen.llvm.ir import Val
from dlc.codegen.llvm.registers import Chunk, Registers
from dlc.codegen.llvm.storage import Storage
from dlc.core.errors import CodegenError
from dlc.te.expr import Expr


@dataclass(frozen=True, slots=True)
class RegisterAccess:
    """Reads and writes at an index, of which `flat` is the position in the buffer."""

    registers: Registers
    arith: Arith
    indices: Indices

    def chunks(self, storage: Storage, index: tuple[Expr, ...], flat: Flat) -> list[Chunk]:
        """The elements an access touches: one chunk, or one for each lane."""
        if flat.lane == 0 or flat.lane == 1:
            _check_constant(storage, index, flat)
            lanes = self.indices.lanes if flat.lane else 0
            return [Chunk(storage.name, flat.const, lanes)]
        flats = self.indices.per_lane(lambda: self.indices.element(index, storage.strides))
        for at in flats:
            _check_constant(storage, index, at)
        return [Chunk(storage.name, at.const, 0) for at in flats]

    def read(self, storage: Storage, index: tuple[Expr, ...], flat: Flat) -> Val:
        """The element at an index; a vector where the index reads the lane."""
        chunks = self.chunks(storage, index, flat)
        if len(chunks) > 1:
            bases = [c.base for c in chunks]
            found = self.registers.read_across(storage.name, bases, self.arith, storage.dtype)
            if found is not None:
                return found
        parts = [self.registers.read(c) for c in chunks]
        return parts[0] if len(parts) == 1 else self.indices.gather(parts)

    def write(
        self,
        storage: Storage,
        index: tuple[Expr, ...],
        flat: Flat,
        value: Val,
        mask: Val | None,
    ) -> None:
        """Write an element, or one in each lane that is on in the mask."""
        chunks = self.chunks(storage, index, flat)
        if len(chunks) == 1 and chunks[0].lanes:
            value = self.indices.splat(value, chunks[0].lanes)
            if mask is not None:
                value = self.arith.select(mask, value, self.registers.read(chunks[0]))
            self.registers.write(chunks[0], value)
            return
        if len(chunks) == 1:  # one element for all lanes: the last one that runs wins
            chunks = chunks * max(value.lanes, 1)
        for lane, chunk in enumerate(chunks):
            part = value
            if value.lanes:
                part = self._lane(value, lane)
            if mask is not None and self.indices.lanes and (value.lanes or len(chunks) > 1):
                part = self.arith.select(self._lane(mask, lane), part, self.registers.read(chunk))
            self.registers.write(chunk, part)

    def _lane(self, value: Val, lane: int) -> Val:
        return self.registers.builder.op(f"extractelement {value}, i64 {lane}", value.elem)


def _check_constant(storage: Storage, index: tuple[Expr, ...], flat: Flat) -> None:
    if flat.rest:
        at = ", ".join(map(str, index))
        raise CodegenError(
            stage="code generation",
            unit=f"register buffer '{storage.name}'",
            reason=f"its index [{at}] is not a constant after unrolling",
            hint="unroll the loops it reads, or use scope 'local'",
        )
