"""Tiles of rows that lie apart ask for the lines of later blocks, and of no others."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from dlc.core.target import Target
from dlc.graph.ops.conv_blocked import ConvBlocked
from dlc.graph.ops.matmul import MatMulPacked
from dlc.schedule.interpret import evaluate_size
from dlc.schedule.loop import Func, Invoke, loops, walk
from dlc.schedule.pipeline import optimize
from dlc.te.expr import Expr
from tests.schedule.rules.nests import AVX512, N, assert_agree, func, tensor

FAR = replace(AVX512, l1_bytes=1 << 13)
"""A first cache of less than the images below."""
BLOCKS = 12


def conv(
    high: int, wide: int | Expr, kernel: int = 1, stride: int = 1, blocks: int = BLOCKS
) -> Func:
    h, w = (high - 1) * stride + kernel, (wide - 1) * stride + kernel
    x, f = tensor("a", 1, blocks, h, w, 16), tensor("b", 2, blocks, kernel, kernel, 16, 16)
    return func((x, f), ConvBlocked(stride=(stride, stride)).compute(x, f))


def asks(fast: Func, buffer: str) -> list[Invoke]:
    """The instructions that ask for lines of a buffer."""
    found = (s for s in walk(fast.body) if isinstance(s, Invoke))
    return [s for s in found if s.operands[0][0] == buffer]


def image_of(plain: Func) -> str:
    return plain.inputs[0].name


def pixels_asked(fast: Func, ask: Invoke) -> set[tuple[int, int]]:
    """The blocks, and the places in them, whose lines an instruction asks for."""
    around = [f for f in loops(fast.body).values() if any(s is ask for s in walk(f.body))]
    (name, index), *_ = ask.operands
    *_, wide, lanes = next(p.type.static_shape for p in fast.inputs if p.name == name)
    found = set[tuple[int, int]]()
    for values in product(*(range(evaluate_size(f.extent, {})) for f in around)):
        env = dict(zip((f.var for f in around), values, strict=True))
        _, block, line, pixel, lane = (evaluate_size(i, env) for i in index)
        assert lane % lanes == 0
        found.add((block, line * wide + pixel + lane // lanes))
    return found


def all_asked(plain: Func) -> set[tuple[int, int]]:
    fast = optimize(plain, FAR)
    assert_agree(plain, fast, {})
    return set[tuple[int, int]]().union(
        *(pixels_asked(fast, ask) for ask in asks(fast, image_of(plain)))
    )


@pytest.mark.thorough
@pytest.mark.parametrize(("high", "wide"), [(5, 8), (4, 28), (3, 37), (1, 64)])
def test_each_block_asks_for_all_its_lines_of_the_one_after_the_next(high: int, wide: int) -> None:
    asked = all_asked(conv(high, wide))
    assert {block for block, _ in asked} == set(range(2, BLOCKS + 2))
    assert {(block, place) for block in range(2, BLOCKS) for place in range(high * wide)} <= asked
    assert all(place < high * wide + wide for _, place in asked)


def test_pixels_are_a_step_apart() -> None:
    asked = {place for _, place in all_asked(conv(5, 9, stride=2))}
    assert {place // 17 for place in asked} == {0, 2, 4, 6, 8}


def test_lines_of_a_window_ask_for_those_of_the_next_block() -> None:
    asked = all_asked(conv(3, 8, kernel=3))
    assert {(block, place) for block in range(1, BLOCKS) for place in range(5 * 10)} <= asked
    assert {block for block, _ in asked} == set(range(1, BLOCKS + 1))


def test_images_of_an_open_number_of_pixels_ask_too() -> None:
    plain = conv(5, N)
    fast = optimize(plain, FAR)
    found = asks(fast, image_of(plain))
    assert found
    for ask in found:
        assert any(str(i).startswith("r0") and str(i).endswith("+ 2") for i in ask.operands[0][1])
    for wide in (0, 1, 4, 29):
        assert_agree(plain, fast, {"n": wide})


@pytest.mark.parametrize(
    ("plain", "target"),
    [
        (conv(5, 8), AVX512),  # near
        (conv(5, 80, blocks=8), FAR),  # of eight blocks the last two ask in vain
    ],
    ids=["near", "few blocks"],
)
def test_nobody_asks_where_it_gains_nothing(plain: Func, target: Target) -> None:
    assert not asks(optimize(plain, target), image_of(plain))


def test_windows_of_an_open_width_ask_together() -> None:
    x, f = tensor("a", 1, BLOCKS, 6, 20, 16), tensor("b", 2, BLOCKS, 3, N, 16, 16)
    plain = func((x, f), ConvBlocked().compute(x, f))
    assert_agree(plain, optimize(plain, FAR), {"n": 3})


def test_rows_whose_summands_lie_side_by_side_are_fetched_by_the_hardware() -> None:
    x, w = tensor("x", 64, 400), tensor("w", 4, 400, 16)
    plain = func((x, w), MatMulPacked(n=64).compute(x, w))
    assert not asks(optimize(plain, FAR), image_of(plain))
