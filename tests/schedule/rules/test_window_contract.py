"""A window and the contraction that reads it run strip by strip, and stay near."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlc.core.target import Target
from dlc.schedule.loop import Func, LoopKind, allocs, loops
from dlc.schedule.rules import schedule_func, window_contract
from dlc.te.expr import index
from tests.schedule.rules.nests import AVX512, assert_agree, prepared
from tests.schedule.rules.windows import window_product

TWO_CORES = replace(AVX512, cores=2)
SMALL = replace(TWO_CORES, l2_bytes=1 << 14)


def strip_of(plain: Func, target: Target, knobs: dict[str, int] | None = None) -> tuple[int, ...]:
    """What a window leaves of a strip, which lies in the loop over strips."""
    fast = schedule_func(plain, target, knobs or {}).func
    (windowed,) = (a.buffer for a in allocs(fast.body).values() if a.buffer.name.startswith("relu"))
    parallel = (f for f in loops(fast.body).values() if f.kind is LoopKind.PARALLEL)
    (strips,) = (f for f in parallel if windowed.name in allocs(f.body))
    assert_agree(plain, fast, {})
    shape = windowed.type.static_shape
    high = plain.outputs[0].type.static_shape[2] - 2
    assert strips.extent == index(high // shape[2]), "nothing is computed twice"
    return shape


@pytest.mark.parametrize(
    ("high", "target", "lines"),
    [
        (8, TWO_CORES, 1),  # four strips for each of two cores
        (16, TWO_CORES, 2),
        (12, AVX512, 3),
        (13, AVX512, 1),  # a prime number of lines
        (32, SMALL, 4),
        (64, SMALL, 4),  # what stays near
    ],
)
def test_a_strip_stays_near_and_leaves_cores_some_each(
    high: int, target: Target, lines: int
) -> None:
    assert strip_of(window_product(high, 7), target) == (1, 2, lines, 7, 16)


def test_a_strip_of_chosen_lines_divides_the_image() -> None:
    assert strip_of(window_product(12, 7), TWO_CORES, {"lines": 5})[2] == 4


@pytest.mark.parametrize(
    ("high", "cores", "joined"), [(4, 2, True), (3, 2, False), (14, 16, True), (7, 16, False)]
)
def test_cores_share_the_channels_of_few_lines(high: int, cores: int, joined: bool) -> None:
    nest = prepared(window_product(high, 9, halo=False))
    target = replace(AVX512, cores=cores)
    assert (window_contract.match(nest, target) is not None) == joined
