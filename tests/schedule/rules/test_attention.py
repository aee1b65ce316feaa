"""Attention: blocks of rows that stay near, packed keys and values, what open sizes leave."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from dlc.schedule.edit import sites
from dlc.schedule.loop import Func, If, LoopKind, Scope, allocs
from dlc.schedule.pipeline import optimize
from dlc.schedule.rules import attend, schedule_func
from dlc.schedule.rules.row_blocks import MIN_ROWS, even_block
from dlc.te.expr import Expr, index, minimum
from dlc.te.types import Shape, TensorType, const_size
from tests.schedule.rules.nests import AVX2, AVX512, M, N, assert_agree, of_kind
from tests.schedule.rules.products import attention


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("rows", "near", "blocks"),
    [(24, 8, [8]), (24, 24, [24]), (24, 3, [4]), (38, 19, [19]), (38, 18, [16, 16]),
     (53, 51, [48, 48]), (49, 36, [36, 36]), (49, 25, [20, 20]), (49, 16, [7]), (145, 18, [5]),
     (39, 18, [16, 16]), (5, 3, [5])],
)  # fmt: skip
def test_attention_runs_in_blocks_of_rows_that_stay_in_the_cache(
    rows: int, near: int, blocks: list[int]
) -> None:
    plain = attention(2, rows, 21, 5)
    fast = optimize(plain, replace(AVX512, l2_bytes=4 * 8 * 21 * near))
    assert _blocks(fast) == [TensorType((1, 1, size, 21)).shape for size in blocks]
    assert_agree(plain, fast, {}, rtol=2e-6, atol=2e-6)  # order of summation


def test_no_number_of_rows_leaves_a_single_one() -> None:
    """A row alone is no product of tiles."""
    for rows, most in product(range(5, 400), (*range(4, 40), 48, 96, 200)):
        size = even_block(rows, most)
        assert bool(size) is (rows > most + (rows == 5))
        assert not size or (rows % size != 1 and MIN_ROWS <= size <= most + 3)


@pytest.mark.thorough
@pytest.mark.parametrize("rows", [49, 45, N])
def test_a_tuned_block_leaves_no_single_row_either(rows: int | Expr) -> None:
    plain = attention(2, rows, 21, 5)
    fast = optimize(plain, AVX512, schedule_func(plain, AVX512, {"block": 16}).steps)
    assert _blocks(fast)[0][2] == index(16 if rows is N else 7 if rows == 49 else 12)
    assert_agree(plain, fast, {"n": 33}, rtol=2e-6, atol=2e-6)


def _blocks(func: Func) -> list[Shape]:
    """The scores that are there at a time: of a block, and of the last one, with fewer rows."""
    made = allocs(func.body)
    return [made[n].buffer.type.shape for n in ("masked", "masked_last") if n in made]


@pytest.mark.thorough
@pytest.mark.parametrize("rows", [0, 1, 3, 23, 24, 25, 49, 60])
def test_the_scores_of_an_open_number_of_rows_are_those_of_a_block(rows: int) -> None:
    """Those of all rows of a matrix were gigabytes, and slower from 500 on."""
    plain = attention(2, N, M, 5)
    fast = optimize(plain, AVX2)
    assert [shape[2] for shape in _blocks(fast)] == [index(24), index(24)]
    assert_agree(plain, fast, {"n": rows, "m": 21}, rtol=2e-6, atol=2e-6)


def test_rows_that_may_be_less_than_none_stay_together() -> None:
    plain = attention(2, N - 20, M, 5)
    fast = optimize(plain, AVX2)
    assert [shape[2] for shape in _blocks(fast)] == [N - 20]
    assert_agree(plain, fast, {"n": 25, "m": 21}, rtol=2e-6, atol=2e-6)


def test_what_is_surely_in_blocks_leaves_no_rows() -> None:
    fast = optimize(attention(2, N * 48, M, 5), AVX2)
    assert [shape[2] for shape in _blocks(fast)] == [index(24)]


@pytest.mark.thorough
@pytest.mark.parametrize(("rows", "is_packed"), [(31, False), (32, True), (N, True)])
def test_the_values_of_many_rows_lie_in_panels(rows: int | Expr, is_packed: bool) -> None:
    """Lines a tensor apart share few sets of the first cache: long attention took twice as long."""
    plain = attention(2, rows, 21, 19)
    fast = optimize(plain, AVX2)
    packed = [a.buffer.type.shape for n, a in allocs(fast.body).items() if n == "mixed_values"]
    assert packed == [TensorType((1, 1, 3, 21, 8)).shape] * is_packed
    assert_agree(plain, fast, {"n": 33}, rtol=2e-6, atol=2e-6)  # order of summation


@pytest.mark.thorough
def test_keys_are_transposed_in_registers_into_their_panels() -> None:
    """The place in a panel is a remainder, which hid that lanes lie side by side."""
    fast = optimize(attention(2, 13, 21, 16), AVX2)
    tiles = [a for n, a in allocs(fast.body).items() if n.startswith("b_tile")]
    assert tiles
    assert {a.scope for a in tiles} == {Scope.REGISTER}


def test_only_the_last_panel_of_an_open_number_of_keys_is_guarded() -> None:
    fast = optimize(attention(2, 13, M, 16), AVX2)
    stores = [s for s in sites(fast.body) if s.store.buffer.startswith("b_moved")]
    assert {any(isinstance(outer, If) for outer in s.around) for s in stores} == {False, True}


@pytest.mark.parametrize("m", [1, 8, 20])
def test_keys_of_an_open_number_that_is_small_are_no_whole_vectors(m: int) -> None:
    """There is nothing to cut off them, and attention is found none the less."""
    plain = attention(2, 13, minimum(M, 12), 16, masked=False)
    fast = optimize(plain, AVX2)
    assert any(name.startswith("b_moved") for name in allocs(fast.body))
    assert_agree(plain, fast, {"m": m}, rtol=2e-6, atol=2e-6)


@pytest.mark.thorough
@pytest.mark.parametrize(("near", "together"), [(4, 4), (3, 3), (1, 1), (64, 4)])
def test_rows_of_weights_do_not_wait_for_each_other(near: int, together: int) -> None:
    plain = attention(2, 13, 21, 5)
    fast = optimize(plain, replace(AVX2, l1_bytes=near * 2 * 4 * 21))
    rows = [a.buffer.type for n, a in allocs(fast.body).items() if n == "masked_max"]
    assert [t.shape for t in rows] == [TensorType((1, 1, together, 1)).shape]
    assert_agree(plain, fast, {}, rtol=2e-6, atol=2e-6)  # order of summation


@pytest.mark.thorough
@pytest.mark.parametrize("keys", [0, 1, 7, 16, 21, 40])
def test_only_what_is_left_of_an_open_number_of_keys_is_guarded(keys: int) -> None:
    """Masks in each vector of scores and weights took longer than what they guard."""
    plain = attention(2, 12, M, 5)
    fast = optimize(plain, AVX2)
    guarded = {"scores": set[bool](), "masked": set[bool](), "weights": set[bool]()}
    for site in sites(fast.body):
        name = site.store.buffer.split("_part")[0]
        if name in guarded:
            guarded[name].add(any(isinstance(s, If) for s in site.around))
    assert set(map(frozenset, guarded.values())) == {frozenset({True, False})}
    tiles = [a.buffer.type.shape[3] for n, a in allocs(fast.body).items() if n.startswith("scores")]
    assert max(map(const_size, tiles)) == 16  # a single vector is loaded as often as multiplied
    assert_agree(plain, fast, {"m": keys}, rtol=2e-6, atol=2e-6)  # order of summation


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("heads", "rows", "batch", "cores", "chunks"),
    [(1, 48, 1, 2, "3"), (3, 48, 1, 2, "9"), (4, 48, 1, 2, "4"), (4, 48, 1, 8, "12"),
     (1, 48, N, 2, "n * 3"), (2, 48, N, 2, "n * 2"), (1, 48, N * 2, 2, "n * 2"),
     (3, 58, 1, 2, "12 3"), (3, 37, 1, 2, "6 3"), (1, 145, 1, 2, "29"), (2, N, 1, 2, "2"),
     (1, N, 1, 2, "n // 24 (n + 23) // 24 - n // 24")],
)  # fmt: skip
def test_cores_share_the_rows_of_few_matrices(
    heads: int, rows: int | Expr, batch: int | Expr, cores: int, chunks: str
) -> None:
    plain = attention(heads, rows, 21, 5, batch=batch)
    fast = optimize(plain, replace(AVX512, cores=cores))
    found = [str(loop.extent) for loop in of_kind(fast, LoopKind.PARALLEL)]
    nests = 1 + ("masked_last" in allocs(fast.body) and len(found) > 1)  # behind those that pack
    assert " ".join(found[-nests:]) == chunks
    assert_agree(plain, fast, {"n": 3}, rtol=2e-6, atol=2e-6)


@pytest.mark.thorough
def test_nobody_asks_ahead_for_what_the_same_nest_has_just_made() -> None:
    """How much an open attention reads is not known, but its keys lie packed beside it."""
    fast = optimize(attention(2, N, M, 5), AVX512)
    assert "prefetch" not in str(fast)


def test_rows_of_zeros_below_the_result_leave_it_to_other_rules() -> None:
    """The result is written in two places, of which the rule took the first for all of it."""
    plain = attention(2, 9, 7, 8, below=2)
    assert attend.match(plain, AVX512) is None
    assert_agree(plain, optimize(plain, AVX512), {}, rtol=1e-5, atol=1e-6)
