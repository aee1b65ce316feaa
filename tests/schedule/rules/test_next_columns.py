"""Passes over columns from afar ask for those of the next tile, each line of them once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

import pytest

from dlc.graph.ops.matmul import MatMulPacked
from dlc.schedule.asking import ROUNDING
from dlc.schedule.interpret import evaluate_size
from dlc.schedule.loop import Func, Invoke, loops, walk
from dlc.schedule.pipeline import optimize
from dlc.schedule.rules import next_columns, schedule_func
from dlc.schedule.rules.next_columns import MAX_PASSES
from dlc.te.expr import Expr
from tests.schedule.rules.nests import AVX512, M, N, assert_agree, func, tensor
from tests.schedule.rules.windows import winograd

FAR = replace(AVX512, l2_bytes=1 << 10)


def packed(rows: int | Expr, depth: int = 40, blocks: int = 8) -> Func:
    x, w = tensor("x", rows, depth), tensor("w", blocks, depth, 16)
    return func((x, w), MatMulPacked(n=16 * blocks).compute(x, w))


def asks(fast: Func) -> list[Invoke]:
    return [s for s in walk(fast.body) if isinstance(s, Invoke)]


def lines_asked(
    fast: Func, ask: Invoke, tiles: int, sizes: Mapping[str, int] | None = None
) -> list[set[int]]:
    """The lines of its buffer that an instruction asks for while each tile of columns is kept."""
    sizes = sizes or {}
    name, place = ask.operands[0]
    around = [f for f in loops(fast.body).values() if any(s is ask for s in walk(f.body))]
    shape = next(p.type.static_shape for p in fast.inputs if p.name == name)
    extents = [evaluate_size(f.extent, sizes) for f in around]
    found = [set[int]() for _ in range(tiles)]
    for values in product(*map(range, extents)):
        env = {**sizes, **dict(zip((f.var for f in around), values, strict=True))}
        element = 0
        for position, size in zip(place, shape, strict=True):
            element = element * size + evaluate_size(position, env)
        assert element % 16 == 0
        found[values[0] * tiles // extents[0]].add(element // 16)
    return found


@pytest.mark.parametrize("count", [1, 3])
def test_each_image_of_an_open_number_asks_for_all_lines(count: int) -> None:
    x, w = tensor("x", N, 16, 40), tensor("w", 8, 40, 16)
    plain = func((x, w), MatMulPacked(n=128).compute(x, w))
    fast = optimize(plain, FAR, schedule_func(plain, FAR, {"rows": 8, "columns": 2}).steps)
    found = lines_asked(fast, asks(fast)[0], 4, {"n": count})
    for tile, asked in enumerate(found):
        assert asked >= set(range((tile + 1) * 80, (tile + 2) * 80))
        assert len(asked) <= 80 * ROUNDING
    assert_agree(plain, fast, {"n": count}, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [16, 37, 64])
@pytest.mark.parametrize("depth", [40, 300])
def test_all_passes_ask_for_each_line_of_the_next_tile(rows: int, depth: int) -> None:
    plain = packed(rows, depth)
    fast = optimize(plain, FAR, schedule_func(plain, FAR, {"rows": 8, "columns": 2}).steps)
    for tile, asked in enumerate(lines_asked(fast, asks(fast)[0], tiles=4)):
        first = (tile + 1) * 2 * depth
        assert asked >= set(range(first, first + 2 * depth))
        assert len(asked) <= 2 * depth * ROUNDING


@pytest.mark.thorough
def test_it_changes_no_result() -> None:
    plain = packed(37, 300)
    fast = optimize(plain, FAR)
    assert asks(fast)
    assert_agree(plain, fast, {})


def test_products_between_transforms_ask_for_the_next_position() -> None:
    fast = optimize(winograd(16, 16), FAR)
    (place,) = {str(ask.operands[0][1][1]) for ask in asks(fast)}
    assert place.endswith(" + 1")


@pytest.mark.parametrize(("high", "wide"), [(9, 11), (2, 3), (15, 16)])
def test_tall_tiles_of_an_open_image_ask_for_the_next_position(high: int, wide: int) -> None:
    """Each of them for all of it; what they leave would ask for the same."""
    plain = winograd(N, M)
    fast = optimize(plain, FAR)
    (ask,) = asks(fast)
    assert str(ask.operands[0][1][1]).endswith(" + 1")
    (tiles,) = [f for f in loops(fast.body).values() if str(f.extent).endswith("// 12")]
    assert any(s is ask for s in walk(tiles.body))
    assert_agree(plain, fast, {"n": high, "m": wide}, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("most", "next_tile"), [(1 << 10, False), (1 << 20, True)])
def test_beside_many_made_rows_the_first_pass_asks_ahead(
    monkeypatch: pytest.MonkeyPatch, most: int, next_tile: bool
) -> None:
    """The transforms of 64 tiles of three channels are 12 KB."""
    monkeypatch.setattr(next_columns, "MOST_ROW_BYTES", most)
    plain = winograd(16, 16)
    fast = optimize(plain, FAR, schedule_func(plain, FAR, {}).steps)
    assert bool(asks(fast)) is next_tile
    assert any("prefetch" in dict(f.notes) for f in loops(fast.body).values()) is not next_tile


@pytest.mark.parametrize(
    ("rows", "knobs", "next_tile", "ahead"),
    [
        (64, {}, True, False),
        (4, {}, False, True),  # a single pass
        (N, {}, False, True),  # nobody knows how many passes
        (8 * (MAX_PASSES + 1), {"rows": 8}, False, False),
        (8 * MAX_PASSES, {"rows": 8}, True, False),
        (64, {"ahead": 0}, False, False),
        (64, {"ahead": 1024}, False, True),
    ],
)
def test_who_asks(rows: int | Expr, knobs: dict[str, int], next_tile: bool, ahead: bool) -> None:
    plain = packed(rows)
    fast = optimize(plain, FAR, schedule_func(plain, FAR, {"columns_outer": 1, **knobs}).steps)
    assert bool(asks(fast)) is next_tile
    assert any("prefetch" in dict(f.notes) for f in loops(fast.body).values()) is ahead


def test_columns_that_are_near_are_not_asked_for() -> None:
    assert not asks(optimize(packed(64), AVX512))
