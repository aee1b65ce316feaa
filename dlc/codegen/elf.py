"""The little of ELF that dlc needs: weights in a linked file, and its dynamic symbols.

Weights do not go through the linker, which would write them a second time and ends at 2 GiB: it
only reserves the memory, and the linked file gets the content afterwards.

Source: System V ABI, edition 4.1, chapters 4 (object files) and 5 (dynamic linking).
"""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from dlc.core.errors import CodegenError

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_IDENT = b"\x7fELF\x02\x01\x01"  # 64 bits, little endian, version 1
_ET_REL = 1
_SHT_PROGBITS, _SHT_SYMTAB, _SHT_STRTAB, _SHT_NOTE, _SHT_NOBITS, _SHT_DYNSYM = 1, 2, 3, 7, 8, 11
_SHF_WRITE, _SHF_ALLOC = 1, 2
_PT_LOAD, _PT_NOTE, _PF_R = 1, 4, 4
_STB_GLOBAL, _STT_OBJECT, _STV_HIDDEN = 1, 1, 2
# Source: System V ABI, list of e_machine values.
_MACHINES = {"x86_64": 62, "aarch64": 183}
SECTION = ".dlc.weights"


def write_reservation(path: Path, arch: str, symbol: str, alignment: int, size: int) -> None:
    """Write an object file that makes a linker reserve memory for `SECTION`, without content.

    The memory is zeroed memory, which linkers of every kind put behind all else and do not write
    to the file. A note comes with it: the entry that it gets in the table of segments is the one
    that `fill_reservation` needs.

    Args:
        path: where.
        arch: `x86_64` or `aarch64`.
        symbol: a hidden symbol for the first byte of the section.
        alignment: of the section, in bytes.
        size: of the section, in bytes.
    """
    note = struct.pack("<III4s4x", 4, 4, 1, b"dlc\0")
    kind = _STB_GLOBAL << 4 | _STT_OBJECT
    symbols = bytes(_SYMBOL.size) + _SYMBOL.pack(1, kind, _STV_HIDDEN, 1, 0, size)
    names = b"\0" + symbol.encode() + b"\0"
    titles = b"\0.dlc.weights\0.note.dlc\0.note.GNU-stack\0.symtab\0.strtab\0.shstrtab\0"
    at = list(itertools.accumulate(map(len, (note, symbols, names, titles)), initial=_HEADER.size))
    pad = -at[-1] % 8  # lld wants the table aligned
    # Null, memory, note, "the stack is not executable", symbols, their names, names of sections.
    rows = (
        ("", 0, 0, 0, 0, 0, 0, 0, 0),
        (SECTION, _SHT_NOBITS, _SHF_WRITE | _SHF_ALLOC, at[0], size, 0, 0, alignment, 0),
        (".note.dlc", _SHT_NOTE, _SHF_ALLOC, at[0], len(note), 0, 0, 4, 0),
        (".note.GNU-stack", _SHT_PROGBITS, 0, at[1], 0, 0, 0, 1, 0),
        (".symtab", _SHT_SYMTAB, 0, at[1], len(symbols), 5, 1, 8, _SYMBOL.size),
        (".strtab", _SHT_STRTAB, 0, at[2], len(names), 0, 0, 1, 0),
        (".shstrtab", _SHT_STRTAB, 0, at[3], len(titles), 0, 0, 1, 0),
    )
    sizes = (_HEADER.size, 0, 0, _SECTION.size, len(rows), len(rows) - 1)
    header = _HEADER.pack(_IDENT, _ET_REL, _MACHINES[arch], 1, 0, 0, at[-1] + pad, 0, *sizes)
    table = b"".join(
        _SECTION.pack(titles.index(name.encode() + b"\0"), type_, flags, 0, *rest)
        for name, type_, flags, *rest in rows
    )
    path.write_bytes(b"".join((header, note, symbols, names, titles, bytes(pad), table)))


