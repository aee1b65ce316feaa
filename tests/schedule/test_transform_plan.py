"""Which strips and groups the products between two transforms are computed in."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlc.core.target import Target
from dlc.schedule.rules import transform_plan
from dlc.schedule.rules.transform_plan import Plan, Shape, Volume, choose_plan, cycles

TWO_CORES = Target(features=frozenset({"avx2", "fma", "avx512f"}), cores=2, l2_bytes=1 << 20)


@pytest.mark.parametrize(
    ("shape", "is_outside"),
    [
        (Shape(1, 112, 56, 24, 64, 4), False),
        (Shape(1, 56, 28, 24, 128, 8), False),
        (Shape(1, 7, 7, 36, 512, 32), True),
        (Shape(1, 4, 4, 36, 512, 32), True),
    ],
)
def test_pixels_of_a_large_image_are_not_all_transformed_before_they_are_used(
    shape: Shape, is_outside: bool
) -> None:
    """They would be written far away and read from there, which costs more than weights do.

    Source: measured on two cores of Zen 4, the fastest of all plans or within 3 % of it.
    """
    plan = choose_plan(shape, TWO_CORES, {})
    assert plan.columns_outside == is_outside
    if not is_outside:  # the operand of a strip stays in the second cache
        assert shape.wide is not None
        assert 4 * plan.strip * shape.wide * shape.positions * shape.depth < TWO_CORES.l2_bytes


def test_knobs_decide_where_they_are_given() -> None:
    knobs = {"strip": 2, "group": 2, "columns_outer": 1}
    assert choose_plan(Shape(1, 56, 28, 24, 128, 8), TWO_CORES, knobs) == Plan(2, 2, True)


def test_weights_beyond_the_second_cache_are_read_for_few_strips() -> None:
    """Those of a group are read again for each.

    Source: measured on a core of Emerald Rapids: 512 channels of 40 x 40 pixels take 1.26 times as
    long in strips of 2 of 10 rows of tiles as in one, 256 channels 1.2 times.
    """
    large = replace(TWO_CORES, l2_bytes=2 << 20)
    for channels in (256, 512):
        shape = Shape(1, 10, 10, 36, channels, channels // 16)
        assert choose_plan(shape, large, {"columns_outer": 1}).strip == 10


def test_all_rows_of_an_open_image_are_one_strip_where_columns_are_outside() -> None:
    open_shape = Shape(1, None, None, 36, 512, 32, strip=4)
    outside = choose_plan(open_shape, TWO_CORES, {"columns_outer": 1})
    assert (outside.strip, outside.columns_outside) == (0, True)
    assert choose_plan(open_shape, TWO_CORES, {"columns_outer": 0}).strip == 4
    for channels in (16, 64, 512):  # 0 is the analytic choice
        shape = replace(open_shape, depth=channels, blocks=channels // 16)
        analytic = dict.fromkeys(("strip", "group", "images"), 0)
        assert choose_plan(shape, TWO_CORES, analytic) == choose_plan(shape, TWO_CORES, {})


def test_many_weights_meet_open_images_a_tile_of_registers_at_a_time() -> None:
    """Each tile asks for the weights of the next position if it is the only one of its group."""
    many, few = (Shape(1, None, None, 36, n, n // 16, strip=4) for n in (256, 128))
    assert choose_plan(many, TWO_CORES, {}) == Plan(0, transform_plan.OPEN_TILE, True)
    assert choose_plan(few, TWO_CORES, {"columns_outer": 1}).group == 4
    assert choose_plan(replace(many, high=16), TWO_CORES, {"columns_outer": 1}).group == 4
    for knobs in ({"columns_outer": 1, "group": 4}, {"columns_outer": 0, "group": 4}):
        plan = choose_plan(many, TWO_CORES, knobs)
        assert (plan.group, plan.columns_outside) == (4, bool(knobs["columns_outer"]))


VOLUME = Shape(1, 7, 7, 36, 3 * 128, 8, Volume(images=16, taps=3, stride=1, reach=3))


def test_a_strip_of_a_volume_has_several_images_where_one_feeds_too_few_products() -> None:
    small = Shape(1, 2, 2, 36, 3 * 128, 8, Volume(images=16, taps=3, stride=1, reach=3))
    assert choose_plan(small, TWO_CORES, {"columns_outer": 0}).images > 1
    assert choose_plan(small, TWO_CORES, {"columns_outer": 0, "images": 1}).images == 1


def test_images_that_several_results_share_are_transformed_less_often_in_one_strip() -> None:
    one, four = (cycles(VOLUME, Plan(1, 4, False, images), TWO_CORES) for images in (1, 4))
    apart = Volume(images=16, taps=1, stride=1, reach=1)
    alone = [
        cycles(replace(VOLUME, depth=128, volume=apart), Plan(1, 4, False, images), TWO_CORES)
        for images in (1, 4)
    ]
    assert four < one
    assert alone[0] - alone[1] < one - four


def test_images_of_an_open_number_are_one_by_one() -> None:
    shape = replace(VOLUME, volume=replace(VOLUME.volume, images=None))
    assert choose_plan(shape, TWO_CORES, {"images": 4}).images == 1


def test_results_in_a_row_need_the_images_between_them() -> None:
    volume = Volume(images=8, taps=3, stride=2, reach=5)
    assert [volume.needed(n) for n in (1, 2, 8)] == [5, 7, 19]


def test_what_each_thread_has_of_several_images_is_little() -> None:
    """Sixteen cores would have sixteen operands of many megabytes."""
    many = replace(TWO_CORES, cores=16)
    shape = Shape(8, 14, 14, 36, 3 * 64, 4, Volume(images=16, taps=3, stride=1, reach=3))
    plan = choose_plan(shape, many, {"columns_outer": 0})
    pixels = shape.volume.needed(plan.images) * plan.strip * 14 * shape.positions
    assert plan.images == 1 or 4 * 64 * pixels <= 4 * many.l2_bytes
    assert choose_plan(shape, many, {"columns_outer": 0, "images": 16, "strip": 14}).images == 1


@pytest.mark.parametrize(
    ("shape", "plan", "share"),
    [
        (Shape(1, 56, 56, 16, 512, 1), Plan(1, 1, False), 2 / 3),
        (Shape(1, 1, 1, 36, 128, 128), Plan(1, 2, True), 9 / (36 * 4)),
        (Shape(1, 1, 1, 36, 2048, 128), Plan(1, 2, True), (9 + 36 * 2 * 3) / (36 * 4)),
        (Shape(1, 56, 56, 36, 128, 1), Plan(56, 1, False), 1 / 2),
        (Shape(1, 56, 56, 36, 128, 1), Plan(56, 1, True), 1 / 2),
    ],
    ids=["products", "weights", "weights_of_many_summands", "rows_of_a_strip", "all_rows"],
)
def test_pairs_of_whole_numbers_are_multiplied_faster_and_take_fewer_bytes(
    shape: Shape, plan: Plan, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where next to nothing else takes time. Weights come as bytes, of nine for each product of
    channels, and are written and read again where those of a group do not stay near."""
    monkeypatch.setattr(transform_plan, "TRANSFORM", 0.0)
    monkeypatch.setattr(transform_plan, "TRANSFORM_WEIGHTS", 0.0)
    monkeypatch.setattr(transform_plan, "FAR_BYTES", 1e9 if share == 2 / 3 else 1e-3)
    floats, pairs = (cycles(replace(shape, element_bytes=n), plan, TWO_CORES) for n in (4, 2))
    assert pairs / floats == pytest.approx(share, rel=0.02)


@pytest.mark.parametrize("high", [1, 2, 3])
def test_a_strip_of_more_rows_than_an_image_has_takes_no_more_than_one_of_them(high: int) -> None:
    shape = Shape(1, high, 7, 36, 512, 32)
    fits, larger = (cycles(shape, Plan(strip, 4, False), TWO_CORES) for strip in (high, 4))
    assert fits == larger > 0
