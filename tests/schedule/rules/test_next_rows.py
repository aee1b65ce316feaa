"""Tiles of rows that lie apart ask for the lines of the next tile, and of no other."""

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

FAR = replace(AVX512, l2_bytes=1 << 13)
"""A second cache of two lines of the images below."""


def conv(high: int, wide: int | Expr, kernel: int = 1, stride: int = 1) -> Func:
    h, w = (high - 1) * stride + kernel, (wide - 1) * stride + kernel
    x, f = tensor("a", 1, 4, h, w, 16), tensor("b", 2, 4, kernel, kernel, 16, 16)
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


@pytest.mark.thorough
@pytest.mark.parametrize(("high", "wide"), [(5, 8), (4, 28), (3, 37), (1, 64)])
def test_each_block_asks_for_its_lines_of_the_next_tile(high: int, wide: int) -> None:
    plain = conv(high, wide)
    fast = optimize(plain, FAR)
    asked = set[tuple[int, int]]().union(
        *(pixels_asked(fast, ask) for ask in asks(fast, image_of(plain)))
    )
    first = 28 if wide > 28 else 0  # of a line that leaves a tail, the first tile comes late
    places = {y * wide + x for y in range(high) for x in range(first, wide) if y * wide + x >= 28}
    assert {(block, place) for block in range(4) for place in places} <= asked
    assert all(0 < place < high * wide + wide for _, place in asked)
    assert_agree(plain, fast, {})


def test_the_next_pixel_is_a_step_away() -> None:
    plain = conv(5, 9, stride=2)
    fast = optimize(plain, FAR)
    assert_agree(plain, fast, {})
    asked = {p for ask in asks(fast, image_of(plain)) for _, p in pixels_asked(fast, ask)}
    assert {place // 17 for place in asked} >= {2, 4, 6, 8}


@pytest.mark.parametrize(
    ("plain", "target"),
    [
        (conv(5, 8), AVX512),  # near
        (conv(5, 8, kernel=3), FAR),  # most of a window is that of the tile before
        (conv(5, N), FAR),  # nobody knows where its lines are
    ],
    ids=["near", "windows", "open"],
)
def test_nobody_asks_for_rows_that_are_near_or_unknown(plain: Func, target: Target) -> None:
    assert not asks(optimize(plain, target), image_of(plain))


def test_rows_whose_summands_lie_side_by_side_are_fetched_by_the_hardware() -> None:
    x, w = tensor("x", 64, 400), tensor("w", 4, 400, 16)
    plain = func((x, w), MatMulPacked(n=64).compute(x, w))
    assert not asks(optimize(plain, FAR), image_of(plain))
