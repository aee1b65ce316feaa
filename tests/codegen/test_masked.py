"""Lanes that are off neither read nor write, whatever a machine has for it: also the last ones."""

from __future__ import annotations

import pytest

from dlc.codegen.llvm.emit import emit_func
from dlc.core.target import Target
from dlc.schedule.text import parse_func
from tests.codegen.jit import AVX2, BASELINE, NATIVE, TARGETS, check

ROWS = """
def f(n: size, A: {dtype}[3, n], *, C: {dtype}[3, n]):
    for i in range(3):
        for o in range((n + {lanes} - 1) // {lanes}):
            for l in vectorize({lanes}):
                if o * {lanes} + l < n:
                    C[i, o * {lanes} + l] = {dtype}(0)
        for o in range({extent}):
            for l in vectorize({lanes}):
                if {cond}:
                    C[i, o * {lanes} + l] = A[i, o * {lanes} + l]
"""
FIRST = "(n + {lanes} - 1) // {lanes}", "o * {lanes} + l < n"
LAST = "n // {lanes}", "n % {lanes} <= l"
MOVED = "(n + {lanes} - 1) // {lanes}", "o * {lanes} + l + n // 3 * 4 < n"  # perhaps no lane
BOTH = "(n + {lanes} - 1) // {lanes}", "o * {lanes} + l < n and l < n // 2"
AVX512 = Target(features=frozenset({"avx512f", "avx512bw", "avx2", "avx"}))


def rows(dtype: str, lanes: int, kind: tuple[str, str] = FIRST) -> str:
    extent, cond = (text.format(lanes=lanes) for text in kind)
    return ROWS.format(dtype=dtype, lanes=lanes, extent=extent, cond=cond).strip()


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("kind", [FIRST, LAST, MOVED, BOTH], ids=["first", "last", "moved", "both"])
@pytest.mark.parametrize(
    ("dtype", "lanes"),
    [
        ("f32", 8), ("f32", 7), ("f16", 16), ("bf16", 8),
        ("u8", 32), ("i16", 3), ("f64", 4), ("bool", 16),
    ],
)  # fmt: skip
def test_what_is_left_of_rows_is_copied(dtype, lanes, kind, target):
    """No row ends in the next one, and the last one where memory ends."""
    check(rows(dtype, lanes, kind), *({"n": n} for n in range(2 * lanes + 2)), target=target)


def test_words_of_bytes_are_read_in_the_lanes_that_are_on():
    text = """
def f(n: size, A: u8[3, n, 4], B: i8[4], *, C: i32[3, n]):
    for i in range(3):
        for l in vectorize(8):
            if l < n:
                C[i, l] = i32(A[i, l, 0]) * i32(B[0]) + i32(A[i, l, 3])
"""
    check(text.strip(), *({"n": n} for n in range(9)), target=NATIVE)


@pytest.mark.parametrize(
    ("dtype", "target", "masks"),
    [
        ("f32", AVX512, "load store"), ("u8", AVX512, "load store"),
        ("f32", AVX2, "load"), ("u8", AVX2, ""), ("f16", AVX2, ""),
        ("f32", BASELINE, ""), ("u8", BASELINE, ""),
    ],
)  # fmt: skip
def test_masks_are_used_where_they_are_quick(dtype, target, masks):
    """Elsewhere LLVM would branch on each lane."""
    made = emit_func(parse_func(rows(dtype, 16)), target)
    assert [kind for kind in ("load", "store") if f"@llvm.masked.{kind}." in made] == masks.split()
