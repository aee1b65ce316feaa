"""Packing a tile: 32 x 16 floats become planes of bf16, in 16 lines of 16 pairs of summands."""

from __future__ import annotations

from dlc.codegen.llvm.ir import Builder, Val, lane_constants

ROWS = 16
LINE_BYTES = 64
VECTOR_BYTES = 64
_CONVERT = "llvm.x86.avx512bf16.cvtneps2bf16.512"


def pack_tile(
    builder: Builder, source: Val, row: int, to: Val, plane: int, count: int, *, columns: bool
) -> None:
    """Emit the packing of one tile.

    Args:
        builder: Where to emit.
        source: The first element of 32 vectors of 16, or, with `columns`, of 16 times two that
            stand side by side.
        row: Bytes from one vector, or pair of vectors, to the next.
        to: The first line of the tile's first plane.
        plane: Bytes from one plane to the next.
        count: How many planes.
        columns: Whether a row of the source is a column of the tile.
    """
    builder.declarations.use(_CONVERT, "<16 x bfloat>", "<16 x float>")
    lines: list[list[Val]] = []  # of each pair of vectors, the pairs of each plane
    for n in range(ROWS):
        if columns:
            first, second = n * row, n * row + VECTOR_BYTES
        else:
            first, second = 2 * n * row, (2 * n + 1) * row
        pair = [_load(builder, source, offset) for offset in (first, second)]
        lines.append(_planes(builder, pair, count, columns=columns))
    for p in range(count):
        found = [line[p] for line in lines]
        if columns:
            found = _transposed(builder, found)
        for n, line in enumerate(found):
            at = builder.op(f"getelementptr i8, {to}, i64 {plane * p + n * LINE_BYTES}", "ptr")
            builder.line(f"store {line}, {at}, align 2")


def _load(builder: Builder, source: Val, offset: int) -> Val:
    at = builder.op(f"getelementptr i8, {source}, i64 {offset}", "ptr")
    return builder.fresh(f"load <16 x float>, {at}, align 4", "float", ROWS)


def _planes(builder: Builder, pair: list[Val], count: int, *, columns: bool) -> list[Val]:
    """The planes of two vectors as 16 numbers of 32 bits.

    Those are the first's element below the second's, or, with `columns`, neighbours of the first,
    then of the second.
    """
    found: list[Val] = []
    for position in range(count):
        halves = [builder.op(f"call <16 x bfloat> @{_CONVERT}({x})", "bfloat", ROWS) for x in pair]
        bits = [builder.op(f"bitcast {h} to <16 x i16>", "i16", ROWS) for h in halves]
        wide = [builder.op(f"zext {b} to <16 x i32>", "i32", ROWS) for b in bits]
        upper = [builder.op(f"shl {w}, splat (i32 16)", "i32", ROWS) for w in wide]
        if columns:
            picked = lane_constants(list(range(2 * ROWS)), "i32")
            both = builder.op(f"shufflevector {bits[0]}, {bits[1]}, {picked}", "i16", 2 * ROWS)
            found.append(builder.op(f"bitcast {both} to <16 x i32>", "i32", ROWS))
        else:
            found.append(builder.op(f"or {wide[0]}, {upper[1].ref}", "i32", ROWS))
        if position + 1 < count:
            plane = [builder.op(f"bitcast {u} to <16 x float>", "float", ROWS) for u in upper]
            pair = [
                builder.op(f"fsub {x}, {p.ref}", "float", ROWS)
                for x, p in zip(pair, plane, strict=True)
            ]
    return found


def _transposed(builder: Builder, lines: list[Val]) -> list[Val]:
    """16 vectors of 16 with rows and columns exchanged: blocks of 1, 2, 4 and 8 change places."""
    for step in (1, 2, 4, 8):
        moved = list(lines)
        upper = [n if not n & step else ROWS + n - step for n in range(ROWS)]
        lower = [n + step if not n & step else ROWS + n for n in range(ROWS)]
        for n in range(ROWS):
            if n & step:
                continue
            for place, picked in ((n, upper), (n + step, lower)):
                table = lane_constants(picked, "i32")
                text = f"shufflevector {lines[n]}, {lines[n + step]}, {table}"
                moved[place] = builder.op(text, "i32", ROWS)
        lines = moved
    return lines
