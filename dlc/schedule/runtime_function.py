"""Functions of the runtime that a host program calls: what no kernel can do.

`number` is the one by which `dlc/abi.h` knows a function.
"""

from __future__ import annotations

from dataclasses import dataclass

from dlc.core.types import DType


@dataclass(frozen=True, slots=True)
class RuntimeFunction:
    """Its number, how many sizes it takes, and the types of its buffers, of which it writes one."""

    number: int
    sizes: int
    inputs: tuple[DType, ...]
    output: DType


_TEXT = DType.I64  # by its number
_AUTOMATA = (DType.U16, DType.U8, DType.U16)
FUNCTIONS: dict[str, RuntimeFunction] = {
    "number": RuntimeFunction(0, 1, (DType.STR,), _TEXT),
    "text": RuntimeFunction(1, 1, (_TEXT,), DType.STR),
    "constant": RuntimeFunction(2, 1, (DType.U8, DType.I64), _TEXT),
    "concat": RuntimeFunction(3, 1, (_TEXT, _TEXT), _TEXT),
    "map": RuntimeFunction(4, 2, (_TEXT, DType.I32), _TEXT),
    "match": RuntimeFunction(5, 2, (_TEXT, DType.U16, DType.U8), DType.BOOL),
    "count_fields": RuntimeFunction(6, 2, (_TEXT, _TEXT), DType.I64),
    "fields": RuntimeFunction(7, 3, (_TEXT, _TEXT), _TEXT),
    "read_f64": RuntimeFunction(8, 1, (_TEXT,), DType.F64),
    "read_i64": RuntimeFunction(9, 1, (_TEXT,), DType.I64),
    "write_f32": RuntimeFunction(10, 1, (DType.F32,), _TEXT),
    "write_f64": RuntimeFunction(11, 1, (DType.F64,), _TEXT),
    "write_i64": RuntimeFunction(12, 1, (DType.I64,), _TEXT),
    "count_tokens": RuntimeFunction(13, 4, (_TEXT, *_AUTOMATA), DType.I64),
    "tokens": RuntimeFunction(14, 6, (_TEXT, *_AUTOMATA), _TEXT),
    "places": RuntimeFunction(15, 2, (_TEXT, _TEXT), DType.I64),
}
