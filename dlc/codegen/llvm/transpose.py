"""Transposes of vectors in registers, by shuffles of two vectors each.

Two kinds of stages make a transpose, as many of both together as doublings make the number of
lanes. First the rows of each group are *zipped* within blocks of 128 bits, then whole blocks of
different groups are *unzipped*: both are one instruction in all vector units that there are, at
the full width of a vector.

Before:
    a0 a1 a2 a3    b0 b1 b2 b3    c0 c1 c2 c3    d0 d1 d2 d3

After the rows at half the distance are zipped:
    a0 c0 a1 c1    a2 c2 a3 c3    b0 d0 b1 d1    b2 d2 b3 d3

After they are zipped again:
    a0 b0 c0 d0    a1 b1 c1 d1    a2 b2 c2 d2    a3 b3 c3 d3

Source: H. S. Stone, "Parallel Processing with the Perfect Shuffle", IEEE Transactions on Computers
C-20 (1971): log2(n) perfect shuffles transpose. Within 128 bits that is UNPCKLPS and UNPCKHPS of
x86 and ZIP1 and ZIP2 of AArch64; of blocks, VPERM2F128 and VSHUFF32X4.
"""

from __future__ import annotations

from dlc.codegen.llvm.ir import Builder, Val, lane_constants, poison

BLOCK_BYTES = 16  # within which vector units interleave elements at any width of a vector
SIZES = {"i8": 1, "i16": 2, "half": 2, "i32": 4, "float": 4, "i64": 8, "double": 8}


def transpose(builder: Builder, rows: list[Val]) -> list[Val]:
    """The columns of rows that are vectors of one shape.

    Shapes that are not square, or no power of two, are computed as part of one that is.
    """
    width, elem = rows[0].lanes, rows[0].elem
    size = 1 << (max(len(rows), width) - 1).bit_length()
    unit = min(size, BLOCK_BYTES // SIZES[elem])
    found = [_resize(builder, row, size) for row in rows]
    found += [poison(elem, size)] * (size - len(rows))
    found = _zip_rows(builder, found, unit)
    found = _unzip_blocks(builder, found, unit)
    return [_resize(builder, column, len(rows)) for column in found[:width]]


def _zip_rows(builder: Builder, rows: list[Val], unit: int) -> list[Val]:
    """Transpose `unit` rows at a time within blocks of `unit` lanes."""
    size, half = len(rows), unit // 2
    ends = [
        [
            at + n * size
            for b in range(first, size, unit)
            for at in range(b, b + half)
            for n in (0, 1)
        ]
        for first in (0, half)
    ]
    for _ in range(unit.bit_length() - 1):
        pairs = [
            (rows[g + j], rows[g + j + half]) for g in range(0, size, unit) for j in range(half)
        ]
        rows = [_shuffle(builder, a, b, places) for a, b in pairs for places in ends]
    return rows


def _unzip_blocks(builder: Builder, rows: list[Val], unit: int) -> list[Val]:
    """Transpose blocks of `unit` lanes, one of each group of `unit` rows."""
    size = len(rows)
    blocks = range(0, 2 * size, unit)
    ends = [[at + n for at in blocks[part::2] for n in range(unit)] for part in (0, 1)]
    for _ in range((size // unit).bit_length() - 1):
        # Of each two groups that follow each other, even blocks come first and odd ones behind.
        pairs = [
            (rows[g + j], rows[g + j + unit]) for g in range(0, size, 2 * unit) for j in range(unit)
        ]
        rows = [_shuffle(builder, a, b, places) for places in ends for a, b in pairs]
    return rows


def _shuffle(builder: Builder, a: Val, b: Val, places: list[int]) -> Val:
    text = f"shufflevector {a}, {b}, {lane_constants(places, 'i32')}"
    return builder.op(text, a.elem, len(places))


def _resize(builder: Builder, value: Val, lanes: int) -> Val:
    """The first lanes of a vector; those it does not have are undefined."""
    if value.lanes == lanes:
        return value
    places = [n if n < value.lanes else value.lanes for n in range(lanes)]
    return _shuffle(builder, value, poison(value.elem, value.lanes), places)
