"""Loads and stores: scalars, vectors, strides, masks, and what has no vector form, lane by lane."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from itertools import chain

from dlc.codegen.llvm.ahead import MIN_WRITE_BYTES, WRITE_AHEAD, ask_ahead, is_far
from dlc.codegen.llvm.arith import Arith
from dlc.codegen.llvm.flatten import Flat
from dlc.codegen.llvm.from_data import is_from_data, vector_of
from dlc.codegen.llvm.index import Indices
from dlc.codegen.llvm.ir import (
    MEMORY_TYPES,
    Builder,
    Val,
    constant,
    lane_constants,
    poison,
    type_of,
)
from dlc.codegen.llvm.lanes import pick
from dlc.codegen.llvm.look_up import ENTRIES, LANES, byte_of, look_up
from dlc.codegen.llvm.masked import gather, masked_load, masked_store, scatter
from dlc.codegen.llvm.register_access import RegisterAccess
from dlc.codegen.llvm.registers import Chunk, Registers
from dlc.codegen.llvm.storage import Storage
from dlc.core.types import INDEX, NARROW_FLOATS, DType
from dlc.te.expr import ONE, ZERO, Const, Expr, Load, Var
from dlc.te.simplify import surely_at_most, surely_less
from dlc.te.transform import loads

WINDOW = 4  # vectors that are loaded for one whose lanes lie apart: shuffles cost less than gathers


class Memory:
    """The buffers of a function and the accesses to them."""

    def __init__(self, builder: Builder, arith: Arith, indices: Indices) -> None:
        self.builder = builder
        self.arith = arith
        self.indices = indices
        self.registers = Registers(builder)
        self._in_registers = RegisterAccess(self.registers, arith, indices)
        self.storage: dict[str, Storage] = {}
        self.versions: dict[str, int] = {}
        self.mask: Val | None = None  # which lanes run; None: all
        self.ahead = 0  # bytes behind each vector of a parameter, to be asked for when it is loaded
        self.given: frozenset[str] = frozenset()  # the parameters
        self.results: frozenset[str] = frozenset()  # those that are written
        self._inside: dict[tuple[str, int], tuple[object, bool]] = {}
        self._private_index: dict[tuple[str, int], tuple[object, tuple[Expr, ...]]] = {}
        self._row_index: dict[int, tuple[object, tuple[Expr, ...]]] = {}
        self._count = 0
        self._epoch = 0

    def changed(self, alias: str) -> None:
        """Forget what is known about the elements of a buffer."""
        self._count += 1
        self.versions[alias] = self._count

    def forget(self, names: Iterable[str]) -> None:
        """Forget what is known of buffers that something has written."""
        for name in names:
            if (storage := self.storage.get(name)) is not None:
                self.changed(storage.alias)

    def fence(self) -> None:
        """Load anew from here on: neither this builder nor LLVM reuses or moves a load across."""
        self._epoch += 1
        self.builder.line('call void asm sideeffect "", "~{memory}"()')

    def place(self, load: Load) -> object:
        """What tells the memory a load reads from that of other loads; None for registers."""
        storage = self.storage[load.buffer]
        if storage.base is None:
            return None
        index = self._with_lane(storage, load.index)
        return storage.name, self.indices.element(index, storage.strides)

    # Loads.

    def load(self, buffer: str, index: tuple[Expr, ...]) -> Val:
        """The element at an index; a vector where the index reads the lane."""
        return self._harmless(buffer, index, lambda: self._load(buffer, index))

    def _load(self, buffer: str, index: tuple[Expr, ...]) -> Val:
        storage = self.storage[buffer]
        index = self._with_lane(storage, index)
        flat = self.indices.element(index, storage.strides)
        if storage.base is None:
            return self._in_registers.read(storage, index, flat)
        if flat.lane == 0:
            return self._load_at(storage, flat, 0)
        if flat.lane == 1:
            return self._load_at(storage, flat, self.indices.lanes)
        if flat.lane is not None and self.mask is not None:
            return self._gather(storage, flat)
        if (byte := byte_of(storage, index, self.indices.lanes, self.arith.target)) is not None:
            return look_up(self.builder, self._table(storage), self.indices.evaluate(byte))
        if (row := self._row(storage, index)) is not None:
            return pick(self.builder, self._load_at(storage, row[0], self.indices.lanes), row[1])
        steps = self._steps(storage, index, flat)
        if steps is not None and self.mask is None:
            found = self._load_window(storage, *steps)
            if found is not None:
                return found
            if flat.lane is not None and self._has_gather(storage):
                return self._gather(storage, flat)
        return self.indices.gather(self._each_lane(buffer, index, storage))

    def _each_lane(self, buffer: str, index: tuple[Expr, ...], storage: Storage) -> list[Val]:
        """A scalar load for each lane."""
        indices = self.indices
        vectors = {
            n: vector_of(indices, i) for n, i in enumerate(index) if is_from_data(indices, i)
        }
        if not vectors:
            return self._lane_by_lane(lambda: self.load(buffer, index), storage)
        lanes = iter(range(indices.lanes))

        def one() -> Val:
            lane, at = next(lanes), list(index)
            for n, vector in vectors.items():
                at[n] = indices.part(vector, lane)
            return self.load(buffer, tuple(at))

        return self._lane_by_lane(one, storage)

    def load_word(self, buffer: str, index: tuple[Expr, ...], size: int = 4) -> Val:
        """Neighbours of `size` bytes as one integer; a vector where the index reads the lane."""
        return self._harmless(buffer, index, lambda: self._load_word(buffer, index, size))

    def _load_word(self, buffer: str, index: tuple[Expr, ...], size: int) -> Val:
        storage = self.storage[buffer]
        flat = self.indices.element(index, storage.strides)
        if flat.lane in (0, size // storage.dtype.size_bytes):
            return self._load_at(storage, flat, self.indices.lanes if flat.lane else 0, size)
        parts = self._lane_by_lane(lambda: self.load_word(buffer, index, size), storage)
        return self.indices.gather(parts)

    def _harmless(self, buffer: str, index: tuple[Expr, ...], emit: Callable[[], Val]) -> Val:
        """What is loaded at an index, without a mask where reading more than is used does no harm.

        That is where all lanes may read the element, and what tells which one.
        """
        mask = self.mask
        reads = chain([(buffer, index)], ((x.buffer, x.index) for i in index for x in loads(i)))
        if mask is not None and all(self.surely_inside(*read) for read in reads):
            self.mask = None
        found = emit()
        self.mask = mask
        return found

    def surely_inside(self, buffer: str, index: tuple[Expr, ...]) -> bool:
        """Whether an index stays inside its buffer for all values of the variables."""
        key = (buffer, id(index))
        found = self._inside.get(key)
        if found is None:
            bounds = self.indices.bounds
            shape = self.storage[buffer].shape
            inside = all(
                surely_at_most(0, i, bounds) and surely_less(i, size, bounds)
                for i, size in zip(index, shape, strict=False)  # the lane may follow
            )
            found = self._inside[key] = (index, inside)
        return found[1]

    def is_uniform(self, load: Load) -> bool:
        """Whether a load reads one element of memory for all lanes."""
        storage = self.storage[load.buffer]
        index = self._with_lane(storage, load.index)
        return storage.base is not None and self.indices.element(index, storage.strides).lane == 0

    def is_shared(self, buffer: str, index: tuple[Expr, ...]) -> bool:
        """Whether all lanes mean the same element."""
        storage = self.storage[buffer]
        index = self._with_lane(storage, index)
        return self.indices.element(index, storage.strides).lane == 0

    def _with_lane(self, storage: Storage, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """The index with the lane behind it, for a buffer that is private to each lane."""
        if not storage.private or len(index) == len(storage.strides):
            return index
        key = (storage.private, id(index))
        found = self._private_index.get(key)
        if found is None:
            found = (index, (*index, Var(storage.private)))
            self._private_index[key] = found
        return found[1]

    def _load_at(self, storage: Storage, flat: Flat, lanes: int, word: int = 0) -> Val:
        """Consecutive elements, or one; as integers of `word` bytes each where that is not 0."""
        assert storage.base is not None, "registers have no addresses"
        size = storage.dtype.size_bytes
        at = self.indices.pointer(storage.base, flat, size)
        mask = self.mask if lanes else None
        key = self._load_key(flat, lanes, storage, mask, word)
        found = self.builder.recall(key)
        if found is None:
            elem = f"i{8 * word}" if word else MEMORY_TYPES[storage.dtype]
            if mask is None:
                text = f"load {type_of(elem, lanes)}, {at}, align {size}"
                found = self.builder.fresh(text, elem, lanes)
            else:
                count = self._first_lanes(mask, word or size, "avx")
                found = masked_load(self.builder, at, elem, lanes, size, mask, count)
            if not word:
                found = self.arith.from_memory(found, storage.dtype)
            self.builder.remember(key, found)
            if self.ahead and lanes and storage.name in self.given:
                ask_ahead(self.builder, storage, flat, at, self.ahead, lanes)
        return found

    def _load_key(
        self, flat: Flat, lanes: int, storage: Storage, mask: Val | None, word: int = 0
    ) -> tuple[Hashable, ...]:
        version = self.versions.get(storage.alias, 0)
        masked_by = mask.ref if mask else ""
        place = (storage.name, flat.rest, flat.const)
        return ("load", word, *place, lanes, storage.alias, version, masked_by, self._epoch)

    def _has_gather(self, storage: Storage) -> bool:
        features = self.arith.target.features
        return "avx512f" in features and storage.dtype.size_bytes >= 4

    def _pointers(self, storage: Storage, flat: Flat) -> Val:
        assert storage.base is not None
        assert flat.lane is not None
        size, lanes = storage.dtype.size_bytes, self.indices.lanes
        at = self.indices.pointer(storage.base, flat, size)
        steps = lane_constants([flat.lane * size * n for n in range(lanes)], "i64")
        return self.builder.op(f"getelementptr i8, {at}, {steps}", "ptr", lanes)

    def _gather(self, storage: Storage, flat: Flat) -> Val:
        elem, at = MEMORY_TYPES[storage.dtype], self._pointers(storage, flat)
        mask = self.mask or constant(True, "i1", self.indices.lanes)
        raw = gather(self.builder, at, elem, storage.dtype.size_bytes, mask)
        return self.arith.from_memory(raw, storage.dtype)

    def _table(self, storage: Storage) -> list[Val]:
        """All of a short buffer of bytes, whichever lanes run."""
        mask, self.mask = self.mask, None
        start = self.indices.element((ZERO,), storage.strides)
        places = range(0, ENTRIES, LANES)
        found = [self._load_at(storage, start._replace(const=n), LANES) for n in places]
        self.mask = mask
        return found

    def _steps(
        self, storage: Storage, index: tuple[Expr, ...], flat: Flat
    ) -> tuple[Flat, list[int]] | None:
        """The first lane's position and the distance of each lane from it, where constant."""
        if flat.lane is not None:
            first = flat._replace(lane=0)
            return first, [flat.lane * n for n in range(self.indices.lanes)]
        flats = self.indices.per_lane(lambda: self.indices.element(index, storage.strides))
        if any(f.rest != flats[0].rest for f in flats) or self.indices.reads_memory(flats[0]):
            return None
        return flats[0], [f.const - flats[0].const for f in flats]

    def _row(self, storage: Storage, index: tuple[Expr, ...]) -> tuple[Flat, list[int]] | None:
        """The vector that all lanes read an element of, and which ones: a line as long as it."""
        lanes = self.indices.lanes
        if self.mask is not None or storage.shape[-1:] != (Const(lanes, INDEX),):
            return None
        if len(index) != len(storage.shape) or storage.strides[-1] != ONE:
            return None
        _, start = self._row_index.setdefault(id(index), (index, (*index[:-1], ZERO)))
        row = self.indices.element(start, storage.strides)
        places = self.indices.per_lane(lambda: self.indices.flat(index[-1]))
        known = all(not self.indices.rests[p.rest] and 0 <= p.const < lanes for p in places)
        return (row, [p.const for p in places]) if known and row.lane == 0 else None

    def _load_window(self, storage: Storage, first: Flat, steps: list[int]) -> Val | None:
        """Load the whole range the lanes read, in at most `WINDOW` vectors, and pick from it."""
        lanes, low = len(steps), min(steps)
        span = max(steps) - low + 1
        start = first._replace(const=first.const + low)
        if span == 1:
            return self._load_at(storage, start, 0)
        width = min(span, lanes)
        begins = [*range(0, span - width, width), span - width]
        if len(begins) > min(WINDOW, max(2, lanes - 1)):
            return None
        one, *others = (
            self._load_at(storage, start._replace(const=start.const + at), width) for at in begins
        )
        places = [s - low for s in steps]
        if places == list(range(width)):
            return one
        end, picked = width, places
        for at, two in zip(begins[1:] or [span], others or [poison(one.elem, width)], strict=True):
            # What is in neither is undefined until the vector that holds it comes.
            lane = [
                q if p < end else width + min(p - at, width - 1)
                for p, q in zip(places, picked, strict=True)
            ]
            text = f"shufflevector {one}, {two}, {lane_constants(lane, 'i32')}"
            one = self.builder.op(text, one.elem, lanes)
            end, picked = at + width, list(range(lanes))
        return one

    def _lane_by_lane(self, emit: Callable[[], Val], storage: Storage) -> list[Val]:
        """Emit a scalar load for each lane; a lane that is off gives an undefined value."""
        mask = self.mask
        self.mask = None
        lanes = iter(range(self.indices.lanes))

        def one() -> Val:
            lane = next(lanes)
            if mask is None:
                return emit()
            on = self.builder.op(f"extractelement {mask}, i64 {lane}", "i1")
            return self.builder.when(on, emit)

        parts = self.indices.per_lane(one)
        self.mask = mask
        return parts

    def register_chunks(self, buffer: str, index: tuple[Expr, ...]) -> list[Chunk]:
        """The elements of a register buffer that a store to `index` writes."""
        storage = self.storage[buffer]
        index = self._with_lane(storage, index)
        flat = self.indices.element(index, storage.strides)
        return self._in_registers.chunks(storage, index, flat)

    # Stores.

    def store(self, buffer: str, index: tuple[Expr, ...], value: Val) -> None:
        """Write an element, or one in each lane that runs."""
        storage = self.storage[buffer]
        index = self._with_lane(storage, index)
        flat = self.indices.element(index, storage.strides)
        if storage.base is None:
            self._in_registers.write(storage, index, flat, value, self.mask)
            return
        self.changed(storage.alias)
        lanes = self.indices.lanes
        if flat.lane == 1:
            self._store_at(storage, flat, self.indices.splat(value, lanes))
        elif flat.lane == 0 and not (value.lanes and self.mask):
            if value.lanes:  # all lanes write one element: the last one wins
                text = f"extractelement {value}, i64 {value.lanes - 1}"
                value = self.builder.op(text, value.elem)
            self._store_at(storage, flat, value)
        elif flat.lane is not None and flat.lane != 0 and self.mask is not None:
            self._scatter(storage, flat, self.indices.splat(value, lanes))
        else:
            self._store_lane_by_lane(buffer, index, value)

    def _store_at(self, storage: Storage, flat: Flat, value: Val) -> None:
        assert storage.base is not None
        size = storage.dtype.size_bytes
        at = self.indices.pointer(storage.base, flat, size)
        raw = self.arith.to_memory(value, storage.dtype)
        mask = self.mask if value.lanes else None
        if mask is not None:
            count = self._first_lanes(mask, size, "avx512f")
            masked_store(self.builder, raw, at, size, mask, count)
            return
        self.builder.line(f"store {raw}, {at}, align {size}")
        is_wide = raw.lanes * size >= MIN_WRITE_BYTES and storage.name in self.results
        if is_wide and is_far(storage, self.arith.target):
            ask_ahead(self.builder, storage, flat, at, WRITE_AHEAD, raw.lanes, to_write=True)
        if storage.dtype not in (DType.F16, DType.BF16) and storage.dtype not in NARROW_FLOATS:
            self.builder.remember(self._load_key(flat, value.lanes, storage, None), value)

    def _first_lanes(self, mask: Val, size: int, words: str) -> Val | None:
        """How many lanes a mask has, if only the first; None where a feature masks them quickly.

        That is `words` for elements of at least four bytes.
        """
        quick = words if size >= 4 else "avx512bw"
        return None if quick in self.arith.target.features else self.indices.counts.get(mask.ref)

    def _scatter(self, storage: Storage, flat: Flat, value: Val) -> None:
        raw = self.arith.to_memory(value, storage.dtype)
        at = self._pointers(storage, flat)
        assert self.mask is not None
        scatter(self.builder, raw, at, storage.dtype.size_bytes, self.mask)

    def _store_lane_by_lane(self, buffer: str, index: tuple[Expr, ...], value: Val) -> None:
        lanes = iter(range(self.indices.lanes))

        def one() -> Val:
            part = value
            if value.lanes:
                text = f"extractelement {value}, i64 {next(lanes)}"
                part = self.builder.op(text, value.elem)
            self.store(buffer, index, part)
            return Val("", "void")

        self._lane_by_lane(one, self.storage[buffer])
        self.changed(self.storage[buffer].alias)
