"""Accesses to memory of the lanes that a mask has, and of lanes that lie apart.

`align` is that of one element, in bytes. Lanes that are off read 0, and write nothing.

A `count` stands for a mask of the first lanes: how many are on. Their elements are accessed in
parts, one for each bit of the number: at most once eight elements, once four, and so on.
That is for machines without masks for elements of a size, where LLVM would branch on each lane, and
those with slow ones: a masked store of AVX takes 12 to 18 cycles on AMD's Zen 1 to 3. Others with
AVX alone, which store a vector under a mask in one, get parts as well: it is the last of a row.

Source: LLVM Language Reference, "Masked Vector Load and Store Intrinsics" and the one after it;
A. Fog, "Instruction tables", VMASKMOVPS.
"""

from __future__ import annotations

from functools import partial

from dlc.codegen.llvm.ir import Builder, Val, lane_constants, mangled, type_of


def masked_load(
    builder: Builder, at: Val, elem: str, lanes: int, align: int, mask: Val, count: Val | None
) -> Val:
    """Consecutive elements from an address."""
    kind = type_of(elem, lanes)
    if count is not None:
        return _load_first(builder, at, elem, lanes, align, count)
    name = f"llvm.masked.load.{mangled(elem, lanes)}.p0"
    builder.declarations.use(name, kind, f"ptr, {mask.type}, {kind}")
    operands = f"ptr align {align} {at.ref}, {mask}, {kind} zeroinitializer"
    return builder.fresh(f"call {kind} @{name}({operands})", elem, lanes)


def masked_store(
    builder: Builder, value: Val, at: Val, align: int, mask: Val, count: Val | None
) -> None:
    """Write consecutive elements."""
    if count is not None:
        _store_first(builder, value, at, align, count)
        return
    name = f"llvm.masked.store.{mangled(value.elem, value.lanes)}.p0"
    builder.declarations.use(name, "void", f"{value.type}, ptr, {mask.type}")
    builder.line(f"call void @{name}({value}, ptr align {align} {at.ref}, {mask})")


def _load_first(builder: Builder, at: Val, elem: str, lanes: int, align: int, count: Val) -> Val:
    """The parts from the smallest, which is the last one, to the largest: each goes before it."""
    found = Val("zeroinitializer", elem, 1)
    for size in _parts(lanes):
        found = _behind_part(builder, found, at, align, count, min(2 * size, lanes))
    return found


def _behind_part(builder: Builder, found: Val, at: Val, align: int, count: Val, lanes: int) -> Val:
    """What was found behind as many elements, if `count` has such a part; filled up with zeros."""
    elem, size = found.elem, found.lanes
    picked = lane_constants(range(lanes), "i32")

    def there() -> Val:
        start = _start(builder, at, elem, size, count)
        part = builder.fresh(f"load {found.type}, {start}, align {align}", elem, size)
        return builder.fresh(f"shufflevector {part}, {found}, {picked}", elem, lanes)

    def missing() -> Val:
        text = f"shufflevector {found}, {found.type} zeroinitializer, {picked}"
        return builder.fresh(text, elem, lanes)

    return builder.phi(builder.fork(_has(builder, count, size), [there, missing]))


def _store_first(builder: Builder, value: Val, at: Val, align: int, count: Val) -> None:
    """The parts by way of the stack, where each can be loaded from its place."""
    key = ("slot", value.type)  # values lie there one after the other
    slot = builder.recall(key) or Val(builder.alloca(value.type), "ptr")
    builder.remember(key, slot, 0)
    builder.line(f"store {value}, {slot}")

    def copy(size: int) -> Val:
        source, target = (_start(builder, x, value.elem, size, count) for x in (slot, at))
        kind = type_of(value.elem, size)
        part = builder.fresh(f"load {kind}, {source}, align {align}", value.elem, size)
        builder.line(f"store {part}, {target}, align {align}")
        return Val("", "void")

    for size in reversed(_parts(value.lanes)):
        builder.when(_has(builder, count, size), partial(copy, size))


def _parts(lanes: int) -> list[int]:
    """The sizes of parts that a number of up to `lanes` elements has, the smallest first."""
    return [1 << n for n in range(lanes.bit_length())]


def _has(builder: Builder, count: Val, size: int) -> Val:
    """Whether a number of elements has a part of a size."""
    bit = builder.op(f"and {count}, {size}", "i64")
    return builder.op(f"icmp ne {bit}, 0", "i1")


def _start(builder: Builder, at: Val, elem: str, size: int, count: Val) -> Val:
    """The address of a part, which lies behind the larger ones."""
    before = builder.fresh(f"and {count}, {-2 * size}", "i64")
    return builder.fresh(f"getelementptr {elem}, {at}, {before}", "ptr")


def gather(builder: Builder, at: Val, elem: str, align: int, mask: Val) -> Val:
    """An element from each of a vector of addresses."""
    kind = type_of(elem, at.lanes)
    name = f"llvm.masked.gather.{mangled(elem, at.lanes)}.v{at.lanes}p0"
    builder.declarations.use(name, kind, f"{at.type}, {mask.type}, {kind}")
    operands = f"{at.type} align {align} {at.ref}, {mask}, {kind} zeroinitializer"
    return builder.fresh(f"call {kind} @{name}({operands})", elem, at.lanes)


def scatter(builder: Builder, value: Val, at: Val, align: int, mask: Val) -> None:
    """Write an element to each of a vector of addresses."""
    name = f"llvm.masked.scatter.{mangled(value.elem, value.lanes)}.v{value.lanes}p0"
    builder.declarations.use(name, "void", f"{value.type}, {at.type}, {mask.type}")
    builder.line(f"call void @{name}({value}, {at.type} align {align} {at.ref}, {mask})")
