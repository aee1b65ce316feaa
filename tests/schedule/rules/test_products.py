"""Sums of products: where accumulators are, and what is packed, read ahead or computed again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from dlc.core.types import INDEX, DType
from dlc.graph.ops.activation import HardSwish
from dlc.graph.ops.attributes import as_sizes
from dlc.graph.ops.binary import Add, Where
from dlc.graph.ops.conv_blocked import ConvBlocked, PlanarConv
from dlc.graph.ops.matmul import Einsum, MatMul, MatMulPacked
from dlc.graph.ops.shape import Slice
from dlc.graph.ops.winograd import ConvWinograd
from dlc.schedule.interpret import evaluate_size, run_func
from dlc.schedule.loop import (
    Alloc,
    Block,
    For,
    Func,
    If,
    Invoke,
    LoopKind,
    Scope,
    Stmt,
    accumulation,
    allocs,
    loops,
    walk,
)
from dlc.schedule.nest import stages
from dlc.schedule.pipeline import optimize
from dlc.schedule.rules import repair
from dlc.schedule.work import operations
from dlc.te.expr import Const, Expr, index
from dlc.te.tensor import pad, placeholder
from dlc.te.transform import free_vars, loads
from dlc.te.types import TensorType, const_size
from tests.schedule.rules.cases import CASES
from tests.schedule.rules.nests import AVX2, AVX512, M, N, assert_agree, func, tensor
from tests.schedule.rules.products import (
    attention,
    column_left,
    packed_column_left,
    scores_of_one_buffer,
    widened_columns,
)
from tests.schedule.rules.windows import (
    depthwise,
    many_phases,
    phases_of_a_line,
    sparse_conv,
    winograd,
)


@pytest.mark.parametrize("length", [37, N])
def test_only_the_keys_of_a_head_are_packed(length: int | Expr) -> None:
    fast = optimize(scores_of_one_buffer(length), AVX512)
    packed = [a.buffer.type for n, a in allocs(fast.body).items() if n.startswith("heads0")]
    assert packed
    assert {t.shape[:3] for t in packed} == {TensorType((1, 1, 5, 1)).shape[:3]}


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("rows", "before"), [(1, False), (3, False), (4, True), (N, True)])
def test_columns_are_widened_before_many_products_alone(
    rows: int | Expr, before: bool, turned: bool
) -> None:
    fast = optimize(widened_columns(rows, turned=turned), AVX512)
    sizes = [a.buffer.type.elems for a in allocs(fast.body).values()]
    assert (index(2 * 40 * 21) in sizes) == before


@pytest.mark.parametrize("name", ["dense_bias_relu", "dense_many_rows"])
def test_no_product_is_computed_twice(name: str) -> None:
    plain = CASES[name]()
    assert additions(optimize(plain, AVX512).body) == additions(plain.body)


def additions(stmt: Stmt) -> int:
    """How often something is added to an element."""
    match stmt:
        case For(extent=Const(int(extent))):
            return extent * additions(stmt.body)
        case Block():
            return sum(map(additions, stmt.stmts))
        case For() | If() | Alloc():
            return additions(stmt.body)
    return int(accumulation(stmt) is not None)


@pytest.mark.parametrize(
    "name",
    ["dense_many_rows", "dense_gate", "transposed_conv", "conv_7x7", "conv_5x15", "depthwise_19"],
)
def test_accumulators_stay_in_registers(name: str) -> None:
    fast = optimize(CASES[name](), AVX512)
    buffers = allocs(fast.body)  # a total of subtotals is in memory
    scopes = {a.scope for n, a in buffers.items() if f"{n}_subtotal" not in buffers}
    assert scopes == {Scope.REGISTER}
    kinds = {f.kind for f in loops(fast.body).values()}
    assert {LoopKind.PARALLEL, LoopKind.VECTOR, LoopKind.UNROLL} <= kinds
    assert all(not free_vars(f.extent) for f in loops(fast.body).values())


@pytest.mark.parametrize(("rows", "steps"), [(1, [9, 8, 16]), (2, [8, 144])])
def test_a_result_of_one_row_is_cut_more_often(rows: int, steps: list[int]) -> None:
    """A row of a matrix product waits for its weights, and further additions cost nothing."""
    x, w = tensor("x", rows, 1152), tensor("w", 1152, 32)
    fast = optimize(func((x, w), MatMul().compute(x, w)), AVX512)
    summands = [f.extent for f in loops(fast.body).values() if f.var.startswith("k")]
    assert summands == [Const(n, INDEX) for n in steps]


def test_strips_of_repaired_sums_have_no_more_lines_than_there_are() -> None:
    """A single line was split, and its loop, gone by then, stayed in the place of a register."""
    assert repair.space(sparse_conv(4, 1), AVX512).knobs["lines"] == (0, 1, 2)  # 3 lines
    assert repair.space(sparse_conv(2, 1), AVX512).knobs["lines"] == (0, 1)
    assert repair.space(sparse_conv(N + 1, 1), AVX512).knobs["lines"] == repair.LINES


def test_an_image_of_an_open_height_is_transformed_by_a_few_rows_of_tiles() -> None:
    """Fewer than a line of an open length is, of which each row is one tile."""
    fast = optimize(winograd(N * 16, 4), AVX512)
    assert allocs(fast.body)["sums"].buffer.type.shape[-2] == Const(4 * 2, INDEX)  # of two tiles


def test_products_pass_all_tiles_of_an_open_image_as_one_line() -> None:
    """Rows of few tiles, as small images have, would read weights from afar for each row."""
    x = tensor("x", 1, 32, N + 2, M + 2, 16)
    u, w = tensor("u", 6, 6, 32, 32, 16, 16), tensor("w", 32, 32, 3, 3, 16, 16)
    plain = func((x, u, w), ConvWinograd(out=(4, 4)).compute(x, u, w))
    fast = optimize(plain, AVX512)
    tiles = "(m + 3) // 4 * ((n + 3) // 4)"
    assert str(allocs(fast.body)["sums"].buffer.type.shape[-2]) == tiles
    rests = [f for f in loops(fast.body).values() if "_rest" in f.var]
    positions = [f for f in rests if f.extent == Const(6, INDEX)]
    assert rests
    assert not positions  # they follow what they are left of: weights are near then
    assert len([s for s in walk(fast.body) if isinstance(s, Invoke)]) == 1  # tall tiles ask


@pytest.mark.parametrize(("blocks", "stored"), [(3, 3), (4, 5), (5, 6)])
def test_pixels_of_an_open_image_are_no_pages_apart(blocks: int, stored: int) -> None:
    """Nobody knows how far they are, so there is one block more, where that is little."""
    x = tensor("x", 1, blocks, N + 2, M + 2, 16)
    u, w = tensor("u", 6, 6, 2, blocks, 16, 16), tensor("w", 2, blocks, 3, 3, 16, 16)
    plain = func((x, u, w), ConvWinograd(out=(4, 4)).compute(x, u, w))
    pixels = allocs(optimize(plain, AVX512).body)["pixels"]
    assert pixels.buffer.type.shape[3] == Const(stored, INDEX)


@pytest.mark.parametrize(
    ("l1_bytes", "ahead"), [(32 << 10, 1024), (48 << 10, 1536), (1 << 20, 4096)]
)
def test_what_is_asked_ahead_fits_the_first_cache(l1_bytes: int, ahead: int) -> None:
    """Two rows by eight vectors of columns: eight streams, which together take a quarter of it."""
    x, w = tensor("x", 2, 1024), tensor("w", 64, 1024, 16)
    fast = optimize(
        func((x, w), MatMulPacked(n=1024).compute(x, w)), replace(AVX512, l1_bytes=l1_bytes)
    )
    assert f"prefetch={ahead}" in str(fast)


@pytest.mark.parametrize(("l2_bytes", "columns"), [(1 << 20, 4), (16 << 20, 8)])
def test_one_row_reads_few_streams_from_afar_which_the_hardware_follows(
    l2_bytes: int, columns: int
) -> None:
    x, w = tensor("x", 1, 1024), tensor("w", 64, 1024, 16)
    plain = func((x, w), MatMulPacked(n=1024).compute(x, w))
    fast = optimize(plain, replace(AVX512, l2_bytes=l2_bytes))
    assert "prefetch" not in str(fast)
    sums = allocs(fast.body)["matmul_packed"].buffer.type
    assert sums.elems == index(16 * columns)


@pytest.mark.parametrize(
    ("rows", "l1_bytes", "l2_bytes", "vectors"),
    [
        (57, 32 << 10, 1 << 20, 2), (57, 32 << 10, 2 << 20, 3), (57, 2 << 20, 4 << 20, 6),
        (57, 32 << 10, 4 << 20, 3), (19, 32 << 10, 1 << 20, 6),
    ],
)  # fmt: skip
def test_columns_that_all_rows_pass_stay_in_the_second_cache(
    rows: int, l1_bytes: int, l2_bytes: int, vectors: int
) -> None:
    """Of 57 rows, 19 tiles of 3 by all 6 vectors are the fewest multiply-adds; each of them would
    read all of 1.5 MB, which a first cache would have to hold too. Few rows are few tiles anyhow.
    """
    x, w = tensor("x", rows, 4096), tensor("w", 6, 4096, 16)
    target = replace(AVX512, l1_bytes=l1_bytes, l2_bytes=l2_bytes)
    fast = optimize(func((x, w), MatMulPacked(n=96).compute(x, w)), target)
    tiles = [a.buffer.type.shape for a in allocs(fast.body).values()]
    assert max(-(-const_size(shape[-1]) // 16) for shape in tiles) == vectors


def test_one_row_asks_ahead_for_lines_that_do_not_follow_each_other() -> None:
    x, w = tensor("x", 1, 1024), tensor("w", 1024, 1024)
    fast = optimize(func((x, w), MatMul().compute(x, w)), AVX512)
    assert "prefetch=1024" in str(fast)


def test_what_reads_a_sum_many_times_stays_with_its_tile() -> None:
    x, f, bias = tensor("x", 1, 3, 11, 13), tensor("f", 1, 3, 3, 3, 16), tensor("c", 1, 1, 1, 1, 16)
    used, zero = placeholder("used", TensorType((1, 1, 1, 1, 16), DType.BOOL)), tensor("zero")
    masked = Where().compute(used, PlanarConv(stride=(2, 2)).compute(x, f), zero)
    result = HardSwish().compute(Add().compute(masked, bias))
    kernel = optimize(func((x, f, used, zero, bias), result), AVX512)
    assert {a.scope for a in allocs(kernel.body).values()} == {Scope.REGISTER}


@pytest.mark.parametrize(
    ("make", "products"),
    [(many_phases, 12 * 3 * 3 * 2 * 2 * 16), (phases_of_a_line, 16 * 8 * 2 * 16)],
)
def test_no_sum_between_phases_is_computed(make: Callable[[], Func], products: int) -> None:
    """Phases are whole images apart; a tile of several would hold all blocks in between."""
    assert products < (operations(optimize(make(), AVX512).body) or 0) < 1.1 * products


@pytest.mark.parametrize(("size", "lines_outside"), [(56, True), (14, False)])
def test_of_two_large_operands_the_costlier_is_read_once(size: int, lines_outside: bool) -> None:
    """64 blocks of 56 x 56 pixels would be read for each two of 16 blocks of columns."""
    x, f = tensor("x", 1, 64, size, size, 16), tensor("f", 16, 64, 1, 1, 16, 16)
    fast = optimize(func((x, f), ConvBlocked().compute(x, f)), replace(AVX512, cores=1))
    outer, *inner = loops(fast.body).values()
    assert isinstance(outer.extent, Const)
    halfway = dict.fromkeys((f.var for f in inner), 0) | {outer.var: int(outer.extent.value) // 2}
    total = next(s for s in stages(fast) if s.is_reduction)
    image, weights = (next(x for x in loads(total.value) if x.buffer == n) for n in ("x", "f"))
    line, column = (evaluate_size(i, halfway) for i in (image.index[2], weights.index[0]))
    assert (line, column) == ((size // 2, 0) if lines_outside else (0, 8))


@pytest.mark.parametrize(("stride", "widths"), [(1, [12, 4, 1]), (2, [8, 4, 1])])
def test_windows_of_an_open_width_share_what_they_load(stride: int, widths: list[int]) -> None:
    fast = optimize(depthwise(N, stride), AVX512)
    tiles = [a.buffer.type.shape[-2] for a in allocs(fast.body).values()]
    assert tiles == [Const(w, INDEX) for w in widths]


def test_a_scalar_product_of_a_vector_in_a_larger_one() -> None:
    x, y = tensor("a", 5), tensor("b", 5)
    padded = pad("pad", x, (0,), (2,), 0.0)
    part = Slice(starts=as_sizes((0,)), sizes=as_sizes((5,))).compute(padded)
    plain = func((x, y), MatMul().compute(part, y))
    fast = optimize(plain, AVX512)
    arrays = {"a": np.arange(5, dtype=np.float32), "b": np.arange(3, 8, dtype=np.float32)}
    (found,), (right,) = (run_func(f, {}, arrays).values() for f in (fast, plain))
    assert found == right == 60


def test_products_of_columns_without_a_sum_are_scheduled() -> None:
    x, y = tensor("x", 5), tensor("y", 7, 5)
    plain = func((x, y), Einsum(equation="b,ab->ba").compute(x, y))
    arrays = {"x": np.arange(5, dtype=np.float32), "y": np.ones((7, 5), np.float32)}
    (found,) = run_func(optimize(plain, AVX2), {}, arrays).values()
    np.testing.assert_array_equal(found, np.repeat(arrays["x"][:, None], 7, 1))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("make", "is_dot"),
    [
        (partial(column_left, 29, 37), True),
        (partial(column_left, N, 16), True),
        (partial(column_left, 2, 4096), True),
        (packed_column_left, True),
        (partial(attention, 2, 21, 33, 20), True),
        (partial(column_left, 29, 15), False),
        (partial(column_left, 2, 4097), False),
        (partial(column_left, 29, M), False),
        (partial(column_left, 29, 37, 34), False),
        (partial(column_left, 1, 37), False),
        (partial(column_left, 29, 37, turned=True), False),
    ],
    ids=["rows", "open", "longest", "packed", "attention", "short", "longer", "open_sums",
         "two_columns", "one_row", "rows_side_by_side"],
)  # fmt: skip
def test_the_sums_of_a_single_column_that_is_left_are_vectors_of_summands(
    make: Callable[[], Func], is_dot: bool
) -> None:
    """Rows that lie apart would be gathered for each summand."""
    plain = make()
    fast = optimize(plain, AVX512)
    assert any(name.endswith("_column") for name in allocs(fast.body)) is is_dot
    for n in (1, 2, 30):
        assert_agree(plain, fast, {"n": n, "m": 19}, rtol=1e-5)


def test_rests_of_an_open_number_of_rows_gather_no_column() -> None:
    made = {
        name: a.buffer.type for name, a in allocs(optimize(column_left(N, 40), AVX512).body).items()
    }
    single = [
        n for n, type_ in made.items() if type_.rank == 2 and type_.shape[1] == Const(1, INDEX)
    ]
    several = [name for name in single if const_size(made[name].shape[0]) > 1]
    assert [const_size(made[name].shape[0]) for name in several] == [28, 4, 3, 2]
    assert all(f"{name}_column" in made for name in several)
