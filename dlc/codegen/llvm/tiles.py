"""Instructions of a matrix engine: accumulators in tile registers, operands loaded as they come.

A buffer of scope TILE takes consecutive tile registers, one for each 16 x 16 elements. Those left
over hold operands of products: some of them the left ones, the others the right ones, as needs the
fewest loads. A region that is still in its register is not loaded again. Registers are named by
number, because LLVM's own allocation spills tiles where an operand's life crosses a block.

The configuration belongs to the thread: a function that uses tiles sets it when it begins and
gives the registers back when it ends. Nobody keeps tiles across a call.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from dlc.codegen.llvm.dots import DOT_PAIRS, DOT_QUADS, Operand, dot_word, dot_words
from dlc.codegen.llvm.ir import Block, Builder, Val
from dlc.codegen.llvm.lanes import pick
from dlc.codegen.llvm.memory import Memory
from dlc.codegen.llvm.packing import left_over, pack_tile
from dlc.codegen.llvm.storage import strides_of
from dlc.codegen.llvm.tile_registers import lefts
from dlc.core.errors import CodegenError
from dlc.core.target import Target
from dlc.schedule.edit import read
from dlc.schedule.instruction import (
    ADDED_APART,
    DOT_2XBF16_F32,
    DOT_4XI8_I32,
    DOT_WORDS,
    PREFETCH,
    SPLIT_LANES,
    TILE_PRODUCTS,
    TILE_SUMS,
    split_name,
)
from dlc.schedule.loop import Alloc, Invoke
from dlc.te.expr import Const, Expr

REGISTERS = 8
ROWS = 16
ROW_BYTES = 64
TILE_ELEMS = ROWS * ROWS


class Tiles:
    """The tile registers of one LLVM function."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.builder = memory.builder
        self.indices = memory.indices
        self.entry = self.builder.entry
        self._first: dict[str, int] = {}  # tile buffer -> its first register
        self._strides: dict[str, tuple[Expr, ...]] = {}
        self._end: dict[str, int] = {}  # tile buffer -> the register behind its last
        self._used = 0  # registers that hold accumulators
        self._held: tuple[dict[object, int], dict[object, int]] = ({}, {})  # oldest use first
        self._where: Block | None = None  # the block in which the operands were loaded
        self._configured = False
        self._lefts = 0  # registers for left operands

    @contextmanager
    def allocated(self, alloc: Alloc) -> Iterator[None]:
        """Give a buffer registers while its body runs; buffers not used there lose theirs."""
        buffer, before = alloc.buffer, self._used
        live = read(alloc.body)
        self._used = max((end for name, end in self._end.items() if name in live), default=0)
        count = -(-int(_constant(buffer.type.elems)) // TILE_ELEMS)
        if self._used + count > REGISTERS - 2:
            raise CodegenError(
                stage="code generation",
                unit=f"tile buffer '{buffer.name}'",
                reason=f"{self._used + count} of {REGISTERS} tile registers leave too few",
            )
        self._configure()
        self._lefts = lefts(alloc.body, REGISTERS - self._used - count)
        self._first[buffer.name] = self._used
        self._strides[buffer.name] = strides_of(buffer.type.shape)
        self._used += count
        self._end[buffer.name] = self._used
        self._forget()
        yield
        self._used = before
        for known in (self._first, self._strides, self._end):
            del known[buffer.name]

    def invoke(self, stmt: Invoke) -> None:
        """Emit one instruction."""
        EMITTERS[stmt.instruction].emit(self, stmt.operands)

    def register(self, operand: Operand) -> int:
        """The register of a region of a tile buffer."""
        name, index = operand
        flat = self.indices.element(index, self._strides[name])
        tile, rest = divmod(flat.const, TILE_ELEMS)
        if flat.rest or flat.lane or rest:
            raise CodegenError(
                stage="code generation",
                unit=f"tile buffer '{name}'",
                reason=f"[{', '.join(map(str, index))}] is not the start of a tile",
                hint="unroll the loops it reads",
            )
        return self._first[name] + tile

    def loaded(self, operand: Operand, rank: int, side: int) -> int:
        """A register that holds a region of memory; `side` is 0 for left operands, 1 for right.

        A region of rank 2 is one row, which all rows of the register hold.
        """
        at, stride = self.address(operand, rank)
        stride = 0 if rank == 2 else stride
        if self._where is not self.builder.current:
            self._forget()
        storage = self.memory.storage[operand[0]]
        held = self._held[side]
        key = (at.ref, stride, self.memory.versions.get(storage.alias, 0))
        found = held.pop(key, None)
        if found is None:
            pool = self._pool(side)
            free = [r for r in pool if r not in held.values()]
            found = free[0] if free else held.pop(next(iter(held)))
            self.call("tileloadd64", found, at, Val(str(stride), "i64"))
        held[key] = found
        return found

    def store(self, register: int, operand: Operand, rank: int) -> None:
        """Write a register to a region of memory."""
        at, stride = self.address(operand, rank)
        self.call("tilestored64", register, at, Val(str(stride), "i64"))
        self.memory.changed(self.memory.storage[operand[0]].alias)

    def call(self, name: str, *operands: int | Val) -> None:
        """Emit an intrinsic; ints are register numbers."""
        spelled = [f"i8 {o}" if isinstance(o, int) else str(o) for o in operands]
        kinds = ["i8 immarg" if isinstance(o, int) else o.type for o in operands]
        full = f"llvm.x86.{name}"
        self.builder.declarations.use(full, "void", ", ".join(kinds))
        self.builder.line(f"call void @{full}({', '.join(spelled)})")

    def configure_again(self) -> None:
        """What was called may have given the registers back."""
        if self._configured:
            self.call("ldtilecfg", Val("@.tiles", "ptr"))

    def release(self) -> None:
        """End the use of tiles at the end of the function."""
        if self._configured:
            self.call("tilerelease")

    def _configure(self) -> None:
        if self._configured:
            return
        self._configured = True
        rows = f"[8 x i8] [{', '.join([f'i8 {ROWS}'] * REGISTERS)}]"
        columns = f"[8 x i16] [{', '.join([f'i16 {ROW_BYTES}'] * REGISTERS)}]"
        shape = "{ i8, [15 x i8], [8 x i16], [16 x i8], [8 x i8], [8 x i8] }"
        zero = "zeroinitializer"
        value = (
            f"{{ i8 1, [15 x i8] {zero}, {columns}, [16 x i8] {zero}, {rows}, [8 x i8] {zero} }}"
        )
        line = f"@.tiles = private unnamed_addr constant {shape} {value}, align 64"
        if line not in self.builder.declarations.globals:
            self.builder.declarations.globals.append(line)
        here, self.builder.current = self.builder.current, self.entry
        self.call("ldtilecfg", Val("@.tiles", "ptr"))
        self.builder.current = here

    def address(self, operand: Operand, rank: int) -> tuple[Val, int]:
        """The address of a region, and the bytes from one row to the next."""
        name, index = operand
        storage = self.memory.storage[name]
        assert storage.base is not None, f"'{name}' is an operand in registers"
        size = storage.dtype.size_bytes
        flat = self.indices.element(index, storage.strides)
        stride = int(_constant(storage.strides[len(index) - rank])) * size
        return self.indices.pointer(storage.base, flat, size), stride

    def _pool(self, side: int) -> range:
        middle = self._used + self._lefts
        return range(self._used, middle) if side == 0 else range(middle, REGISTERS)

    def _forget(self) -> None:
        self._held = ({}, {})
        self._where = self.builder.current


def _constant(size: Expr) -> int:
    assert isinstance(size, Const), f"a tile's row is {size} elements away"
    return int(size.value)


@dataclass(frozen=True, slots=True)
class Emitter:
    """How an instruction is emitted, and which targets have it."""

    is_of: Callable[[Target], bool]
    emit: Callable[[Tiles, tuple[Operand, ...]], None]


def _zero(tiles: Tiles, operands: tuple[Operand, ...]) -> None:
    tiles.call("tilezero", tiles.register(operands[0]))


def _dot(name: str, rank: int) -> Callable[[Tiles, tuple[Operand, ...]], None]:
    """An intrinsic; `rank` is that of the left operand's region."""

    def emit(tiles: Tiles, operands: tuple[Operand, ...]) -> None:
        a, b, c = operands
        left, right = tiles.loaded(a, rank, 0), tiles.loaded(b, 3, 1)
        tiles.call(name, tiles.register(c), left, right)

    return emit


def _store(tiles: Tiles, operands: tuple[Operand, ...]) -> None:
    c, d = operands
    tiles.store(tiles.register(c), d, 2)


def _split(count: int, lanes: int) -> Callable[[Tiles, tuple[Operand, ...]], None]:
    """Each plane is converted, widened again and taken from the rest: one vector, or two."""
    width = min(lanes, ROWS)
    floats, halves = f"<{width} x float>", f"<{lanes} x bfloat>"
    name = f"cvtneps2bf16.{width * 32}" if width == lanes else "cvtne2ps2bf16.512"
    name = f"llvm.x86.avx512bf16.{name}"

    def emit(tiles: Tiles, operands: tuple[Operand, ...]) -> None:
        builder = tiles.builder
        at, _ = tiles.address(operands[0], 1)
        to, stride = tiles.address(operands[1], 2)
        builder.declarations.use(name, halves, ", ".join([floats] * (lanes // width)))
        rest: list[Val] = []
        for first in range(0, lanes, width):
            place = builder.op(f"getelementptr float, {at}, i64 {first}", "ptr")
            rest.append(builder.fresh(f"load {floats}, {place}, align 4", "float", width))
        for position in range(count):
            given = ", ".join(map(str, reversed(rest)))  # the upper half comes first
            half = builder.op(f"call {halves} @{name}({given})", "bfloat", lanes)
            place = builder.op(f"getelementptr i8, {to}, i64 {stride * position}", "ptr")
            builder.line(f"store {half}, {place}, align 2")
            if position + 1 < count:
                upper = [_widened(builder, half, n * width, width) for n in range(len(rest))]
                rest = [left_over(builder, x, y) for x, y in zip(rest, upper, strict=True)]
        tiles.memory.changed(tiles.memory.storage[operands[1][0]].alias)

    return emit


def _widened(builder: Builder, half: Val, first: int, lanes: int) -> Val:
    """The bits of some lanes of bf16 as float32."""
    bits = builder.op(f"bitcast {half} to <{half.lanes} x i16>", "i16", half.lanes)
    if lanes < half.lanes:
        bits = pick(builder, bits, range(first, first + lanes))
    wide = builder.op(f"zext {bits} to <{lanes} x i32>", "i32", lanes)
    return builder.op(f"shl {wide}, splat (i32 16)", "i32", lanes)


def _prefetch(level: int) -> Callable[[Tiles, tuple[Operand, ...]], None]:
    locality = 4 - level  # LLVM counts from 3, all caches, down

    def emit(tiles: Tiles, operands: tuple[Operand, ...]) -> None:
        at, _ = tiles.address(operands[0], 1)
        tiles.builder.declarations.use("llvm.prefetch.p0", "void", "ptr, i32, i32, i32")
        tiles.builder.line(f"call void @llvm.prefetch.p0({at}, i32 0, i32 {locality}, i32 1)")

    return emit


def _pack(count: int, rank: int, *, columns: bool) -> Callable[[Tiles, tuple[Operand, ...]], None]:
    def emit(tiles: Tiles, operands: tuple[Operand, ...]) -> None:
        source, row = tiles.address(operands[0], rank)
        to, plane = tiles.address(operands[1], 5)
        pack_tile(tiles.builder, source, row, to, plane, count, columns=columns)
        tiles.memory.changed(tiles.memory.storage[operands[1][0]].alias)

    return emit


def _has(feature: str) -> Callable[[Target], bool]:
    return lambda target: feature in target.features


def _word(bits: int) -> Emitter:
    return Emitter(
        lambda target: target.adds_words(bits),
        lambda tiles, operands: dot_word(bits, tiles.memory, operands),
    )


_TILES, _BF16 = _has("amx-tile"), _has("avx512bf16")
_INTRINSICS = {"amx-bf16": "tdpbf16ps", "amx-int8": "tdpbusd"}
EMITTERS: dict[str, Emitter] = {
    DOT_2XBF16_F32.name: Emitter(_BF16, lambda tiles, o: DOT_PAIRS(tiles.memory, o)),
    DOT_4XI8_I32.name: Emitter(
        lambda target: target.byte_products == 4, lambda tiles, o: DOT_QUADS(tiles.memory, o)
    ),
    **{dot.name: _word(bits) for bits, dot in DOT_WORDS.items()},
    **{
        dot.name: Emitter(
            lambda target: target.byte_products > 0, lambda tiles, o: dot_words(tiles.memory, o)
        )
        for dot in ADDED_APART
    },
    **{f"tile_zero_{sums}": Emitter(_TILES, _zero) for sums in TILE_SUMS},
    **{f"tile_store_{sums}": Emitter(_TILES, _store) for sums in TILE_SUMS},
    **{
        tiles.name(one_row=rank == 2): Emitter(
            _has(tiles.feature), _dot(_INTRINSICS[tiles.feature], rank)
        )
        for tiles in TILE_PRODUCTS
        for rank in (2, 3)
    },
    **{
        ask.name: Emitter(lambda target: True, _prefetch(level))
        for (_, level), ask in PREFETCH.items()
    },
    **{
        split_name(count, lanes): Emitter(_BF16, _split(count, lanes))
        for lanes in SPLIT_LANES
        for count in (1, 2, 3)
    },
    **{
        f"pack_{side}_{place}bf16_{count}": Emitter(
            _BF16, _pack(count, rank, columns=side == "columns")
        )
        for side in ("rows", "columns")
        for place, rank in (("", 2), ("apart_", 3))
        for count in (1, 2, 3)
    },
}
