"""Accesses to memory of the lanes that a mask has, and of lanes that lie apart.

`align` is that of one element, in bytes. Lanes that are off read 0, and write nothing.

Source: LLVM Language Reference, "Masked Vector Load and Store Intrinsics" and the one after it.
"""

from __future__ import annotations

from dlc.codegen.llvm.ir import Builder, Val, mangled, type_of


def masked_load(builder: Builder, at: Val, elem: str, lanes: int, align: int, mask: Val) -> Val:
    """Consecutive elements from an address."""
    kind = type_of(elem, lanes)
    name = f"llvm.masked.load.{mangled(elem, lanes)}.p0"
    builder.declarations.use(name, kind, f"ptr, {mask.type}, {kind}")
    operands = f"ptr align {align} {at.ref}, {mask}, {kind} zeroinitializer"
    return builder.fresh(f"call {kind} @{name}({operands})", elem, lanes)


def masked_store(builder: Builder, value: Val, at: Val, align: int, mask: Val) -> None:
    """Write consecutive elements."""
    name = f"llvm.masked.store.{mangled(value.elem, value.lanes)}.p0"
    builder.declarations.use(name, "void", f"{value.type}, ptr, {mask.type}")
    builder.line(f"call void @{name}({value}, ptr align {align} {at.ref}, {mask})")


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
