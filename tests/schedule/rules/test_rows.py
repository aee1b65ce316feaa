"""Sums of rows: vectors of them, in parts, and what is computed once for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import prod

import pytest

from dlc.core.target import Target
from dlc.graph.ops.binary import Sub
from dlc.graph.ops.matmul import MatMul
from dlc.graph.ops.reduce import Reduce
from dlc.graph.ops.softmax import LogSoftmax, Softmax
from dlc.schedule.edit import loops_around
from dlc.schedule.loop import Func, If, LoopKind, Scope, allocs, loops, walk
from dlc.schedule.nest import stages
from dlc.schedule.pipeline import optimize
from dlc.schedule.rules import row
from dlc.te.expr import Expr, index
from dlc.te.transform import loads
from dlc.te.types import const_size
from tests.schedule.rules.cases import CASES
from tests.schedule.rules.nests import (
    AVX2,
    AVX512,
    NEON,
    M,
    N,
    assert_agree,
    func,
    of_kind,
    prepared,
    tensor,
)
from tests.schedule.rules.reductions import (
    group_norm,
    image_norm,
    instance_norm,
    layer_norm,
    padded_blocked_norm,
    padded_mean,
    padded_norm,
    product_norm,
    softmax,
)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("make", "sums"),
    [
        (partial(softmax, 13), "3"),
        (layer_norm, "6"),
        (product_norm, "5"),
        (partial(instance_norm, 2, 3, 5, 37), "2 3"),
        (partial(instance_norm, N, 3, M, M), "n 3"),
        (partial(instance_norm, 2, 3, 1, 37), "2 3"),
        (partial(group_norm, 2, 2, 6, 5, 7), "2 2"),
        (partial(group_norm, 3, N, 6, M), "n 3"),
        (partial(image_norm, 3, 4, 35), "3"),
        (partial(image_norm, 2, 4, 35), "2"),
        (partial(padded_norm, 2, 3, 5, 37), "2 3"),
    ],
)
def test_each_sum_of_a_row_is_computed_once(make: Callable[[], Func], sums: str) -> None:
    plain = prepared(make())
    found = row.match(plain, AVX512)
    assert found is not None
    assert found.anchor is not None
    around = loops_around(plain, found.anchor)
    assert " ".join(str(f.extent) for f in around) == sums


def test_short_rows_of_one_sum_are_added_up_as_vectors() -> None:
    fast = optimize(group_norm(2, 2, 6, 5, 7), AVX512)
    sums = [s for s in stages(fast) if s.buffer.endswith("_lanes") and s.is_reduction]
    assert sums
    assert all(s.loops[-1].kind is LoopKind.VECTOR for s in sums)
    assert {str(s.loops[-1].extent) for s in sums} == {"16"}  # of 35: 5 lines of 7 are one


def test_rows_shorter_than_a_vector_are_reduced_as_one() -> None:
    reductions = [s for s in stages(optimize(softmax(13), AVX512)) if s.is_reduction]
    assert len(reductions) == 2
    assert all(s.inner[-1].kind is LoopKind.VECTOR for s in reductions)


@pytest.mark.parametrize(
    ("width", "guarded"),
    [(197, {"r0ii_t", "r0_1ii_t"}), (N, {"r0ii_t", "r0_1ii_t"}), (192, set())],
)
def test_only_the_last_vectors_of_a_sum_are_masked(width: int | Expr, guarded: set[str]) -> None:
    fast = optimize(softmax(width), AVX512)
    masked = {f.var for f in loops(fast.body).values() if isinstance(f.body, If)}
    assert {v for v in masked if v.startswith("r0")} == guarded


@pytest.mark.parametrize(
    ("vectors", "partial"),
    [(125, 4), (124, 4), (123, 3), (122, 4), (17, 4), (14, 2), (13, 1), (16, 4)],
)
def test_sums_have_several_vectors_unless_the_last_ones_were_many(
    vectors: int, partial: int
) -> None:
    """Fewer than are in flight wait for each other, and each has more to round."""
    fast = optimize(softmax(8 * vectors), AVX2)
    found = [b for name, b in allocs(fast.body).items() if name.endswith("_vectors")]
    counts = {prod(const_size(n) for n in a.buffer.type.shape) // 8 for a in found}
    assert counts == ({partial} if partial > 1 else set())


def test_the_logarithm_of_a_sum_is_not_computed_for_each_element() -> None:
    x = tensor("a", 3, 40)
    fast = optimize(func((x,), LogSoftmax().compute(x)), AVX512)
    logs = [s for s in stages(fast) if "log(" in str(s.value)]
    assert len(logs) == 1
    assert all(f.kind is LoopKind.PARALLEL for f in logs[0].loops)


def test_an_elements_factor_is_not_computed_for_each_element() -> None:
    fast = optimize(CASES["layer_norm"](), AVX512)
    roots = [s for s in stages(fast) if "sqrt" in str(s.value)]
    assert len(roots) == 1
    assert not roots[0].loops


@pytest.mark.parametrize("length", [20, 1000])
def test_the_sums_of_a_single_column_are_vectors(length: int) -> None:
    x, w = tensor("x", 9, length), tensor("w", length, 1)
    nest = optimize(func((x, w), MatMul().compute(x, w)), AVX512)
    sums = [s for s in stages(nest) if s.is_reduction and "x" in {v.buffer for v in loads(s.value)}]
    assert sums
    assert all(s.loops[-1].kind is LoopKind.VECTOR for s in sums)


@pytest.mark.parametrize(
    "name", ["long_sum", "long_conv", "global_mean", "open_mean", "long_columns"]
)
def test_long_sums_are_sums_of_sums(name: str) -> None:
    plain = CASES[name]()
    buffers = allocs(optimize(plain, AVX512).body)
    parts = [b for n, b in buffers.items() if n.endswith("_subtotal")]
    assert parts
    assert {a.scope for a in parts} == {Scope.REGISTER}
    short = allocs(optimize(CASES["dense_bias_relu"](), AVX512).body)
    assert not any("subtotal" in n for n in short)


@pytest.mark.parametrize(("length", "kind", "parts"), [
    (40_000, "sum", 1), (32_767, "sum", 0), (40_000, "max", 0), (2 * 16_411, "sum", 0),
])  # fmt: skip
def test_very_long_rows_are_summed_in_parts(length: int, kind: str, parts: int) -> None:
    """A maximum rounds nothing; a prime number of summands has no parts."""
    x = tensor("a", length)
    fast = optimize(func((x,), Reduce(kind=kind, axes=(0,)).compute(x)), AVX512)
    assert sum(n.endswith("_subtotal") for n in allocs(fast.body)) == parts
    assert of_kind(fast, LoopKind.VECTOR)


@pytest.mark.parametrize("name", ["short_sums", "short_sums_open", "short_arg_max"])
def test_each_lane_reduces_a_short_row_of_its_own(name: str) -> None:
    """The rows are loaded as they lie; those of three, whose lanes lie in a window, are not."""
    text = str(optimize(CASES[name](), AVX512))
    assert ("a_tile" in text or "in0_tile" in text) == (name != "short_arg_max")
    assert "vectorize(16)" in text


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("rows", "columns", "target", "groups"),
    [
        (64, 197, AVX2, 16),
        (66, 197, AVX2, 22),  # three at a time: none is left over
        (67, 197, AVX2, 16),  # four at a time, and three rows one by one
        (17, 197, replace(AVX2, cores=1), 4),  # one row is left, and is no loop
        (64, 513, AVX2, 64),  # too long
        (16, 197, replace(AVX2, cores=8), 16),  # each thread has its own
        (64, 197, AVX512, 16),
        (64, 197, NEON, 64),  # not measured
    ],
)
def test_short_rows_of_a_softmax_go_together(
    rows: int, columns: int, target: Target, groups: int
) -> None:
    x = tensor("x", rows, columns)
    plain = func((x,), Softmax().compute(x))
    fast = optimize(plain, target)
    outer = next(iter(loops(fast.body).values()))
    assert outer.extent == index(groups)
    assert outer.kind is (LoopKind.PARALLEL if target.cores > 1 else outer.kind)
    assert_agree(plain, fast, {}, rtol=2e-6)


@pytest.mark.thorough
@pytest.mark.parametrize(("heads", "extents"), [(1, [49]), (12, [591]), (3, [197])])
def test_heads_share_out_the_rows_that_groups_of_them_leave(heads: int, extents: list[int]) -> None:
    """Where they are fewer than threads, each row is shared out."""
    x = tensor("x", heads, 197, 60)
    plain = func((x,), Softmax().compute(x))
    fast = optimize(plain, replace(AVX2, cores=4, thread_operations=4096))
    shared = [f.extent for f in of_kind(fast, LoopKind.PARALLEL)]
    assert shared == [index(n) for n in extents]
    assert_agree(plain, fast, {}, rtol=2e-6)


def test_short_rows_without_polynomials_go_one_by_one() -> None:
    x = tensor("x", 64, 60)
    mean = Reduce(kind="mean", axes=(1,)).compute(x)
    fast = optimize(func((x,), Sub().compute(x, mean)), AVX2)
    (outer,) = of_kind(fast, LoopKind.PARALLEL)
    assert outer.extent == index(64)


@pytest.mark.parametrize("case", ["ranks", "ranks_of_few", "ranks_of_many"])
def test_ranks_are_counted_along_vectors(case: str) -> None:
    """All at once: blocks of few elements would read those that are chosen one by one."""
    fast = optimize(CASES[case](), AVX2)
    found, *others = (s for s in stages(fast) if s.is_reduction)
    assert {s.buffer.split("_")[0] for s in (found, *others)} == {"rank", "place"}
    assert not any(s.buffer.endswith("_1") for s in others)  # nor a second time
    assert allocs(fast.body)[found.buffer].scope is Scope.REGISTER
    assert found.loops[-1].kind is LoopKind.VECTOR
    assert found.loops[-1].extent == index(8)


def test_places_are_found_along_vectors() -> None:
    fast = optimize(CASES["ranks"](), AVX2)
    (lanes,) = (s for s in stages(fast) if s.buffer == "place_lanes")
    assert lanes.loops[-1].kind is LoopKind.VECTOR


@pytest.mark.parametrize("target", [AVX512, AVX2])
def test_an_open_row_of_whole_vectors_leaves_none(
    target: Target, caplog: pytest.LogCaptureFixture
) -> None:
    """What is masked is cut off, of which there is nothing here: the rule was given up for it."""
    x = tensor("a", N, M * 64 + 64)
    plain = func((x,), Reduce(kind="sum", axes=(-1,)).compute(x))
    fast = optimize(plain, target)
    assert "is left to other rules" not in caplog.text
    assert not any(isinstance(s, If) for s in walk(fast.body))
    for sizes in ({"n": 2, "m": 0}, {"n": 1, "m": 3}):
        assert_agree(plain, fast, sizes)


@pytest.mark.parametrize(("side", "in_parts"), [(16, False), (17, True), (M, True)])
def test_the_squares_of_an_image_are_summed_in_parts(side: int | Expr, in_parts: bool) -> None:
    """One chain over all pixels of a channel would round as often; a window has few products."""
    fast = optimize(padded_blocked_norm(1, 2, side, side, 16), AVX512)
    assert any(n.endswith("_squares_subtotal") for n in allocs(fast.body)) is in_parts


def test_a_mean_with_zeros_around_it_is_added_up_as_vectors() -> None:
    fast = optimize(padded_mean(2, 3, 5, 40), AVX512)
    assert any(name.endswith("_lanes") for name in allocs(fast.body))
