"""How high and wide the tiles of sums of products are, and what they leave of open sizes."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest

from dlc.core.types import INDEX, DType
from dlc.graph.ops.conv_blocked import ConvBlocked
from dlc.graph.ops.matmul import MatMul, MatMulPacked
from dlc.graph.ops.pairs import MatMulPairs
from dlc.schedule.loop import Block, For, If, allocs, loops
from dlc.schedule.nest import stages
from dlc.schedule.pipeline import optimize
from dlc.schedule.rules import contract, schedule_by
from dlc.schedule.rules.tile import Tile, choose_tile, near_columns
from dlc.schedule.trace import Trace
from dlc.te.expr import Const, Expr, maximum, minimum
from dlc.te.simplify import canonical
from dlc.te.tensor import placeholder
from dlc.te.types import TensorType, const_size
from tests.schedule.rules.nests import AVX2, AVX512, M, N, assert_agree, func, prepared, tensor
from tests.schedule.rules.products import dense_symbolic_rows
from tests.schedule.rules.windows import blocked_conv, conv_onto_enlarged

OPEN_IMAGES = [(h, w) for h in (0, 1, 2, 3, 4, 6, 7) for w in (0, 1, 3, 4, 5, 9, 33)]


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("halo", [False, True])
def test_what_open_lines_leave_are_columns_and_corners(halo: bool) -> None:
    """Single rows of one vector wait for each sum: on their own they have more columns."""
    plain = blocked_conv(N, M, 1, halo)
    fast = optimize(plain, AVX512)
    tiles = [
        tuple(const_size(e) for e in a.buffer.type.shape[1:4])
        for n, a in allocs(fast.body).items()
        if n.startswith("conv")
    ]
    assert (1, 4, 1) in {(1, *t[1:]) for t in tiles}
    assert max(t[0] for t in tiles if t[1:] == (1, 1)) > 1
    for high, wide in OPEN_IMAGES:
        assert_agree(plain, fast, {"n": high, "m": wide})


def test_rows_that_are_surely_whole_tiles_leave_nothing() -> None:
    x, w = tensor("a", N * 4, 6), tensor("b", 4, 6, 16)
    fast = optimize(func((x, w), MatMulPacked(n=64).compute(x, w)), AVX512)
    assert not any("_rest" in name for name in loops(fast.body))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("rows", "tails"),
    [(N * 2, {2}), (N * 6, {2}), (N * 4 + 1, {1}), (N * 8 + 6, {2}), (N * 4 + 3, {3}),
     (N * 3, {3, 2, 1}), (minimum(N, 3), {1}), (minimum(N, 5), {3, 2, 1})],
)  # fmt: skip
def test_rows_that_are_never_left_have_no_tile(rows: Expr, tails: set[int]) -> None:
    """A nest that is surely empty was refused, and with it all tiles."""
    x, w = tensor("a", rows, 6), tensor("b", 8, 6, 16)
    plain = func((x, w), MatMulPacked(n=128).compute(x, w))
    fast = optimize(plain, AVX512, schedule_by(contract, Trace(plain), AVX512, {}).steps)
    sums = (a.buffer.type.shape for n, a in allocs(fast.body).items() if n.startswith("matmul"))
    assert {high for high in (const_size(s[0]) for s in sums) if high < 4} == tails
    for count in range(9):
        assert_agree(plain, fast, {"n": count})


@pytest.mark.thorough
@pytest.mark.parametrize("rows", [minimum(N, 1), N - maximum(N - 1, 0), N - maximum(N - 3, 0)])
@pytest.mark.parametrize("lead", [(), (1,), (M,)])
def test_few_rows_at_most_of_an_open_number_have_tiles(
    rows: Expr, lead: tuple[int | Expr, ...]
) -> None:
    """As the last tokens of a sequence: the sums of a row were as many as the rows there are."""
    x = tensor("a", *lead, canonical(rows), 7)
    for w, op in ((tensor("b", 8, 7, 16), MatMulPacked(n=128)), (tensor("b", 7, 40), MatMul())):
        plain = func((x, w), op.compute(x, w))
        fast = optimize(plain, AVX512, schedule_by(contract, Trace(plain), AVX512, {}).steps)
        for n in (0, 1, 5):
            assert_agree(plain, fast, {"n": n, "m": 2})


@pytest.mark.thorough
@pytest.mark.parametrize("columns", [M, M * 2 + 1, M * 6, minimum(M, 20)])
@pytest.mark.parametrize("rows", [5, N])
def test_whole_tiles_of_open_columns_have_no_mask(rows: int | Expr, columns: Expr) -> None:
    x, w = tensor("a", rows, 7), tensor("b", 7, columns)
    plain = func((x, w), MatMul().compute(x, w))
    fast = optimize(plain, AVX2, schedule_by(contract, Trace(plain), AVX2, {}).steps)
    sums = [s for s in stages(fast) if s.is_reduction]
    whole = [s for s in sums if not isinstance(loops(fast.body)[s.names[-1]].body, If)]
    assert 0 < len(whole) < len(sums)
    for m in (0, 1, 7, 8, 15, 16, 17, 40):
        assert_agree(plain, fast, {"n": 6, "m": m})


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 4, 7, 29, 39])
def test_single_rows_of_an_open_number_have_many_columns(rows: int) -> None:
    x, w = tensor("a", N, 6), tensor("b", 8, 6, 16)
    plain = func((x, w), MatMulPacked(n=128).compute(x, w))
    fast = optimize(plain, AVX512)
    tiles = [a.buffer.type.shape for n, a in allocs(fast.body).items() if n.startswith("matmul")]
    assert max(const_size(t[1]) for t in tiles if t[0] == Const(1, INDEX)) >= 4 * 16
    assert_agree(plain, fast, {"n": rows})


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("columns", "near", "cores", "groups"),
    [(192, 5, 1, 3), (192, 2, 1, 6), (192, 1, 1, 6), (192, 5, 9, 0), (192, 12, 1, 0),
     (184, 5, 1, 0)],
)  # fmt: skip
def test_rows_that_tiles_leave_pass_columns_that_are_still_near(
    columns: int, near: int, cores: int, groups: int
) -> None:
    """Each nest read all columns from afar; half of the second cache holds `near` vectors."""
    x, w = tensor("a", N, 24), tensor("b", -(-columns // 16), 24, 16)
    plain = func((x, w), MatMulPacked(n=columns).compute(x, w))
    target = replace(AVX512, l2_bytes=2 * near * 24 * 16 * 4, cores=cores)
    fast = optimize(plain, target)
    body = fast.body
    assert isinstance(body, For) == bool(groups)
    if isinstance(body, For):
        assert body.extent == Const(groups, INDEX)
        assert isinstance(body.body, Block)
    for rows in (0, 3, 6):
        assert_agree(plain, fast, {"n": rows})


def test_the_tail_of_an_open_number_of_rows_has_tiles_too() -> None:
    fast = optimize(dense_symbolic_rows(), AVX512)
    tiles = [a.buffer.type.shape[0] for n, a in allocs(fast.body).items() if n.startswith("matmul")]
    assert tiles[1:] == [Const(rows, INDEX) for rows in (4, 3, 2, 1)]
    assert tiles[0] != tiles[1]


@pytest.mark.parametrize(("size", "columns"), [(56, 8), (28, 16), (14, 32), (14, 128)])
def test_tiles_of_few_registers_have_sums_to_spare(size: int, columns: int) -> None:
    """As many as two multiply-adds a cycle wait for, eight, would wait for each late load."""
    tile = choose_tile(size, size, columns, 16)
    assert tile.high * tile.rows * tile.columns >= 10


@pytest.mark.parametrize("rows", [14, 22, 26, 34, 38, 62])
@pytest.mark.parametrize("registers", [16, 32])
def test_a_vector_of_columns_is_read_for_more_than_two_rows(rows: int, registers: int) -> None:
    """A tail is cheaper than pairs of rows, whose columns take longer to read than to multiply."""
    assert choose_tile(rows, 1, 96, registers).rows > 2


@pytest.mark.parametrize(
    ("sizes", "halved", "whole"),
    [
        ((56, 56, 16), (1, 28, 1), (1, 14, 2)),
        ((14, 14, 16), (2, 14, 1), (1, 14, 2)),
        ((7, 7, 32), (4, 7, 1), (1, 7, 2)),
        ((None, None, 64), (1, 28, 1), (1, 12, 2)),
        ((1, 1, 64), (1, 1, 8), (1, 1, 8)),
    ],
)
def test_one_multiply_add_a_cycle_asks_for_tall_tiles(
    sizes: tuple[int | None, int | None, int],
    halved: tuple[int, int, int],
    whole: tuple[int, int, int],
) -> None:
    """Two broadcasts in a cycle feed it; a vector of columns is read for as many rows as fit."""
    for fmas, expected in ((1, halved), (2, whole)):
        tile = choose_tile(*sizes, 32, fmas=fmas)
        assert (tile.high, tile.rows, tile.columns) == expected


@pytest.mark.parametrize(
    ("rows", "columns", "expected"),
    [(None, 24, (8, 3)), (128, 24, (8, 3)), (14, 32, (14, 2)), (196, 2, (14, 2))],
)
def test_few_loads_in_a_cycle_ask_for_wide_tiles(
    rows: int | None, columns: int, expected: tuple[int, int]
) -> None:
    """12 by 2 needs 14 loads for 24 multiply-adds, 8 by 3 needs 11."""
    tile = choose_tile(rows, 1, columns, 32, loads=1.15)
    assert (tile.rows, tile.columns) == expected
    assert choose_tile(None, 1, 24, 32) == Tile(1, 12, 2)


@pytest.mark.parametrize(("channels", "tallest"), [(16, 10), (32, 10), (64, 14), (256, 28)])
def test_few_results_of_short_sums_are_written_at_once(channels: int, tallest: int) -> None:
    """Tall tiles of short sums fill the store queue, and the next tile waits."""
    x, w = tensor("x", 1, channels // 16, 56, 56, 16), tensor("w", 4, channels // 16, 1, 1, 16, 16)
    plain = func((x, w), ConvBlocked(stride=(1, 1), dilation=(1, 1)).compute(x, w))
    halved = replace(AVX512, in_halves=True)
    sums = allocs(optimize(plain, halved).body).values()
    assert max(prod(a.buffer.type.static_shape) // 16 for a in sums) <= tallest
    assert max(prod(a.buffer.type.static_shape) // 16 for a in sums) > tallest // 2


@pytest.mark.parametrize(
    ("depth", "l1_bytes", "tallest"),
    [
        (1024, 32 << 10, 8),
        (1024, 48 << 10, 12),
        (3072, 32 << 10, 8),
        (512, 32 << 10, 14),
        (1040, 32 << 10, 14),
    ],
)
def test_rows_of_a_tile_do_not_push_each_other_out(depth: int, l1_bytes: int, tallest: int) -> None:
    """Rows a multiple of 4096 bytes apart share the lines of one set, of which there are few."""
    x, w = tensor("x", 196, depth), tensor("w", 16, depth, 16)
    plain = func((x, w), MatMulPacked(n=256).compute(x, w))
    sums = allocs(optimize(plain, replace(AVX512, l1_bytes=l1_bytes)).body).values()
    heights = {int(a.buffer.type.static_shape[0]) for a in sums}
    assert max(heights) <= tallest
    assert max(heights) == 14 or depth % 1024 == 0


def test_rows_of_which_there_is_an_open_number_lie_as_far_apart() -> None:
    x, w = tensor("x", N, 1024), tensor("w", 16, 1024, 16)
    plain = func((x, w), MatMulPacked(n=256).compute(x, w))
    assert contract.match(prepared(plain), AVX512).row_stride == 4096
    sums = allocs(optimize(plain, AVX512).body).values()
    assert max(int(a.buffer.type.static_shape[0]) for a in sums) == 8


def test_tiles_stay_whole_where_pixels_are_repeated() -> None:
    tiles = [
        [a.buffer.type.shape for a in allocs(optimize(conv_onto_enlarged(n), AVX512).body).values()]
        for n in (1, 2)
    ]
    assert tiles[0] == tiles[1]


@pytest.mark.parametrize(("kind", "rows"), [(MatMulPairs, 14), (MatMulPacked, 28)])
def test_pairs_of_bf16_keep_their_tiles_on_cores_that_work_in_halves(kind: type, rows: int) -> None:
    halved = replace(AVX512, features=AVX512.features | {"avx512bf16"}, in_halves=True)
    if kind is MatMulPairs:
        x, w = tensor("x", 56, 256), placeholder("w", TensorType((16, 128, 16, 2), DType.BF16))
    else:
        x, w = tensor("x", 56, 256), tensor("w", 16, 256, 16)
    plain = func((x, w), kind(n=256).compute(x, w))
    sums = allocs(optimize(plain, halved).body).items()
    heights = {int(a.buffer.type.static_shape[0]) for n, a in sums if n.startswith("matmul")}
    assert max(heights) == rows


@pytest.mark.parametrize(
    ("steps", "wide"),
    [(64, 7), (128, 3), (1024, 3)],  # of the first cache 7 vectors of columns take 28 KB, or more
)
def test_a_tile_is_as_wide_as_the_first_cache_holds_its_columns(steps: int, wide: int) -> None:
    near = near_columns(steps, replace(AVX512, l1_bytes=48 << 10))
    assert choose_tile(512, 1, 49, 32, steps=steps, near=near).columns == wide
    x, w = tensor("x", 512, steps), tensor("w", steps, 49 * 16)
    plain = func((x, w), MatMul().compute(x, w))
    fast = optimize(plain, replace(AVX512, l1_bytes=48 << 10))
    assert max(const_size(a.buffer.type.shape[-1]) for a in allocs(fast.body).values()) == wide * 16


def test_few_rows_read_their_columns_once_however_wide_their_tile_is() -> None:
    x, w = tensor("x", 3, 1024), tensor("w", 1024, 7 * 16)
    fast = optimize(func((x, w), MatMul().compute(x, w)), AVX512)
    assert max(const_size(a.buffer.type.shape[-1]) for a in allocs(fast.body).values()) == 7 * 16
