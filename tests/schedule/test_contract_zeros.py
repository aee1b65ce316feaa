"""Products of zeros around an image are left out by tests of whole tiles."""

from __future__ import annotations

from dlc.core.target import Target
from dlc.schedule.loop import For, If, LoopKind, walk
from dlc.schedule.pipeline import optimize
from tests.schedule.rules.windows import among_zeros

AVX512 = Target(features=frozenset({"avx512f"}))


def test_no_test_is_inside_of_a_tile():
    """Of 33 columns 12, 9 and 12 have the same taps: no tile has some of each."""
    body = optimize(among_zeros(10, 33, dilation=(8, 12)), AVX512).body
    tests = [s for s in walk(body) if isinstance(s, If)]
    tiles = [s for s in walk(body) if isinstance(s, For) and s.kind is LoopKind.UNROLL]
    assert tests
    assert not any(isinstance(s, If) for tile in tiles for s in walk(tile))
