"""Tables of 256 bytes, picked from by a byte in each lane: two shuffles of 128 bytes each.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2: VPERMI2B, which goes
by the lowest seven bits of a byte.
"""

from __future__ import annotations

from dlc.codegen.llvm.ir import Builder, Val, constant
from dlc.codegen.llvm.lanes import narrowed, widened
from dlc.codegen.llvm.storage import Storage
from dlc.core.target import Target
from dlc.core.types import DType
from dlc.te.expr import Cast, Const, Expr

ENTRIES = 256
LANES = 64  # of a register
_PICK = "llvm.x86.avx512.vpermi2var.qi.512"


def byte_of(storage: Storage, index: tuple[Expr, ...], lanes: int, target: Target) -> Expr | None:
    """The byte that says which entry of a table an access means, where vectors look it up."""
    if "avx512vbmi" not in target.features or lanes > LANES:
        return None
    if storage.dtype not in (DType.I8, DType.U8):
        return None
    match storage.shape, index:
        case ((Const(value),), (Cast(_, byte),)) if value == ENTRIES and byte.dtype is DType.U8:
            return byte
        case _:
            return None


def look_up(builder: Builder, table: list[Val], byte: Val) -> Val:
    """The entries of a table, a register after the other, for the bytes in all lanes."""
    wide = widened(builder, byte, LANES)
    near, far = (builder.call(_PICK, wide, low, wide, high) for low, high in (table[:2], table[2:]))
    is_far = builder.op(f"icmp slt {wide}, {constant(0, 'i8', LANES).ref}", "i1", LANES)
    found = builder.op(f"select {is_far}, {far}, {near}", "i8", LANES)
    return narrowed(builder, found, byte.lanes)
