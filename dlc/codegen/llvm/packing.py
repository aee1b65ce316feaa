"""Packing a tile: 32 x 16 floats become planes of bf16, in 16 lines of 16 pairs of summands."""

from __future__ import annotations

from dlc.codegen.llvm.ir import Builder, Val, lane_constants

ROWS = 16
LINE_BYTES = 64
VECTOR_BYTES = 64
_CONVERT = "llvm.x86.avx512bf16.cvtne2ps2bf16.512"


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
    builder.declarations.use(_CONVERT, "<32 x bfloat>", "<16 x float>, <16 x float>")
    lines: list[list[Val]] = []  # of each pair of vectors, the pairs of each plane
    for n in range(ROWS):
        if columns:
            first, second = n * row, n * row + VECTOR_BYTES
        else:
            first, second = 2 * n * row, (2 * n + 1) * row
        pair = [_load(builder, source, offset) for offset in (first, second)]
        lines.append(_planes(builder, pair, count, columns=columns))
        if not columns:  # stored at once: registers do not hold all lines of all planes
            for p in range(count):
                _store(builder, lines[n][p], to, plane * p + n * LINE_BYTES)
    if columns:
        for p in range(count):
            for n, words in enumerate(_transposed(builder, [line[p] for line in lines])):
                _store(builder, words, to, plane * p + n * LINE_BYTES)


def _load(builder: Builder, source: Val, offset: int) -> Val:
    at = builder.op(f"getelementptr i8, {source}, i64 {offset}", "ptr")
    return builder.fresh(f"load <16 x float>, {at}, align 4", "float", ROWS)


def _store(builder: Builder, words: Val, to: Val, offset: int) -> None:
    at = builder.op(f"getelementptr i8, {to}, i64 {offset}", "ptr")
    builder.line(f"store {words}, {at}, align 2")


def _planes(builder: Builder, pair: list[Val], count: int, *, columns: bool) -> list[Val]:
    """The planes of two vectors as 16 numbers of 32 bits.

    Those are the first's element below the second's, or, with `columns`, neighbours of the first,
    then of the second.
    """
    found: list[Val] = []
    for position in range(count):
        first, second = pair
        rounded = builder.op(
            f"call <32 x bfloat> @{_CONVERT}({second}, {first})", "bfloat", 2 * ROWS
        )
        bits = builder.op(f"bitcast {rounded} to <32 x i16>", "i16", 2 * ROWS)
        mixed = [n // 2 + n % 2 * ROWS for n in range(2 * ROWS)]
        found.append(_words(builder, bits, list(range(2 * ROWS)) if columns else mixed))
        if position + 1 < count:
            words = _words(builder, bits, mixed)
            texts = f"shl {words}, splat (i32 16)", f"and {words}, splat (i32 {-1 << 16})"
            upper = [builder.op(text, "i32", ROWS) for text in texts]
            pair = [left_over(builder, x, y) for x, y in zip(pair, upper, strict=True)]
    return found


def _words(builder: Builder, bits: Val, picked: list[int]) -> Val:
    """Pairs of 16 bits in an order, as numbers of 32."""
    order = lane_constants(picked, "i32")
    text = f"shufflevector {bits}, {bits.type} poison, {order}"
    return builder.op(f"bitcast {builder.op(text, 'i16', 2 * ROWS)} to <16 x i32>", "i32", ROWS)


def left_over(builder: Builder, value: Val, rounded: Val) -> Val:
    """A vector of floats less what it is rounded to, whose bits are given."""
    plane = builder.op(f"bitcast {rounded} to {value.type}", "float", value.lanes)
    return builder.op(f"fsub {value}, {plane.ref}", "float", value.lanes)


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
