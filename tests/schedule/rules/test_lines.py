"""Lines of vectors: whole ones, what they leave, and edges."""

from __future__ import annotations

import numpy as np
import pytest

from dlc.core.target import Target
from dlc.core.types import INDEX, DType
from dlc.graph.ops.activation import HardSwish, Relu
from dlc.graph.ops.attributes import as_sizes
from dlc.graph.ops.elementwise import Tanh
from dlc.graph.ops.resize import Resize
from dlc.graph.ops.softmax import LogSoftmax
from dlc.schedule.interpret import run_func
from dlc.schedule.loop import If, LoopKind, loops
from dlc.schedule.nest import stages
from dlc.schedule.pipeline import optimize
from dlc.schedule.text import parse_func
from dlc.te.affine import split_terms
from dlc.te.expr import Const, Select, Var, index, minimum
from dlc.te.simplify import canonical
from dlc.te.tensor import placeholder
from dlc.te.transform import loads, walk
from dlc.te.types import TensorType, const_size
from tests.schedule.rules.cases import CASES
from tests.schedule.rules.moves import reflected
from tests.schedule.rules.nests import (
    AVX2,
    AVX512,
    NEON,
    M,
    N,
    assert_agree,
    func,
    lines,
    of_kind,
    tensor,
)


def test_lanes_that_lie_apart_are_all_there_but_at_the_edge() -> None:
    """36 of the 38 pixels of a line need none from beyond its ends: two vectors, and four more."""
    fast = optimize(CASES["line_pool"](), AVX512)
    sums = [s for s in stages(fast) if s.is_reduction]
    assert sorted(const_size(s.loops[-1].extent) for s in sums) == [3, 3, 4, 16]  # 3 lines
    tested = [any(isinstance(e, Select) for e in walk(s.value)) for s in sums]
    assert tested == [const_size(s.loops[-1].extent) == 3 for s in sums]


def test_whole_vectors_of_open_windows_have_no_mask() -> None:
    fast = optimize(CASES["planar_pool_of_whole_vectors"](), AVX512)
    lanes = of_kind(fast, LoopKind.VECTOR)
    whole, rest = ([f for f in lanes if isinstance(f.body, If) == k] for k in (False, True))
    assert len(whole) == len(rest) > 0
    assert {"_v" in f.var or "_edge" in f.var for f in whole} == {False}
    assert {"_v" in f.var or "_edge" in f.var for f in rest} == {True}


@pytest.mark.parametrize("width", [0, 1, 15, 16, 17, 40])
def test_only_what_whole_vectors_leave_of_an_open_line_is_masked(width: int) -> None:
    x = tensor("a", N, M)
    plain = func((x,), Relu().compute(x))
    fast = optimize(plain, AVX512)
    lanes = of_kind(fast, LoopKind.VECTOR)
    assert [isinstance(f.body, If) for f in lanes] == [False, True]
    assert_agree(plain, fast, {"n": 3, "m": width})


def test_vectors_that_an_open_line_surely_fills_have_no_rest() -> None:
    x = tensor("a", N, M * 16)
    fast = optimize(func((x,), Relu().compute(x)), AVX512)
    assert not any(isinstance(f.body, If) for f in loops(fast.body).values())
    assert len(of_kind(fast, LoopKind.VECTOR)) == 1


