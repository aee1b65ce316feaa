"""Buffers of scope REGISTER: their elements are SSA values and never touch memory.

A buffer is a set of chunks, each one scalar or one vector of consecutive elements. Chunks take the
shape of the accesses; an access of another shape takes lanes apart and puts them together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dlc.codegen.llvm.arith import Arith
from dlc.codegen.llvm.ir import Builder, Val, lane_constants, poison
from dlc.codegen.llvm.transpose import transpose
from dlc.core.types import DType


class Chunk(NamedTuple):
    """Consecutive elements of a register buffer; 0 lanes are one scalar."""

    buffer: str
    base: int
    lanes: int

    @property
    def elements(self) -> range:
        """The elements it covers."""
        return range(self.base, self.base + max(self.lanes, 1))


class Registers:
    """The current values of all register buffers of a function."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.elems: dict[str, str] = {}
        self._chunks: dict[str, dict[int, Val]] = {}
        self._cover: dict[str, dict[int, int]] = {}

    def declare(self, buffer: str, elem: str) -> None:
        """Start the life of a buffer; its elements are undefined."""
        self.elems[buffer] = elem
        self._chunks[buffer] = {}
        self._cover[buffer] = {}

    def forget(self, buffer: str) -> None:
        """End the life of a buffer."""
        del self.elems[buffer], self._chunks[buffer], self._cover[buffer]

    def read(self, chunk: Chunk) -> Val:
        """The value of some elements."""
        buffer, base, lanes = chunk
        found = self._chunks[buffer].get(base)
        if found is not None and found.lanes == lanes:
            return found
        if not lanes:
            return self._element(buffer, base)
        elem = self.elems[buffer]
        start = self._cover[buffer].get(base)
        if start is not None:
            whole = self._chunks[buffer][start]
            if base + lanes <= start + whole.lanes:
                picked = lane_constants(list(range(base - start, base - start + lanes)), "i32")
                return self.builder.op(
                    f"shufflevector {whole}, {whole.type} poison, {picked}", elem, lanes
                )
        total = poison(elem, lanes)
        for lane, at in enumerate(chunk.elements):
            part = self._element(buffer, at)
            total = self.builder.op(f"insertelement {total}, {part}, i64 {lane}", elem, lanes)
        return total

    def read_across(self, buffer: str, places: list[int], arith: Arith, dtype: DType) -> Val | None:
        """One element of each of several vectors, from the same lane of all; None: not that.

        The vectors are transposed once for all of their lanes, as they were loaded if they all
        were: a float of 16 bits takes half the shuffles then. Bools are bytes meanwhile.
        """
        cover = self._cover[buffer]
        bases = [cover.get(at, at) for at in places]
        lanes = {at - base for at, base in zip(places, bases, strict=True)}
        if len(lanes) > 1 or len(set(bases)) < len(bases):
            return None
        rows = [self._chunks[buffer].get(base, poison(self.elems[buffer])) for base in bases]
        if len({row.lanes for row in rows}) > 1 or rows[0].lanes < 2:
            return None
        (lane,) = lanes
        refs = tuple([row.ref for row in rows])
        found = self.builder.recall(("across", refs, lane))
        if found is None:
            loaded = [raw for row in rows if (raw := arith.as_loaded(row, dtype)) is not None]
            if dtype is DType.BOOL:
                loaded = [arith.to_memory(row, dtype) for row in rows]
            if len(loaded) == len(rows):
                columns = transpose(self.builder, loaded)
                columns = [arith.from_memory(column, dtype) for column in columns]
            else:
                columns = transpose(self.builder, rows)
            for number, column in enumerate(columns):
                self.builder.remember(("across", refs, number), column)
            found = columns[lane]
        return found

    def write(self, chunk: Chunk, value: Val) -> None:
        """Replace the value of some elements."""
        buffer, base, lanes = chunk
        chunks, cover = self._chunks[buffer], self._cover[buffer]
        old = chunks.get(base)
        if old is None or old.lanes != lanes:
            self._split_overlapping(chunk)
            for at in chunk.elements:
                cover[at] = base
        chunks[base] = value

    def shape(self, chunks: list[Chunk]) -> list[Chunk]:
        """Give the buffers these chunks, where they overlap the first come first; return them."""
        taken: set[tuple[str, int]] = set()
        result: list[Chunk] = []
        for chunk in chunks:
            elements = [(chunk.buffer, at) for at in chunk.elements]
            if not any(e in taken for e in elements):
                result.append(chunk)
            else:
                result += [Chunk(b, at, 0) for b, at in elements if (b, at) not in taken]
            taken.update(elements)
        for chunk in result:
            self.write(chunk, self.read(chunk))
        return result

    def replace(self, values: Mapping[Chunk, Val]) -> None:
        """Give elements new values where paths of control meet.

        What they held on one of the paths is not looked at: it may not exist on the other.
        """
        for buffer, base, lanes in values:
            chunks, cover = self._chunks[buffer], self._cover[buffer]
            for old in {cover[at] for at in Chunk(buffer, base, lanes).elements if at in cover}:
                for at in range(old, old + max(chunks.pop(old).lanes, 1)):
                    del cover[at]
        for chunk, value in values.items():
            self.write(chunk, value)

    def _element(self, buffer: str, at: int) -> Val:
        base = self._cover[buffer].get(at)
        if base is None:
            return poison(self.elems[buffer])
        whole = self._chunks[buffer][base]
        if not whole.lanes:
            return whole
        return self.builder.op(f"extractelement {whole}, i64 {at - base}", whole.elem)

    def _split_overlapping(self, chunk: Chunk) -> None:
        buffer, chunks, cover = chunk.buffer, self._chunks[chunk.buffer], self._cover[chunk.buffer]
        for base in {cover[at] for at in chunk.elements if at in cover}:
            elements = range(base, base + max(chunks[base].lanes, 1))
            kept = {at: self._element(buffer, at) for at in elements if at not in chunk.elements}
            del chunks[base]
            for at in elements:
                del cover[at]
            for at, value in kept.items():
                chunks[at] = value
                cover[at] = at