def fill_reservation(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Append the content of `SECTION` to a linked file, and map it where memory was reserved.

    The note's entry in the table of segments becomes that of the content, which is read-only; the
    segment that held the reserved memory ends before it.

    Raises:
        CodegenError: the linker arranged the file in a way that leaves no place for it.
    """
    with path.open("r+b") as file:
        image = _Image(file)
        found = [n for n, row in enumerate(image.sections) if image.title(row) == SECTION]
        if len(found) != 1:
            raise _misplaced(path, "the section is not there")
        section = image.sections[found[0]]
        start, size, alignment = section[3], section[5], section[8]
        holders = [
            n
            for n, row in enumerate(image.segments)
            if row[0] == _PT_LOAD and row[3] <= start < row[3] + row[6] <= start + size
        ]
        notes = [n for n, row in enumerate(image.segments) if row[0] == _PT_NOTE]
        if not holders or not notes:
            raise _misplaced(path, "it is not the last of its segment, or there is no note")
        end = file.seek(0, os.SEEK_END)
        offset = end + (start - end) % alignment
        file.write(bytes(offset - end))
        write(file)
        if file.tell() != offset + size:
            raise _misplaced(path, f"it has {file.tell() - offset} bytes, not {size}")
        kind, flags, at, virtual, physical, in_file, _, step = image.segments[holders[0]]
        reach = start - virtual
        row = (kind, flags, at, virtual, physical, min(in_file, reach), reach, step)
        image.segments[holders[0]] = row
        image.segments[notes[0]] = (_PT_LOAD, _PF_R, offset, start, start, size, size, alignment)
        image.sections[found[0]] = (
            *(section[0], _SHT_PROGBITS, _SHF_ALLOC, start, offset, size),
            *section[6:],
        )
        image.store()


class _Image:
    """The tables of a linked file."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        header = self._read(0, _HEADER.size)
        assert header[:6] == _IDENT[:6], "a 64-bit little-endian ELF file"
        fields = _HEADER.unpack(header)
        self.segments_at, self.sections_at = fields[5:7]
        segments, sections, titles = fields[10], fields[12], fields[13]
        table = self._read(self.segments_at, segments * _SEGMENT.size)
        self.segments = list(_SEGMENT.iter_unpack(table))
        table = self._read(self.sections_at, sections * _SECTION.size)
        self.sections = list(_SECTION.iter_unpack(table))
        self._titles = self.content(titles)

    def _read(self, at: int, size: int) -> bytes:
        self.file.seek(at)
        return self.file.read(size)

    def content(self, section: int) -> bytes:
        """The bytes of a section."""
        return self._read(*self.sections[section][4:6])

    def title(self, section: tuple[int, ...]) -> str:
        """The name of a section."""
        start = section[0]
        return self._titles[start : self._titles.index(b"\0", start)].decode()

    def store(self) -> None:
        """Write the tables back. Loaders want the segments in memory in order of their place."""
        loaded = iter(sorted((r for r in self.segments if r[0] == _PT_LOAD), key=lambda r: r[3]))
        rest = iter([r for r in self.segments if r[0] != _PT_LOAD])
        # Where a table begins with loaded segments and others, so does the new one.
        first = [next(rest)] if self.segments[0][0] != _PT_LOAD else []
        self.file.seek(self.segments_at)
        self.file.write(b"".join(_SEGMENT.pack(*row) for row in (*first, *loaded, *rest)))
        self.file.seek(self.sections_at)
        self.file.write(b"".join(_SECTION.pack(*row) for row in self.sections))


def _misplaced(path: Path, reason: str) -> CodegenError:
    detail = f"there is no place for {SECTION}: {reason}"
    return CodegenError(stage="the linker", unit=path.name, reason=detail)


@dataclass(frozen=True, slots=True)
class DynamicSymbols:
    """What a shared object offers to others and what it needs from them."""

    defined: frozenset[str]
    undefined: frozenset[str]


def read_dynamic_symbols(path: Path) -> DynamicSymbols:
    """The dynamic symbols of the shared object at `path`, which a linker has just written."""
    with path.open("rb") as file:
        image = _Image(file)
        defined: set[str] = set()
        undefined: set[str] = set()
        for index, section in enumerate(image.sections):
            if section[1] != _SHT_DYNSYM:
                continue
            names = image.content(section[6])
            for start, _, _, where, _, _ in _SYMBOL.iter_unpack(image.content(index)):
                name = names[start : names.index(b"\0", start)].decode()
                (defined if where else undefined).add(name)
    return DynamicSymbols(frozenset(defined - {""}), frozenset(undefined - {""}))