@pytest.mark.parametrize("n", [0, 1, 7, 15, 16, 17, 40])
def test_an_open_line_may_surely_leave_something(n: int) -> None:
    """An odd number of elements: no mask stands between what whole vectors leave and its end."""
    text = "def f(n: size, A: f32[n // 2 * 2 + 1], *, out: f32[n // 2 * 2 + 1]):"
    loop = "\n    for i in range(n // 2 * 2 + 1):\n        out[i] = A[i] * 2.0\n"
    fast = optimize(parse_func(text + loop), AVX2)
    assert len(of_kind(fast, LoopKind.VECTOR)) == 1
    arrays = {"A": np.arange(n // 2 * 2 + 1, dtype=np.float32)}
    np.testing.assert_array_equal(run_func(fast, {"n": n}, arrays)["out"], arrays["A"] * 2)


@pytest.mark.parametrize("n", [2, 3, 17, 18, 19, 40])
def test_an_open_line_may_have_a_length_below_zero(n: int) -> None:
    text = "def f(n: size, A: f32[n], *, out: f32[n - 2]):"
    plain = parse_func(text + "\n    for i in range(n - 2):\n        out[i] = A[i + 1]\n")
    fast = optimize(plain, AVX512)
    lanes = of_kind(fast, LoopKind.VECTOR)
    assert [isinstance(f.body, If) for f in lanes] == [False, True]
    arrays = {"A": np.arange(n, dtype=np.float32)}
    np.testing.assert_array_equal(run_func(fast, {"n": n}, arrays)["out"], arrays["A"][1:-1])


def test_an_open_line_that_surely_is_no_whole_vector_is_one_masked() -> None:
    text = "def f(n: size, A: f32[n % 16], *, B: f32[n % 16]):"
    copy = "\n    for i in range(n % 16):\n        B[i] = A[i]\n"
    fast = optimize(parse_func(text + copy), AVX512)
    assert len(of_kind(fast, LoopKind.VECTOR)) == 1


@pytest.mark.parametrize("name", ["reflected", "reflected_open", "edge_open", "wrapped"])
def test_a_line_is_copied_from_where_it_begins_to_where_it_ends(name: str) -> None:
    """Only at its edges, and of lines above and below, an element is looked for."""
    fast = optimize(CASES[name](), AVX512)
    wide = [s for s in stages(fast) if s.loops[-1].extent == Const(16, INDEX)]
    assert wide
    for stage in wide:
        (load,) = loads(stage.value)
        along, _ = split_terms(load.index[-1], {stage.names[-1]})
        assert along == Var(stage.names[-1])
    assert [f.extent for f in loops(fast.body).values()].count(Const(3, INDEX)) == 2


@pytest.mark.parametrize("target", [AVX2, AVX512], ids=["avx2", "avx512"])
def test_no_vector_of_a_line_of_windows_is_masked(target: Target) -> None:
    fast = optimize(CASES["planar_pool_to_rest"](), target)
    lanes = [f.extent for f in of_kind(fast, LoopKind.VECTOR)]
    assert {index(target.lanes(4)), index(43 % target.lanes(4))} == set(lanes)
    assert not any(line.lstrip().startswith("if ") for line in str(fast).splitlines())


def test_a_short_line_is_not_parted_from_its_edges() -> None:
    fast = optimize(reflected(9, 9, 20), AVX512)
    assert not any(
        isinstance(f.extent, Const) and f.extent.value == 3 for f in loops(fast.body).values()
    )


@pytest.mark.parametrize(
    ("dtype", "scale", "lanes"),
    [(DType.F32, 2, 16), (DType.F32, 8, 16), (DType.F32, 3, 3), (DType.U8, 32, 64)],
)
def test_repeated_pixels_fill_a_vector(dtype: DType, scale: int, lanes: int) -> None:
    """A vector of a whole number of repetitions is loaded at once and spread, also for odd rows."""
    op = Resize(
        sizes=as_sizes((5, 96 * scale)), scales=(1.0, scale),
        coordinates="asymmetric", rounding="floor",
    )  # fmt: skip
    x = placeholder("x", TensorType((5, 96), dtype))
    nest = optimize(func((x,), op.compute(x)), AVX512)
    (vector,) = of_kind(nest, LoopKind.VECTOR)
    assert vector.extent == index(lanes)


@pytest.mark.parametrize(
    ("columns", "target", "lanes"),
    [(96, AVX2, [32]), (197, AVX2, [32, 5]), (60, AVX2, [32, 8, 4]), (20, AVX2, [8, 4]),
     (32, AVX2, [32]), (96, AVX512, [64, 16]), (96, NEON, [4])],
)  # fmt: skip
def test_vectors_of_a_polynomial_run_side_by_side(
    columns: int, target: Target, lanes: list[int]
) -> None:
    """On x86; what adds needs no company."""
    for op, found in ((Tanh(), lanes), (Relu(), None)):
        part, x = lines("x", N, columns)
        plain = func((x,), op.compute(part))
        fast = optimize(plain, target)
        vectors = of_kind(fast, LoopKind.VECTOR)
        extents = [int(f.extent.value) for f in vectors if isinstance(f.extent, Const)]
        assert extents == found if found else max(extents) <= target.lanes(4)


@pytest.mark.parametrize(
    ("op", "target", "lanes"),
    [(HardSwish(), AVX2, 16), (Relu(), AVX2, 8), (HardSwish(), AVX512, 16)],
)
def test_two_vectors_of_several_operations_share_a_loop(
    op: HardSwish | Relu, target: Target, lanes: int
) -> None:
    x = tensor("x", 3, 96)
    fast = optimize(func((x,), op.compute(x)), target)
    vectors = of_kind(fast, LoopKind.VECTOR)
    assert [f.extent for f in vectors] == [index(lanes)]


@pytest.mark.parametrize("n", [0, 1, 31, 32, 33, 64, 77])
def test_vectors_of_an_open_line_run_side_by_side(n: int) -> None:
    """What is left of them is cut into single ones, of many lines the last of them alone masked."""
    below = N - minimum(N - 1, 0) - 1  # one less, and never below zero
    for shape, extents in (
        ((N,), [32, 8]), ((M, N), [32, 8, 8]), ((M, N * 32), [32]), ((M, below), [32, 8, 8]),
    ):  # fmt: skip
        part, x = lines("a", *map(canonical, shape))
        plain = func((x,), Tanh().compute(part))
        fast = optimize(plain, AVX2)
        lanes = of_kind(fast, LoopKind.VECTOR)
        assert [f.extent for f in lanes] == [Const(e, INDEX) for e in extents]
        assert_agree(plain, fast, {"n": n, "m": 2})


@pytest.mark.parametrize(("target", "lanes"), [(AVX2, 32), (AVX512, 48), (NEON, 4)])
def test_exponentials_that_are_summed_run_side_by_side(target: Target, lanes: int) -> None:
    x = tensor("x", 3, 96)
    fast = optimize(func((x,), LogSoftmax(axis=1).compute(x)), target)
    vectors = of_kind(fast, LoopKind.VECTOR)
    assert max(f.extent.value for f in vectors if isinstance(f.extent, Const)) == lanes
