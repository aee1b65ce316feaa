"""Read the dynamic symbols of a 64-bit little-endian ELF shared object.

Source: System V ABI, edition 4.1, chapters 4 (object files) and 5 (dynamic linking).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SHT_DYNSYM = 11


@dataclass(frozen=True, slots=True)
class DynamicSymbols:
    """What a shared object offers to others and what it needs from them."""

    defined: frozenset[str]
    undefined: frozenset[str]


def read_dynamic_symbols(path: Path) -> DynamicSymbols:
    """The dynamic symbols of the shared object at `path`, which a linker has just written."""
    with path.open("rb") as file:
        header = file.read(64)
        assert header[:6] == b"\x7fELF\x02\x01", "a 64-bit little-endian ELF file"
        (offset,) = struct.unpack_from("<Q", header, 0x28)
        size, count = struct.unpack_from("<HH", header, 0x3A)
        file.seek(offset)
        table = file.read(size * count)
        sections = [_SECTION.unpack_from(table, i * size) for i in range(count)]

        def content(index: int) -> bytes:
            file.seek(sections[index][4])
            return file.read(sections[index][5])

        defined: set[str] = set()
        undefined: set[str] = set()
        for index, section in enumerate(sections):
            if section[1] != _SHT_DYNSYM:
                continue
            names = content(section[6])
            for start, _, _, where, _, _ in _SYMBOL.iter_unpack(content(index)):
                name = names[start : names.index(b"\0", start)].decode()
                (defined if where else undefined).add(name)
    return DynamicSymbols(frozenset(defined - {""}), frozenset(undefined - {""}))
