"""A window and the contraction that reads it run strip by strip, and stay near."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlc.core.target import Target
from dlc.schedule.loop import Func, LoopKind, Scope, allocs, loops
from dlc.schedule.rules import schedule_func, window_contract
from dlc.te.expr import Expr, index
from tests.schedule.rules.nests import AVX512, N, assert_agree, prepared
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


@pytest.mark.thorough
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


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("high", "wide", "target", "lines"),
    [
        (4, 9, TWO_CORES, 1),
        (3, 9, TWO_CORES, None),  # one core would wait
        (14, 9, replace(AVX512, cores=16), 1),
        (7, 9, replace(AVX512, cores=16), None),
        (8, 5, TWO_CORES, 2),  # one line is less than a tile
        (8, 2, AVX512, 4),
        (8, 1, AVX512, None),
        (4, 1, AVX512, None),
        (14, 7, replace(TWO_CORES, l2_bytes=1 << 12), 2),  # the columns are read for each strip
        (7, 7, replace(TWO_CORES, l2_bytes=1 << 12), None),
        (8, N, TWO_CORES, 1),
        (N, 3, TWO_CORES, 1),
    ],
)
def test_strips_of_few_pixels_or_lines_are_left_to_others(
    high: int | Expr, wide: int | Expr, target: Target, lines: int | None
) -> None:
    found = window_contract.match(prepared(window_product(high, wide, halo=False)), target)
    assert (found.lines if found else None) == lines


@pytest.mark.parametrize(("high", "wide"), [(1, 1), (0, 3), (1, 8)])
def test_images_of_next_to_nothing_are_right(high: int, wide: int) -> None:
    plain = window_product(high, wide, halo=False)
    assert_agree(plain, schedule_func(plain, TWO_CORES, {}).func, {})


def test_sums_of_both_are_in_registers() -> None:
    fast = schedule_func(window_product(8, 12), TWO_CORES, {}).func
    scopes = {name: a.scope for name, a in allocs(fast.body).items()}
    assert Scope.REGISTER in scopes.values()
    assert [name for name, s in scopes.items() if s is not Scope.REGISTER] == ["relu"]
    assert any(f.kind is LoopKind.VECTOR for f in loops(fast.body).values())


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("high", "wide", "stride", "images"),
    [
        (8, 12, 1, 1),
        (8, 7, 2, 3),
        (16, 9, 1, N),
        (N, 9, 1, 1),
        (8, N, 2, 1),
        (8, 12, 1, N),
        (24, 1, 2, N),
    ],
)
def test_a_sum_that_is_read_as_it_is_stays_near_as_well(
    high: int | Expr, wide: int | Expr, stride: int, images: int | Expr
) -> None:
    plain = window_product(high, wide, stride, images, between=False)
    fast = schedule_func(plain, TWO_CORES, {}).func
    assert_agree(plain, fast, {"n": 3})
    (near,) = (a for a in allocs(fast.body).values() if a.scope is not Scope.REGISTER)
    parallel = (f for f in loops(fast.body).values() if f.kind is LoopKind.PARALLEL)
    assert any(near.buffer.name in allocs(f.body) for f in parallel)


@pytest.mark.parametrize("used", [1, 10, 15])
def test_lanes_that_nobody_reads_are_computed_by_whole_vectors(used: int) -> None:
    assert strip_of(window_product(8, 7, used=used), TWO_CORES) == (1, 2, 1, 7, 16)


@pytest.mark.parametrize("groups", [1, 2])
def test_groups_of_two_blocks_that_are_read_as_they_are_stay_near(groups: int) -> None:
    plain = window_product(8, 7, between=False, blocks=2 * groups, groups=groups)
    assert window_contract.match(prepared(plain), TWO_CORES) is not None
    assert_agree(plain, schedule_func(plain, TWO_CORES, {}).func, {})


@pytest.mark.thorough
@pytest.mark.parametrize("blocks", [1, 4])
def test_one_block_that_is_read_as_it_is_is_left_to_others(blocks: int) -> None:
    plain = window_product(8, 12, between=False, blocks=blocks, groups=blocks)
    assert window_contract.match(prepared(plain), TWO_CORES) is None
    assert_agree(plain, schedule_func(plain, TWO_CORES, {}).func, {})
