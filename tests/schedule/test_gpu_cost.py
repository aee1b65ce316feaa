"""The estimate that tiles and splits of products on a GPU are chosen by."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlc.schedule.rules.gpu_cost import BlockCost, Sums, choose, fitting_parts, microseconds

SMALL = BlockCost(32, 32, 64, 4, 0.16e6, 1.3e6, 2)
WIDE = BlockCost(64, 64, 64, 8, 0.16e6, 1.3e6, 2)
LARGE = BlockCost(128, 128, 64, 8, 0.16e6, 1.3e6, 2)
BLOCKS = (SMALL, WIDE, LARGE)
PROCESSORS = 132


@pytest.mark.parametrize(
    ("sums", "number", "parts"),
    [
        (Sums(128, 768, 768), 0, 1),  # small tiles, of which each processor has one
        (Sums(128, 2304, 768), 1, 1),
        (Sums(4096, 4096, 4096), 2, 1),  # what is read counts
        (Sums(64, 64, 8192), 0, 8),  # few tiles with long sums
        (Sums(64, 64, 256), 0, 1),  # a split takes longer
        (Sums(64, 64, 8192, outer=1056), 1, 1),  # a batch fills all processors
        (Sums(None, 768, 8192), 2, 1),
        (Sums(64, 64, 8192, outer=None), 0, 1),
    ],
)
def test_tiles_fill_the_processors_and_long_sums_are_split(
    sums: Sums, number: int, parts: int
) -> None:
    assert choose(sums, BLOCKS, 0, PROCESSORS) == (number, parts)


def test_what_is_wanted_is_what_is_taken() -> None:
    assert choose(Sums(64, 64, 8192), (WIDE,), 2, PROCESSORS) == (0, 2)


def test_parts_have_whole_chunks_and_are_not_short() -> None:
    assert fitting_parts(Sums(64, 64, 64 * 12), 64) == [1, 2, 3, 4, 6]
    assert fitting_parts(Sums(64, 64, 64 * 12), 512) == [1]
    assert fitting_parts(Sums(64, None, 4096), 64) == [1]


def test_a_block_is_as_slow_as_what_takes_longest() -> None:
    sums = Sums(64, 64, 6400)
    waits = replace(WIDE, rate=1e9, most=1e9, element_bytes=0)
    assert microseconds(sums, waits, 1, PROCESSORS) == pytest.approx(16.0)
    multiplies = replace(WIDE, rate=1e4, most=4e4, element_bytes=0)  # half of its warps are enough
    assert microseconds(sums, multiplies, 1, PROCESSORS) == pytest.approx(64 * 64 * 6400 / 4e4)
    reads = replace(WIDE, rate=1e9, most=1e9, element_bytes=8)
    assert microseconds(sums, reads, 1, PROCESSORS) == pytest.approx(128 * 6400 * 8 / 42e3)
